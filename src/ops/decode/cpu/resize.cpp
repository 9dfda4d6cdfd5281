// The two passes of a resize.
#include "ops/decode/cpu/resize.hpp"

#include <algorithm>
#include <cstring>

namespace robocache::decode_detail {
namespace {

template <int channels>
void resize_row_of(const AxisWeights& axis, int out_width, const std::uint8_t* in, std::uint8_t* out) {
    for (int x = 0; x < out_width; ++x) {
        std::int32_t sums[channels];
        std::fill_n(sums, channels, resample_start);
        const std::uint8_t* pixel = in + static_cast<std::ptrdiff_t>(axis.first(x)) * channels;
        const std::int32_t* weights = axis.weights(x);
        const int count = axis.count(x);
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < channels; ++c) sums[c] += pixel[i * channels + c] * weights[i];
        }
        for (int c = 0; c < channels; ++c) *out++ = resampled(sums[c]);
    }
}

}  // namespace

void AxisWeights::prepare(int in, int out, bool is_area) {
    if (max_taps_ > 0 && axis_.in == in && axis_.out == out && axis_.is_area == is_area) return;
    axis_ = resample_axis(in, out, is_area);
    max_taps_ = max_taps(axis_);
    const auto size = static_cast<std::size_t>(out);
    first_.resize(size);
    count_.resize(size);
    weights_.assign(size * static_cast<std::size_t>(max_taps_), 0);
    for (int x = 0; x < out; ++x) {
        const Taps taps = taps_of(axis_, x);
        const double total = total_weight(axis_, taps);
        first_[static_cast<std::size_t>(x)] = taps.first;
        count_[static_cast<std::size_t>(x)] = taps.count;
        std::int32_t* weights = weights_.data() + static_cast<std::size_t>(x) * static_cast<std::size_t>(max_taps_);
        for (int i = 0; i < taps.count; ++i) weights[i] = fixed_weight(tap_weight(axis_, taps, i), total);
    }
}

void resize_row(const AxisWeights& axis, int out_width, int channels, const std::uint8_t* in, std::uint8_t* out) {
    if (channels == 3) return resize_row_of<3>(axis, out_width, in, out);
    resize_row_of<1>(axis, out_width, in, out);
}

void resize_column(const AxisWeights& axis, int out_row, const std::uint8_t* rows, int first_row, int row_bytes,
                   std::vector<std::int32_t>& sums, std::uint8_t* out) {
    const auto size = static_cast<std::size_t>(row_bytes);
    sums.assign(size, resample_start);
    const std::int32_t* weights = axis.weights(out_row);
    const std::uint8_t* row = rows + static_cast<std::size_t>(axis.first(out_row) - first_row) * size;
    for (int i = 0; i < axis.count(out_row); ++i, row += size) {
        const std::int32_t weight = weights[i];
        for (std::size_t x = 0; x < size; ++x) sums[x] += row[x] * weight;
    }
    for (std::size_t x = 0; x < size; ++x) out[x] = resampled(sums[x]);
}

}  // namespace robocache::decode_detail
