// Upsampling and color conversion of one row at a time.
#include "ops/decode/cpu/rows.hpp"

#include <algorithm>
#include <cstring>

#include "ops/decode/contract/color.hpp"

namespace robocache::decode_detail {
namespace {

/// Sums of a row and the next one, or the row itself, for samples [begin - 1, end + 1); clamped to the component.
void sum_of_rows(const CpuKernels& kernels, const Component& component, const Plane& plane, int row, int next_row,
                 int begin, int end, std::vector<std::int16_t>& sums) {
    sums.resize(static_cast<std::size_t>(end - begin) + 2);
    std::int16_t* out = sums.data() + 1;
    const std::uint8_t* nearer = plane.row(row) + (begin - plane.x0);
    const std::uint8_t* next = plane.row(next_row) + (begin - plane.x0);
    const int first = larger(begin - 1, 0) - begin;
    const int last = smaller(end, component.width - 1) - begin;
    if (component.upsampling == Upsampling::h2v2) {
        kernels.sum_rows(nearer, next, end - begin, out);
        out[-1] = static_cast<std::int16_t>(3 * nearer[first] + next[first]);
        out[end - begin] = static_cast<std::int16_t>(3 * nearer[last] + next[last]);
    } else {
        std::copy_n(nearer, end - begin, out);
        out[-1] = nearer[first];
        out[end - begin] = nearer[last];
    }
}

/// Pixels [x0, x1), which begin and end anywhere, from sums whose first sample is `first`.
template <class Value>
void spread(const std::int16_t* sums, int first, int x0, int x1, std::uint8_t* out, Value value,
            void (*pairs)(const std::int16_t*, int, std::uint8_t*)) {
    const auto at = [&](int x) {
        const std::int16_t* s = sums + 1 + (x / 2 - first);
        return static_cast<std::uint8_t>(value(s[0], (x & 1) != 0 ? s[1] : s[-1], (x & 1) != 0));
    };
    int x = x0;
    if ((x & 1) != 0 && x < x1) *out++ = at(x++);
    const int num_pairs = (x1 - x) / 2;
    pairs(sums + 1 + (x / 2 - first), num_pairs, out);
    x += 2 * num_pairs;
    if (x < x1) out[2 * num_pairs] = at(x);
}

}  // namespace

void RowMaker::begin(const Planes& planes, ColorSpace color, const Box& box, int channels) {
    planes_ = &planes;
    color_ = color;
    box_ = box;
    channels_ = channels;
    for (auto& row : rows_) row.resize(static_cast<std::size_t>(box.x1 - box.x0));
}

void RowMaker::begin(const std::uint8_t* pixels, const PictureRecord& record, const Box& box, int channels) {
    planes_ = nullptr;
    is_yuv_ = false;
    pixels_ = pixels;
    pixel_width_ = record.width;
    pixel_channels_ = record.num_components;
    box_ = box;
    channels_ = channels;
}

void RowMaker::begin_yuv(const std::uint8_t* frame, const PictureRecord& record, const Box& box, int channels) {
    begin(frame, record, box, channels);
    is_yuv_ = true;
    pixel_height_ = record.height;
    factors_ = yuv_factors(static_cast<YuvMatrix>(record.yuv / 2), record.yuv % 2 != 0);
    for (auto& row : rows_) row.resize(static_cast<std::size_t>(box.x1 - box.x0) * 3);
}

void RowMaker::upsample(int c, int y, std::uint8_t* out) {
    const Component& component = planes_->components[static_cast<std::size_t>(c)];
    const Plane& plane = planes_->planes[static_cast<std::size_t>(c)];
    const int row = y / component.scale_y;
    const int next_row = clamped((y & 1) != 0 ? row + 1 : row - 1, 0, component.height - 1);
    const int width = box_.x1 - box_.x0;
    switch (component.upsampling) {
        case Upsampling::none:
            std::memcpy(out, plane.row(y) + (box_.x0 - plane.x0), static_cast<std::size_t>(width));
            return;
        case Upsampling::h2v1:
        case Upsampling::h2v2: {
            const int first = box_.x0 / 2;
            sum_of_rows(kernels_, component, plane, row, next_row, first, (box_.x1 + 1) / 2, sums_);
            if (component.upsampling == Upsampling::h2v2) {
                spread(sums_.data(), first, box_.x0, box_.x1, out, h2v2_value, kernels_.spread_h2v2);
            } else {
                spread(sums_.data(), first, box_.x0, box_.x1, out, h2v1_value, kernels_.spread_h2v1);
            }
            return;
        }
        default:
            for (int x = box_.x0; x < box_.x1; ++x) {
                out[x - box_.x0] = static_cast<std::uint8_t>(upsampled(component, plane, x, y));
            }
    }
}

void RowMaker::make_from_pixels(int y, std::uint8_t* out) const {
    const std::uint8_t* in = pixels_ + (static_cast<std::size_t>(y) * static_cast<std::size_t>(pixel_width_) +
                                        static_cast<std::size_t>(box_.x0)) *
                                           static_cast<std::size_t>(pixel_channels_);
    const auto width = static_cast<std::size_t>(box_.x1 - box_.x0);
    if (pixel_channels_ == channels_) {
        std::memcpy(out, in, width * static_cast<std::size_t>(channels_));
    } else if (pixel_channels_ == 1) {
        for (std::size_t x = 0; x < width; ++x) std::memset(out + 3 * x, in[x], 3);
    } else {
        const auto step = static_cast<std::size_t>(pixel_channels_);  // 4: alpha is ignored
        for (std::size_t x = 0; x < width; ++x) {
            const std::uint8_t* p = in + step * x;
            if (channels_ == 3) {
                std::memcpy(out + 3 * x, p, 3);
            } else {
                out[x] = static_cast<std::uint8_t>(gray_of_rgb(p[0], p[1], p[2]));
            }
        }
    }
}

void RowMaker::make_from_yuv(int y, std::uint8_t* out) {
    const YuvLayout layout(pixel_width_, pixel_height_);
    const std::uint8_t* luma = pixels_ + y * layout.width + box_.x0;
    const std::int64_t chroma = (y / 2) * layout.half_width + box_.x0 / 2;
    const int count = box_.x1 - box_.x0;
    std::uint8_t* rgb = channels_ == 3 ? out : rows_[0].data();
    kernels_.yuv_row(factors_, luma, pixels_ + layout.u + chroma, pixels_ + layout.v + chroma, box_.x0 & 1, count, rgb);
    if (channels_ == 3) return;
    for (int x = 0; x < count; ++x) {
        out[x] = static_cast<std::uint8_t>(gray_of_rgb(rgb[3 * x], rgb[3 * x + 1], rgb[3 * x + 2]));
    }
}

void RowMaker::make(int y, std::uint8_t* out) {
    if (planes_ == nullptr) return is_yuv_ ? make_from_yuv(y, out) : make_from_pixels(y, out);
    const auto width = static_cast<std::size_t>(box_.x1 - box_.x0);
    if (channels_ == 1 && color_ != ColorSpace::rgb) return upsample(0, y, out);
    const int num_needed = color_ == ColorSpace::gray ? 1 : 3;
    for (int c = 0; c < num_needed; ++c) upsample(c, y, rows_[c].data());
    const std::uint8_t* a = rows_[0].data();
    const std::uint8_t* b = rows_[1].data();
    const std::uint8_t* c = rows_[2].data();
    if (color_ == ColorSpace::gray) {
        for (std::size_t x = 0; x < width; ++x) std::memset(out + 3 * x, a[x], 3);
    } else if (channels_ == 1) {
        for (std::size_t x = 0; x < width; ++x) out[x] = static_cast<std::uint8_t>(gray_of_rgb(a[x], b[x], c[x]));
    } else if (color_ == ColorSpace::rgb) {
        for (std::size_t x = 0; x < width; ++x) {
            out[3 * x] = a[x];
            out[3 * x + 1] = b[x];
            out[3 * x + 2] = c[x];
        }
    } else {
        kernels_.color_row(a, b, c, box_.x1 - box_.x0, out);
    }
}

}  // namespace robocache::decode_detail
