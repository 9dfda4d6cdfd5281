// The gradient of align: its contract, and the CPU. Row groups that share no episode run in parallel.
#include "ops/align/contract/backward.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/contract.hpp"
#include "core/interrupt.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/contract/values.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace align_detail {
namespace {

// ---- contract -------------------------------------------------------------------------------------------------------

bool same_shape(const TensorView& a, const TensorView& b) {
    return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

void require_shape(const Names& names, const std::string& argument, const TensorView& given,
                   const TensorView& expected) {
    if (same_shape(given, expected)) return;
    fail(names.op, argument, "have shape " + shape_text(expected), shape_text(given));
}

/// What the gradient of the values must be, so that it can stand in their place in a plan.
void require_values(const StreamView& stream, const TensorView& gradient, std::size_t i, const Names& names) {
    const TensorView& values = stream.values;
    const std::string argument = "gradients[" + std::to_string(i) + "].values";
    if (!is_floating(values.dtype)) {
        fail(names.op, names.values(i), "be floating to have a gradient", name(values.dtype));
    }
    require_shape(names, argument, gradient, values);
    require_dtype(names.op, argument, gradient, values.dtype == DType::f64 ? DType::f64 : DType::f32);
    require_device(names.op, argument, gradient, values.device);
    require_not_null(names.op, argument, gradient);
    for (int d = 0; d < gradient.rank; ++d) {
        if (gradient.shape[d] > 1 && gradient.strides[d] == 0 && gradient.num_elements() > 0) {
            fail(names.op, argument, "not overlap itself", "stride 0 in dimension " + std::to_string(d));
        }
    }
}

void bind_gradient(const CallPlan& plan, StreamPlan& stream, const StreamView& view, const TensorView& output,
                   std::size_t i, const Names& names) {
    const std::string argument = "gradients[" + std::to_string(i) + "].output";
    require_shape(names, argument, output, output_view(plan, view));
    require_device(names.op, argument, output, plan.device);
    require_not_null(names.op, argument, output);
    if (!is_floating(output.dtype)) fail(names.op, argument, "have a floating dtype", name(output.dtype));
    bind_rows(stream, output);
}

bool reads_values(const StreamPlan& stream) {
    return std::ranges::any_of(stream.ranges, [](const RangePlan& r) { return gradient_reads_values(r.method); });
}

/// Validates, and keeps only the streams whose gradient is requested.
CallPlan bind_backward(const AlignPlan::State& state, std::span<const std::optional<AlignGradient>> gradients) {
    const Names& names = state.options.names;
    const std::vector<StreamView>& streams = state.streams;
    if (gradients.size() != streams.size()) {
        fail(names.op, "gradients", "have one entry for each of the " + std::to_string(streams.size()) + " streams",
             std::to_string(gradients.size()));
    }
    CallPlan call = state.call;
    std::vector<StreamPlan> wanted;
    for (std::size_t i = 0; i < streams.size(); ++i) {
        if (!gradients[i]) continue;
        require_values(streams[i], gradients[i]->values, i, names);
        require_gradient(call.streams[i], i, names);
        bind_values(call.streams[i], gradients[i]->values, num_row_dims(streams[i]));
        if (reads_values(call.streams[i])) bind_inputs(call.streams[i], streams[i].values, num_row_dims(streams[i]));
        bind_gradient(call, call.streams[i], streams[i], gradients[i]->output, i, names);
        wanted.push_back(std::move(call.streams[i]));
    }
    call.streams = std::move(wanted);
    return call;
}

// ---- CPU ------------------------------------------------------------------------------------------------------------

constexpr std::int64_t parallel_elements = 1 << 17;  // fewer are not worth waking a thread for
constexpr std::int64_t least_channels = 64;          // of one part of a row

/// to[i] += weight * from[i].
template <class Sum, class Grad>
void add_scaled(Sum* __restrict to, std::int64_t to_stride, const Grad* __restrict from, std::int64_t from_stride,
                std::int64_t count, Sum weight) {
    if (to_stride == 1 && from_stride == 1) {
        for (std::int64_t i = 0; i < count; ++i) to[i] += weight * static_cast<Sum>(widen(from[i]));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        to[i * to_stride] += weight * static_cast<Sum>(widen(from[i * from_stride]));
    }
}

/// The same, of a gradient of any dtype. Chosen here, once for each row, and not by the code around it, which would be
/// compiled four times as often.
template <class Sum>
void add_scaled_from(Sum* to, std::int64_t to_stride, const char* from, DType dtype, std::int64_t from_stride,
                     std::int64_t count, Sum weight) {
    const auto add = [&]<class Grad>(const Grad* grads) {
        add_scaled(to, to_stride, grads, from_stride, count, weight);
    };
    switch (dtype) {
        case DType::f16: return add(reinterpret_cast<const Half*>(from));
        case DType::bf16: return add(reinterpret_cast<const BFloat16*>(from));
        case DType::f64: return add(reinterpret_cast<const double*>(from));
        default: return add(reinterpret_cast<const float*>(from));
    }
}

/// Takes the gradient of one stream back, for channels [begin, end) of its inner dimension, one query row at a time.
template <class Time, class Sum>
class RowAdder {
public:
    RowAdder(const CallPlan& plan, const StreamPlan& stream, std::int64_t begin, std::int64_t end)
        : plan_(plan),
          stream_(stream),
          begin_(begin),
          end_(end),
          out_bytes_(size_bytes(stream.out_dtype)),
          rules_(rules_of(stream)) {}

    void add(std::int64_t b) {
        const std::int64_t e = episode_of(plan_, stream_, b);
        const EpisodeRows<Time> episode = episode_rows<Time>(stream_, e);
        if (episode.times.count == 0) return;
        const char* inputs = inputs_of(stream_, e, episode.first_row);
        std::int64_t hint = -1;
        for (std::int64_t j = 0; j < plan_.num_targets; ++j) {
            const Target<Time> target =
                target_at(plan_, stream_, episode.times, b, j,
                          [&](const EpisodeTimes<Time>& times, Time t) { return last_at_or_before(times, t, hint); });
            hint = target.near.left;
            if (j % 256 == 255) detail::poll_interrupt();
            for (const RangePlan& range : stream_.ranges) {
                const std::int64_t from = std::max(begin_, range.begin);
                const std::int64_t to = std::min(end_, range.begin + range.width);
                if (from >= to) continue;
                const Shares<Sum> shares = shares_of<Sum>(target, range.method, rules_);
                char* values = const_cast<char*>(episode.values);
                if (shares.window && shares.count > 0 && gradient_reads_values(range.method)) {
                    spread_window(shares, target.times, range.method, values, inputs, gradient(b, j), from, to, 0);
                } else {
                    spread(shares, target.times, values, gradient(b, j), from, to);
                }
            }
        }
    }

private:
    const char* gradient(std::int64_t b, std::int64_t j) const {
        return stream_.out + b * stream_.out_row_stride + j * stream_.out_target_stride;
    }

    void spread(const Shares<Sum>& shares, const EpisodeTimes<Time>& times, char* values, const char* from,
                std::int64_t begin, std::int64_t end) const {
        if (!shares.window) {
            for (std::int32_t i = 0; i < shares.count; ++i) {
                add_row(values, shares.rows[i], from, shares.weights[i], begin, end);
            }
            return;
        }
        for (std::int64_t row = shares.rows[0]; row < shares.rows[1]; ++row) {
            if (!is_passed_over(times, row)) add_row(values, row, from, shares.weights[0], begin, end);
        }
    }

    /// The same, channel by channel, for a window whose gradient depends on the values.
    void spread_window(const Shares<Sum>& shares, const EpisodeTimes<Time>& times, Method method, char* values,
                       const char* inputs, const char* from, std::int64_t begin, std::int64_t end,
                       std::size_t depth) const {
        const std::int64_t input_bytes = size_bytes(stream_.inputs_dtype);
        if (depth < stream_.outer.size()) {
            const ChannelDim& dim = stream_.outer[depth];
            for (std::int64_t i = 0; i < dim.size; ++i) {
                spread_window(shares, times, method, values + i * dim.value_stride * std::int64_t{sizeof(Sum)},
                              inputs + i * dim.input_stride * input_bytes, from + i * dim.out_stride * out_bytes_,
                              begin, end, depth + 1);
            }
            return;
        }
        const ChannelDim& inner = stream_.inner;
        for (std::int64_t c = begin; c < end; ++c) {
            const char* input = inputs + c * inner.input_stride * input_bytes;
            const auto grad = static_cast<Sum>(wide_value(from + c * inner.out_stride * out_bytes_, stream_.out_dtype));
            each_window_weight(
                times, shares.rows[0], shares.rows[1], method,
                [&](std::int64_t row) {
                    return wide_value(input + row * stream_.input_row_stride, stream_.inputs_dtype);
                },
                [&](std::int64_t row, double weight) {
                    Sum* to = reinterpret_cast<Sum*>(values + row * stream_.value_row_stride);
                    to[c * inner.value_stride] += static_cast<Sum>(weight) * grad;
                });
        }
    }

    void add_row(char* values, std::int64_t row, const char* from, Sum weight, std::int64_t begin,
                 std::int64_t end) const {
        Sum* to = reinterpret_cast<Sum*>(values + row * stream_.value_row_stride);
        add_channels(to + begin * stream_.inner.value_stride, from + begin * stream_.inner.out_stride * out_bytes_,
                     weight, end - begin, 0);
    }

    void add_channels(Sum* to, const char* from, Sum weight, std::int64_t count, std::size_t depth) const {
        if (depth == stream_.outer.size()) {
            return add_scaled_from(to, stream_.inner.value_stride, from, stream_.out_dtype, stream_.inner.out_stride,
                                   count, weight);
        }
        const ChannelDim& dim = stream_.outer[depth];
        for (std::int64_t i = 0; i < dim.size; ++i) {
            add_channels(to + i * dim.value_stride, from + i * dim.out_stride * out_bytes_, weight, count, depth + 1);
        }
    }

    const CallPlan& plan_;
    const StreamPlan& stream_;
    std::int64_t begin_;
    std::int64_t end_;
    std::int64_t out_bytes_;
    Rules rules_;
};

/// Query rows, sorted so that those that may read the same rows of a stream are together and in ascending order.
/// Group g is rows[begins[g]] ... rows[begins[g + 1] - 1].
struct RowGroups {
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> begins;

    [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(begins.size()) - 1; }
};

/// Offsets that nobody checked may let episodes overlap.
bool episodes_are_disjoint(const StreamPlan& stream) {
    if (stream.offsets == nullptr) return true;
    for (std::int64_t e = 0; e < stream.num_episodes; ++e) {
        if (stream.offsets[(e + 1) * stream.offsets_stride] < stream.offsets[e * stream.offsets_stride]) return false;
    }
    return true;
}

RowGroups group_rows(const CallPlan& plan, const StreamPlan& stream) {
    RowGroups groups;
    groups.rows.resize(static_cast<std::size_t>(plan.num_rows));
    std::iota(groups.rows.begin(), groups.rows.end(), std::int64_t{0});
    groups.begins.push_back(0);
    if (stream.num_episodes != 1 && episodes_are_disjoint(stream)) {
        const auto episode = [&](std::int64_t b) { return episode_of(plan, stream, b); };
        if (plan.episode != nullptr) {
            std::stable_sort(groups.rows.begin(), groups.rows.end(),
                             [&](std::int64_t a, std::int64_t b) { return episode(a) < episode(b); });
        }
        for (std::size_t i = 1; i < groups.rows.size(); ++i) {
            if (episode(groups.rows[i]) != episode(groups.rows[i - 1])) {
                groups.begins.push_back(static_cast<std::int64_t>(i));
            }
        }
    }
    groups.begins.push_back(plan.num_rows);
    return groups;
}

/// Every element of the gradient is summed by one thread in the order (b, j), whatever the number of threads: a thread
/// takes a group of query rows, and a part of the channels where there are too few groups.
template <class Time, class Sum>
void add_stream(const CallPlan& plan, const StreamPlan& stream) {
    const RowGroups groups = group_rows(plan, stream);
    const std::int64_t width = stream.inner.size;
    std::int64_t elements = plan.num_rows * plan.num_targets * std::max<std::int64_t>(width, 1);
    for (const ChannelDim& dim : stream.outer) elements *= dim.size;
    const bool alone = elements < parallel_elements;
    std::int64_t parts = 1;
    if (!alone && groups.count() < num_threads()) {
        parts = std::clamp<std::int64_t>(width / least_channels, 1, num_threads());
    }
    const std::int64_t items = groups.count() * parts;
    const std::int64_t grain = alone ? items : items / (8 * num_threads()) + 1;
    parallel_for(items, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t part = item % parts;
            const auto group = static_cast<std::size_t>(item / parts);
            RowAdder<Time, Sum> adder(plan, stream, width * part / parts, width * (part + 1) / parts);
            for (std::int64_t i = groups.begins[group]; i < groups.begins[group + 1]; ++i) {
                adder.add(groups.rows[static_cast<std::size_t>(i)]);
                detail::poll_interrupt();
            }
        }
    });
}

}  // namespace

void require_gradient(const StreamPlan& stream, std::size_t i, const Names& names) {
    for (const RangePlan& range : stream.ranges) {
        if (has_gradient(range.method)) continue;
        throw Unsupported(std::string(names.op) + ": " + names.field(i, "method").text() + " must be " +
                          method_choices(&has_gradient) +
                          " to have a native gradient (Python: pass backend='torch', which has one for every method), "
                          "got " +
                          std::string(method_name(range.method)));
    }
}

void align_backward_cpu(const CallPlan& plan) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    with_time_type(plan, [&]<class Time>() {
        for (const StreamPlan& stream : plan.streams) {
            if (stream.values_dtype == DType::f64) {
                add_stream<Time, double>(plan, stream);
            } else {
                add_stream<Time, float>(plan, stream);
            }
        }
    });
}

}  // namespace align_detail

void require_gradient(const AlignPlan& plan, std::size_t stream) {
    const AlignPlan::State& state = plan.state();
    align_detail::require_gradient(state.call.streams.at(stream), stream, state.options.names);
}

void run_backward(const AlignPlan& plan, std::span<const std::optional<AlignGradient>> gradients, Workspace,
                  [[maybe_unused]] CudaQueue queue) {
    const align_detail::CallPlan call = align_detail::bind_backward(plan.state(), gradients);
    if (call.device.type != DeviceType::cuda) return align_detail::align_backward_cpu(call);
#ifdef ROBOCACHE_HAS_CUDA
    align_detail::align_backward_cuda(call, queue);
#else
    throw Unsupported(std::string(plan.state().options.names.op) +
                      ": this build contains no CUDA code, got tensors on " + name(call.device));
#endif
}

}  // namespace robocache
