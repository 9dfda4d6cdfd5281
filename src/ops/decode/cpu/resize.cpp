// The two passes of a resize.
#include "ops/decode/cpu/resize.hpp"

#include <algorithm>
#include <cstring>

namespace robocache::decode_detail {
void AxisWeights::prepare(int in, int out, bool is_area) {
    if (stride_ > 0 && axis_.in == in && axis_.out == out && axis_.is_area == is_area) return;
    axis_ = resample_axis(in, out, is_area);
    num_groups_ = (max_taps(axis_) + taps_per_group - 1) / taps_per_group;
    stride_ = num_groups_ * taps_per_group;
    const auto size = static_cast<std::size_t>(out);
    first_.resize(size);
    count_.resize(size);
    weights_.assign(size * static_cast<std::size_t>(stride_), 0);
    for (int x = 0; x < out; ++x) {
        const Taps taps = taps_of(axis_, x);
        const double total = total_weight(axis_, taps);
        first_[static_cast<std::size_t>(x)] = taps.first;
        count_[static_cast<std::size_t>(x)] = taps.count;
        std::int32_t* weights = weights_.data() + static_cast<std::size_t>(x) * static_cast<std::size_t>(stride_);
        for (int i = 0; i < taps.count; ++i) weights[i] = fixed_weight(tap_weight(axis_, taps, i), total);
    }
    groups_.resize(weights_.size() / taps_per_group);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        TapGroup& group = groups_[i / taps_per_group];
        group.high[i % taps_per_group] = static_cast<std::int16_t>(weights_[i] >> low_weight_bits);
        group.low[i % taps_per_group] = static_cast<std::int16_t>(weights_[i] & ((1 << low_weight_bits) - 1));
    }
}

void resize_rows(const AxisWeights& axis, int out_width, int channels, const RowPair& rows) {
    const CpuKernels& kernels = cpu_kernels();
    (channels == 3 ? kernels.resize_rows_3 : kernels.resize_rows_1)(axis.row(out_width), rows);
}

void resize_column(const AxisWeights& axis, int out_row, const std::uint8_t* rows, int first_row, int row_bytes,
                   std::vector<std::int32_t>& sums, std::uint8_t* out) {
    const auto size = static_cast<std::size_t>(row_bytes);
    sums.resize(size);
    const std::uint8_t* first = rows + static_cast<std::size_t>(axis.first(out_row) - first_row) * size;
    cpu_kernels().resize_column(first, axis.weights(out_row), axis.count(out_row), row_bytes, sums.data(), out);
}

}  // namespace robocache::decode_detail
