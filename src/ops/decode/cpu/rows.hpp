// Rows of pixels of a decoded picture: upsampled, in color, cropped.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decode/contract/yuv.hpp"
#include "ops/decode/cpu/kernels.hpp"
#include "ops/decode/cpu/planes.hpp"

namespace robocache::decode_detail {

/// Makes row y of the pixels [box.x0, box.x1), `channels` interleaved bytes each. One per thread.
class RowMaker {
public:
    /// From planes, which must outlive it.
    void begin(const Planes& planes, ColorSpace color, const Box& box, int channels);
    /// From pixels: (height, width, record.num_components).
    void begin(const std::uint8_t* pixels, const PictureRecord& record, const Box& box, int channels);
    /// From the planes of a frame of video.
    void begin_yuv(const std::uint8_t* frame, const PictureRecord& record, const Box& box, int channels);
    void make(int y, std::uint8_t* out);

private:
    void upsample(int component, int y, std::uint8_t* out);
    void make_from_pixels(int y, std::uint8_t* out) const;
    void make_from_yuv(int y, std::uint8_t* out);

    const CpuKernels& kernels_ = cpu_kernels();
    const Planes* planes_ = nullptr;
    const std::uint8_t* pixels_ = nullptr;
    bool is_yuv_ = false;
    int pixel_height_ = 0;
    YuvFactors factors_{};
    int pixel_width_ = 0;
    int pixel_channels_ = 0;
    ColorSpace color_ = ColorSpace::gray;
    Box box_{};
    int channels_ = 3;
    std::vector<std::uint8_t> rows_[max_components];
    std::vector<std::int16_t> sums_;
};

}  // namespace robocache::decode_detail
