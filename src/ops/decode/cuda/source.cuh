// Pixels of a decoded picture, in color: four at a time for tiles, or one anywhere.
#pragma once

#include <cstdint>

#include "ops/decode/contract/color.hpp"
#include "ops/decode/contract/yuv.hpp"
#include "ops/decode/cuda/job.cuh"

namespace robocache::decode_detail {

/// A pixel in one word: red | green << 8 | blue << 16, or gray.
__device__ inline std::uint32_t pack_pixel(const Rgb& pixel) {
    return static_cast<std::uint32_t>(pixel.r | pixel.g << 8 | pixel.b << 16);
}

/// Where the samples next to an even column c are, from the address of c: blocks are 64 bytes apart. Columns past the
/// component or past the samples that are there are those at the edge.
struct Neighbors {
    int before, after, second;  // c - 1, c + 1, c + 2

    __device__ Neighbors(const Component& component, const DevicePlane& plane, int c) {
        const int i = c - plane.x0;
        const int num_after = smaller(component.width, plane.x1) - 1 - c;
        before = i == 0 ? 0 : ((i & 7) != 0 ? -1 : -num_coefficients + 7);
        after = num_after >= 1 ? 1 : 0;
        second = num_after >= 2 ? ((i & 7) == 6 ? num_coefficients - 6 : 2) : after;
    }
    /// Samples c - 1 to c + 2 of a row, `p` the one of c.
    __device__ void load(const std::uint8_t* p, int (&samples)[4]) const {
        const unsigned pair = *reinterpret_cast<const std::uint16_t*>(p);
        samples[0] = p[before];
        samples[1] = static_cast<int>(pair & 255);
        samples[2] = static_cast<int>(after != 0 ? pair >> 8 : pair & 255);
        samples[3] = p[second];
    }
};

/// Pixels x to x + 3 of a component with half the columns; c = x / 2 is even, so c and c + 1 are in one block.
template <bool is_h2v2>
__device__ inline std::uint32_t four_of_half(const Component& component, const DevicePlane& plane, int x, int y) {
    const int c = x >> 1;
    const int row = is_h2v2 ? y >> 1 : y;
    const Neighbors neighbors(component, plane, c);
    int sums[4];
    neighbors.load(plane.at(c, row), sums);
    if constexpr (is_h2v2) {
        const int next_row =
            clamped((y & 1) != 0 ? row + 1 : row - 1, plane.y0, smaller(component.height, plane.y1) - 1);
        int next[4];
        neighbors.load(plane.at(c, next_row), next);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = 3 * sums[i] + next[i];
    }
    std::uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int nearer = sums[1 + i / 2];
        const int next = sums[i % 2 == 0 ? i / 2 : 2 + i / 2];
        const int value = is_h2v2 ? h2v2_value(nearer, next, i % 2 != 0) : h2v1_value(nearer, next, i % 2 != 0);
        packed |= static_cast<std::uint32_t>(value) << (8 * i);
    }
    return packed;
}

/// Four samples of a component at full size, from pixel (x, y) on; x is a multiple of 4. Byte i is pixel x + i.
__device__ inline std::uint32_t four_samples(const Component& component, const DevicePlane& plane, int x, int y) {
    switch (component.upsampling) {
        case Upsampling::none: return *reinterpret_cast<const std::uint32_t*>(plane.at(x, y));
        case Upsampling::h2v1: return four_of_half<false>(component, plane, x, y);
        case Upsampling::h2v2: return four_of_half<true>(component, plane, x, y);
        default: break;
    }
    std::uint32_t packed = 0;
    const int last = component.width * component.scale_x - 1;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
        packed |= static_cast<std::uint32_t>(upsampled(component, plane, smaller(x + i, last), y)) << (8 * i);
    }
    return packed;
}

/// The pixels of one picture of a batch. In shared memory: it is the same for all threads of a block.
class PixelSource {
public:
    __device__ void begin(const DeviceCall& call, const DeviceJob& job) {
        is_jpeg_ = job.record.codec == Codec::jpeg;
        is_gray_ = call.style.channels == 1;
        color_ = job.record.color;
        const PictureRecord& record = job.record;
        num_planes_ = 0;
        if (!is_jpeg_) {
            width_ = record.width;
            pixels_ = picture_bytes(call, job);
            height_ = record.height;
            pixel_channels_ = record.num_components;
            is_yuv_ = record.codec == Codec::yuv420;
            if (is_yuv_) factors_ = yuv_factors(static_cast<YuvMatrix>(record.yuv / 2), record.yuv % 2 != 0);
            return;
        }
        const Geometry geometry = geometry_of(record);
        const Box region = region_of(geometry, job.crop());
        num_planes_ = num_stored(call.style, record);
        for (int c = 0; c < num_planes_; ++c) {
            components_[c] = component_of(record, geometry, c);
            planes_[c] = plane_of(call, job, region, c);
        }
    }

    /// Pixels (x, y) to (x + 3, y); x is a multiple of 4. Those past the picture are undefined.
    [[nodiscard]] __device__ uint4 four(int x, int y) const {
        if (!is_jpeg_) return make_uint4(stored(x, y), stored(x + 1, y), stored(x + 2, y), stored(x + 3, y));
        const std::uint32_t a = four_samples(components_[0], planes_[0], x, y);
        if (num_planes_ == 1) return make_uint4(gray(a & 255), gray(a >> 8 & 255), gray(a >> 16 & 255), gray(a >> 24));
        const std::uint32_t b = four_samples(components_[1], planes_[1], x, y);
        const std::uint32_t c = four_samples(components_[2], planes_[2], x, y);
        return make_uint4(colored(a, b, c), colored(a >> 8, b >> 8, c >> 8), colored(a >> 16, b >> 16, c >> 16),
                          colored(a >> 24, b >> 24, c >> 24));
    }

    [[nodiscard]] __device__ std::uint32_t one(int x, int y) const {
        if (!is_jpeg_) return stored(x, y);
        const auto sample = [&](int c) {
            return static_cast<std::uint32_t>(upsampled(components_[c], planes_[c], x, y));
        };
        return num_planes_ == 1 ? gray(sample(0)) : colored(sample(0), sample(1), sample(2));
    }

private:
    /// One sample as a pixel.
    [[nodiscard]] __device__ std::uint32_t gray(std::uint32_t sample) const {
        return is_gray_ ? sample : sample * 0x010101U;
    }

    /// The low bytes of three components as a pixel.
    [[nodiscard]] __device__ std::uint32_t colored(std::uint32_t a, std::uint32_t b, std::uint32_t c) const {
        const int x = static_cast<int>(a & 255);
        const int y = static_cast<int>(b & 255);
        const int z = static_cast<int>(c & 255);
        if (color_ == ColorSpace::ycc) return pack_pixel(rgb_of_ycc(x, y, z));
        return is_gray_ ? static_cast<std::uint32_t>(gray_of_rgb(x, y, z)) : pack_pixel({x, y, z});
    }

    /// A pixel of a picture that is not encoded; 0 past its bytes.
    [[nodiscard]] __device__ std::uint32_t stored(int x, int y) const {
        if (is_yuv_) return of_frame(x, y);
        const std::int64_t at = (std::int64_t{y} * width_ + x) * pixel_channels_;
        if (at + pixel_channels_ > pixels_.size) return 0;
        const std::uint8_t* p = pixels_.data + at;
        return pixel_channels_ == 1 ? gray(p[0]) : colored(p[0], p[1], p[2]);
    }

    /// A pixel of a frame of video; 0 past its rows or bytes.
    [[nodiscard]] __device__ std::uint32_t of_frame(int x, int y) const {
        const YuvLayout layout(width_, height_);
        if (x >= width_ || y >= height_ || layout.end > pixels_.size) return 0;
        const std::int64_t chroma = (y / 2) * layout.half_width + x / 2;
        const Rgb pixel = rgb_of_yuv(factors_, pixels_.data[y * layout.width + x], pixels_.data[layout.u + chroma],
                                     pixels_.data[layout.v + chroma]);
        return is_gray_ ? static_cast<std::uint32_t>(gray_of_rgb(pixel.r, pixel.g, pixel.b)) : pack_pixel(pixel);
    }

    bool is_jpeg_;
    bool is_gray_;
    bool is_yuv_;
    ColorSpace color_;
    int num_planes_;
    Component components_[max_components];
    DevicePlane planes_[max_components];
    int width_;
    int height_;
    YuvFactors factors_;
    int pixel_channels_;
    PictureBytes pixels_;
};

}  // namespace robocache::decode_detail
