// Resizing rows of interleaved 8-bit pixels: first along rows, then along columns, with 8-bit pixels in between.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decode/contract/resample.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {

/// The taps and fixed weights of every output pixel of one axis.
class AxisWeights {
public:
    /// Does nothing where the axis is the one already there.
    void prepare(int in, int out, bool is_area);

    [[nodiscard]] bool is_identity() const { return axis_.in == axis_.out; }
    [[nodiscard]] int first(int out) const { return first_[static_cast<std::size_t>(out)]; }
    [[nodiscard]] int count(int out) const { return count_[static_cast<std::size_t>(out)]; }
    [[nodiscard]] const std::int32_t* weights(int out) const {
        return weights_.data() + static_cast<std::size_t>(out) * static_cast<std::size_t>(stride_);
    }

    [[nodiscard]] RowWeights row(int out_width) const {
        return {first_.data(), count_.data(), groups_.data(), num_groups_, out_width};
    }

private:
    ResampleAxis axis_;
    int num_groups_ = 0;  // of an output pixel
    int stride_ = 0;      // weights of an output pixel
    std::vector<int> first_;
    std::vector<int> count_;
    std::vector<std::int32_t> weights_;
    std::vector<TapGroup> groups_;  // the same weights
};

/// Two rows of `channels` interleaved bytes per pixel to `out_width` pixels. Behind the rows that are read there are
/// row_slack bytes.
void resize_rows(const AxisWeights& axis, int out_width, int channels, const RowPair& rows);

/// Row `out_row` of `row_bytes` bytes from rows that begin at `rows`, row_bytes apart; row 0 is input row `first_row`.
void resize_column(const AxisWeights& axis, int out_row, const std::uint8_t* rows, int first_row, int row_bytes,
                   std::vector<std::int32_t>& sums, std::uint8_t* out);

}  // namespace robocache::decode_detail
