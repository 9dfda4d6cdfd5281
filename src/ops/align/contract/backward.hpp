// The gradient of align, what CPU and CUDA share: which rows a target read, and how much of each.
#pragma once

#include "ops/align/contract/episodes.hpp"
#include "ops/align/contract/windows.hpp"

namespace robocache::align_detail {

// A plan of the gradient is a plan of align with the roles turned round: `values` of a stream is the gradient that is
// added to, `out` the gradient that is read. It has only the streams whose gradient is wanted. `inputs` are the values,
// where the gradient of a method reads them.

/// The rows an output element was made of. In a window they are [rows[0], rows[1]), all with weights[0], which means
/// nothing where gradient_reads_values(method).
template <class Sum>
struct Shares {
    std::int64_t rows[4];
    Sum weights[4];
    std::int32_t count;  // 0: it depends on no row
    bool window;
};

template <class Sum, class Time>
ROBOCACHE_HD Shares<Sum> shares_of(const Target<Time>& target, Method method, const Rules& rules) {
    OuterRows outer{};
    const Sample sample = sample_of(target, method, rules, outer);
    const std::int64_t left = sample.rows[0];
    const std::int64_t right = sample.rows[1];
    const auto w = static_cast<Sum>(sample.weight);
    if (sample.kind == Kind::row) return {{left}, {1}, 1, false};
    if (sample.kind == Kind::blend) return {{left, right}, {1 - w, w}, 2, false};
    if (sample.kind == Kind::cubic) {
        const auto w_before = static_cast<Sum>(outer.weight_before);
        const auto w_after = static_cast<Sum>(outer.weight_after);
        const Sum w_left = 1 - w - w_before - w_after;
        Shares<Sum> shares{};  // in the order of time: see RowSums in cuda/backward.cu
        const auto add = [&](std::int64_t row, Sum weight) {
            shares.rows[shares.count] = row;
            shares.weights[shares.count++] = weight;
        };
        if (outer.before != left) add(outer.before, w_before);
        add(left, w_left);
        add(right, w);
        if (outer.after != left) add(outer.after, w_after);
        return shares;
    }
    if (sample.kind == Kind::window) {
        std::int64_t used = 0;
        for (std::int64_t row = left; row < right; ++row) used += is_passed_over(target.times, row) ? 0 : 1;
        return {{left, right}, {static_cast<Sum>(1.0 / static_cast<double>(used))}, used > 0 ? 1 : 0, true};
    }
    return {{}, {}, 0, false};
}

/// A value of a floating dtype.
ROBOCACHE_HD double wide_value(const char* at, DType dtype) {
    switch (dtype) {
        case DType::f16: return static_cast<double>(widen(*reinterpret_cast<const Half*>(at)));
        case DType::bf16: return static_cast<double>(widen(*reinterpret_cast<const BFloat16*>(at)));
        case DType::f64: return *reinterpret_cast<const double*>(at);
        default: return static_cast<double>(*reinterpret_cast<const float*>(at));
    }
}

/// The inputs of episode e, which has rows; the first of them is `first_row` of the stream if that is ragged.
template <class Stream>
ROBOCACHE_HD const char* inputs_of(const Stream& stream, std::int64_t e, std::int64_t first_row) {
    return stream.inputs + e * stream.input_episode_stride + first_row * stream.input_row_stride;
}

/// For one channel of the window [begin, end), whose gradient depends on values: calls add(row, weight) for the rows
/// that count. value(row) is float64.
template <class Time, class Value, class Add>
ROBOCACHE_HD void each_window_weight(const EpisodeTimes<Time>& times, std::int64_t begin, std::int64_t end,
                                     Method method, const Value& value, const Add& add) {
    with_window<double>(method, [&](auto window) {
        if constexpr (requires { window.slope(0.0, 0.0, 0.0); }) {
            double count = 0;
            for (std::int64_t row = begin; row < end; ++row) {
                if (is_passed_over(times, row)) continue;
                window.add(value(row), count == 0);
                count += 1;
            }
            const double result = window.result(count);
            for (std::int64_t row = begin; row < end; ++row) {
                if (!is_passed_over(times, row)) add(row, window.slope(value(row), result, count));
            }
        }
    });
}

/// Throws Unsupported if a method of the stream has no gradient here.
void require_gradient(const StreamPlan& stream, std::size_t i, const Names& names);

/// One per backend; a missing one is a link error.
void align_backward_cpu(const CallPlan& plan);
void align_backward_cuda(const CallPlan& plan, CudaQueue stream);

}  // namespace robocache::align_detail
