// The contract of align, spoken once: what each argument must be, and the message when it is not. Outputs:
// contract_outputs.cpp.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/contract.hpp"
#include "ops/align/contract/methods.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache {
namespace align_detail {
namespace {

constexpr const char* time_dtypes = "int64 (nanoseconds), float64 or float32 (seconds)";

bool is_time_dtype(DType dtype) {
    return dtype == DType::i64 || dtype == DType::f64 || dtype == DType::f32;
}

Method resolve(Method method, DType values) {
    if (method != Method::automatic) return method;
    return is_floating(values) ? Method::linear : Method::previous;
}

// ---- one stream -----------------------------------------------------------------------------------------------------

class StreamContract {
public:
    StreamContract(const StreamView& stream, std::size_t i, const Names& names)
        : stream_(stream), i_(i), names_(names) {}

    StreamPlan plan() const {
        StreamPlan plan;
        layout(plan);
        options(plan);
        methods(plan);
        return plan;
    }

private:
    /// C++ callers can make views with sizes below 0; arrays of Python have none.
    void require_sizes(const TensorView& tensor, const ArgumentName& argument) const {
        const int rank = std::clamp(tensor.rank, 0, TensorView::max_rank);
        if (std::any_of(tensor.shape.begin(), tensor.shape.begin() + rank, [](auto size) { return size < 0; })) {
            fail(names_.op, argument, "have no size below 0", "shape " + shape_text(tensor));
        }
    }

    template <class Enum>
    void require_enumerator(std::string_view field, Enum value, Enum last) const {
        if (value > last) fail_field(field, "be an enumerator", std::to_string(static_cast<int>(value)));
    }

    [[noreturn]] void fail_field(std::string_view field, std::string_view rule, std::string_view given) const {
        fail(names_.op, names_.field(i_, field), rule, given);
    }

    void layout(StreamPlan& plan) const {
        const TensorView& values = stream_.values;
        const TensorView& times = stream_.times;
        require_sizes(values, names_.values(i_));
        require_sizes(times, names_.times(i_));
        if (!is_time_dtype(times.dtype)) {
            fail(names_.op, names_.times(i_), std::string("have dtype ") + time_dtypes, name(times.dtype));
        }
        if (stream_.offsets) {
            require_rank(names_.op, names_.times(i_), times, 1);
            offsets(plan);
        } else if (times.rank != 1 && times.rank != 2) {
            fail(names_.op, names_.times(i_), "have 1 or 2 dimensions", "shape " + shape_text(times));
        }
        const int row_dims = num_row_dims(stream_);
        if (values.rank < row_dims) {
            fail(names_.op, names_.values(i_), "have at least " + std::to_string(row_dims) + " dimensions",
                 "shape " + shape_text(values));
        }
        if (values.rank - row_dims + 2 > TensorView::max_rank) {
            fail(names_.op, names_.values(i_), "have at most 6 channel dimensions", "shape " + shape_text(values));
        }
        if (!std::equal(times.shape.begin(), times.shape.begin() + row_dims, values.shape.begin())) {
            TensorView expected = values;
            expected.rank = row_dims;
            fail(names_.op, names_.times(i_), "have shape " + shape_text(expected), shape_text(times));
        }
        bind_values(plan, values, row_dims);
        plan.times = static_cast<const char*>(times.data);
        plan.num_rows = times.shape[row_dims - 1];
        plan.time_row_stride = times.strides[row_dims - 1];
        if (row_dims == 2) {
            plan.num_episodes = times.shape[0];
            plan.time_episode_stride = times.strides[0];
        }
    }

    void offsets(StreamPlan& plan) const {
        const TensorView& offsets = *stream_.offsets;
        require_rank(names_.op, names_.field(i_, "offsets"), offsets, 1);
        require_dtype(names_.op, names_.field(i_, "offsets"), offsets, DType::i64);
        if (offsets.shape[0] < 1) fail_field("offsets", "have shape (episodes + 1,)", shape_text(offsets));
        plan.offsets = static_cast<const std::int64_t*>(offsets.data);
        plan.offsets_stride = offsets.strides[0];
        plan.num_episodes = offsets.shape[0] - 1;
    }

    void options(StreamPlan& plan) const {
        plan.latency = stream_.latency;
        require_enumerator("before", stream_.before, Outside::error);
        require_enumerator("after", stream_.after, Outside::error);
        plan.before = stream_.before;
        plan.after = stream_.after;
        plan.outside_valid = stream_.outside_valid;
        plan.period = stream_.period;
        if (!std::isfinite(stream_.latency.seconds)) {
            fail_field("latency", "be finite", number_text(stream_.latency.seconds));
        }
        const bool integer = stream_.times.dtype == DType::i64;
        if (integer ? stream_.tolerance.ns < 0
                    : !(stream_.tolerance.seconds >= 0) || std::isinf(stream_.tolerance.seconds)) {
            fail_field("tolerance", "be at least 0 and finite",
                       integer ? std::to_string(stream_.tolerance.ns) : number_text(stream_.tolerance.seconds));
        }
        plan.tolerance = stream_.tolerance;
        if (stream_.max_gap) {
            const bool good = integer ? stream_.max_gap->ns >= 0 : stream_.max_gap->seconds >= 0;  // false for NaN
            if (!good) {
                fail_field("max_gap", "be at least 0",
                           integer ? std::to_string(stream_.max_gap->ns) : number_text(stream_.max_gap->seconds));
            }
            plan.has_max_gap = true;
            plan.max_gap = *stream_.max_gap;
        }
        if (!(stream_.period > 0) || !std::isfinite(stream_.period)) {
            fail_field("period", "be positive and finite", number_text(stream_.period));
        }
        if (stream_.dtype) {
            require_output_dtype(names_, names_.field(i_, "dtype"), stream_.values.dtype, *stream_.dtype);
        }
    }

    void methods(StreamPlan& plan) const {
        const Method last = method_traits().back().method;
        require_enumerator("method", stream_.method, last);
        for (const ChannelRange& range : stream_.ranges) require_enumerator("method", range.method, last);
        const Method rest = resolve(stream_.method, stream_.values.dtype);
        const std::int64_t width = plan.inner.size;
        std::vector<ChannelRange> ranges(stream_.ranges.begin(), stream_.ranges.end());
        if (!ranges.empty() && stream_.values.rank != num_row_dims(stream_) + 1) {
            fail(names_.op, names_.values(i_), "have exactly one channel dimension where method is a list of ranges",
                 "shape " + shape_text(stream_.values));
        }
        for (const ChannelRange& range : ranges) {
            if (range.begin < 0 || range.begin >= range.end || range.end > width) {
                fail_field("method", "have channel ranges [begin, end) inside [0, " + std::to_string(width) + ")",
                           range_text(range));
            }
        }
        std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
        std::int64_t covered = 0;
        for (const ChannelRange& range : ranges) {
            if (range.begin < covered) {
                fail_field("method", "have channel ranges that do not overlap",
                           range_text(range) + " after one that ends at " + std::to_string(covered));
            }
            if (range.begin > covered) add(plan, covered, range.begin, rest);
            add(plan, range.begin, range.end, resolve(range.method, stream_.values.dtype));
            covered = range.end;
        }
        if (covered < width || ranges.empty()) add(plan, covered, width, rest);
    }

    static std::string range_text(const ChannelRange& range) {
        return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
    }

    void add(StreamPlan& plan, std::int64_t begin, std::int64_t end, Method method) const {
        const DType dtype = stream_.values.dtype;
        if (!is_floating(dtype) && !takes_integers(method)) {
            fail_field("method", "be " + method_choices(&takes_integers) + " for integer and bool values",
                       std::string(method_name(method)) + " for " + name(dtype));
        }
        if (is_slerp(method) && (end - begin) % 4 != 0) {
            fail_field("method", "have channels in groups of four for " + std::string(method_name(method)),
                       std::to_string(end - begin) + " channels");
        }
        if (!interpolates(method) && (stream_.before == Outside::linear || stream_.after == Outside::linear)) {
            fail_field("outside", "be hold, nan or error with a method that does not interpolate",
                       std::string("linear with method ") + std::string(method_name(method)));
        }
        plan.ranges.push_back({begin, end - begin, method});
    }

    const StreamView& stream_;
    std::size_t i_;
    const Names& names_;
};

// ---- query ----------------------------------------------------------------------------------------------------------

void plan_targets(CallPlan& plan, const Query& query, const Names& names) {
    if (!query.times && !names.has_anchor) fail(names.op, names.query_times, "be given", "nothing");
    if (query.times.has_value() == (query.anchor.has_value() || query.deltas.has_value())) {
        fail(names.op, names.query_times, "be given, or anchor and deltas, and not both",
             query.times ? "both" : "neither");
    }
    if (query.times) {
        const TensorView& times = *query.times;
        if (times.rank != 1 && times.rank != 2) {
            fail(names.op, names.query_times, "have shape (B, T) or (T,)", shape_text(times));
        }
        plan.times = static_cast<const char*>(times.data);
        plan.num_targets = times.shape[times.rank - 1];
        plan.time_target_stride = times.strides[times.rank - 1];
        plan.time_row_stride = times.rank == 2 ? times.strides[0] : 0;
        return;
    }
    if (!query.anchor || !query.deltas) {
        fail(names.op, query.anchor ? "deltas" : "anchor",
             query.anchor ? "be given with anchor" : "be given with deltas", "nothing");
    }
    require_rank(names.op, "anchor", *query.anchor, 1);
    require_rank(names.op, "deltas", *query.deltas, 1);
    plan.times = static_cast<const char*>(query.anchor->data);
    plan.time_row_stride = query.anchor->strides[0];
    plan.deltas = static_cast<const char*>(query.deltas->data);
    plan.delta_stride = query.deltas->strides[0];
    plan.num_targets = query.deltas->shape[0];
}

/// B: that of the query, else the streams' number of episodes.
void plan_rows(CallPlan& plan, const Query& query, const Names& names) {
    std::int64_t rows = -1;
    if (query.episode) {
        require_rank(names.op, "episode", *query.episode, 1);
        require_dtype(names.op, "episode", *query.episode, DType::i64);
        plan.episode = static_cast<const std::int64_t*>(query.episode->data);
        plan.episode_stride = query.episode->strides[0];
        rows = query.episode->shape[0];
    }
    const TensorView* per_row = query.anchor ? &*query.anchor : (query.times->rank == 2 ? &*query.times : nullptr);
    if (per_row != nullptr) {
        if (rows >= 0 && per_row->shape[0] != rows) {
            fail(names.op, query.anchor ? "anchor" : names.query_times,
                 "have one row for each of the " + std::to_string(rows) + " rows of episode",
                 "shape " + shape_text(*per_row));
        }
        rows = per_row->shape[0];
    }
    const bool from_query = rows >= 0;
    for (const StreamPlan& stream : plan.streams) {
        if (rows < 0 && stream.num_episodes != 1) rows = stream.num_episodes;
    }
    if (rows < 0) rows = 1;
    for (std::size_t i = 0; i < plan.streams.size() && !query.episode; ++i) {
        const std::int64_t episodes = plan.streams[i].num_episodes;
        if (episodes == rows || episodes == 1) continue;  // one episode serves every row
        if (i == 0 && from_query) {
            fail(names.op, query.anchor ? "anchor" : names.query_times,
                 "have one row for each of the " + std::to_string(episodes) + " episodes of " + names.values(0).text(),
                 "shape " + shape_text(*per_row));
        }
        fail(names.op, names.values(i), "have " + std::to_string(rows) + " episodes, one for each row of the query",
             std::to_string(episodes));
    }
    plan.num_rows = rows;
}

void require_query(const CallPlan& plan, const Query& query, const Names& names) {
    const auto require_time = [&](const std::optional<TensorView>& tensor, const ArgumentName& argument) {
        if (!tensor) return;
        if (tensor->dtype != plan.time_dtype) {
            fail(names.op, argument,
                 "have dtype " + std::string(name(plan.time_dtype)) + " like " + names.times(0).text(),
                 name(tensor->dtype));
        }
        require_device(names.op, argument, *tensor, plan.device);
    };
    require_time(query.times, names.query_times);
    require_time(query.anchor, "anchor");
    require_time(query.deltas, "deltas");
    if (query.episode) require_device(names.op, "episode", *query.episode, plan.device);
}

void require_same_kind(const CallPlan& plan, std::span<const StreamView> streams, const Names& names) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
        require_device(names.op, names.values(i), streams[i].values, plan.device);
        require_device(names.op, names.times(i), streams[i].times, plan.device);
        if (streams[i].offsets) {
            require_device(names.op, names.field(i, "offsets"), *streams[i].offsets, plan.device);
        }
        if (streams[i].times.dtype != plan.time_dtype) {
            fail(names.op, names.times(i),
                 "have dtype " + std::string(name(plan.time_dtype)) + " like " + names.times(0).text(),
                 name(streams[i].times.dtype));
        }
    }
}

}  // namespace

}  // namespace align_detail

ArgumentName AlignNames::field(std::size_t i, std::string_view name) const {
    if (i < streams.size() && streams[i].bare_fields) return name;
    return {"streams", i, name};
}

ArgumentName AlignNames::values(std::size_t i) const {
    if (i < streams.size() && !streams[i].values.empty()) return streams[i].values;
    return field(i, "values");
}

ArgumentName AlignNames::times(std::size_t i) const {
    if (i < streams.size() && !streams[i].times.empty()) return streams[i].times;
    return field(i, "times");
}

namespace align_detail {

int num_row_dims(const StreamView& stream) {
    return !stream.offsets && stream.times.rank == 2 ? 2 : 1;
}

void bind_values(StreamPlan& stream, const TensorView& values, int row_dims) {
    const std::int64_t element = size_bytes(values.dtype);
    stream.values = static_cast<const char*>(values.data);
    stream.values_dtype = values.dtype;
    stream.value_row_stride = values.strides[row_dims - 1] * element;
    stream.value_episode_stride = row_dims == 2 ? values.strides[0] * element : 0;
    stream.outer.clear();
    stream.inner = {1, 1, 1};
    for (int d = row_dims; d < values.rank; ++d) {
        const ChannelDim dim{values.shape[d], values.strides[d], 0};
        if (d + 1 < values.rank) {
            stream.outer.push_back(dim);
        } else {
            stream.inner = dim;
        }
    }
}

void bind_inputs(StreamPlan& stream, const TensorView& values, int row_dims) {
    const std::int64_t element = size_bytes(values.dtype);
    stream.inputs = static_cast<const char*>(values.data);
    stream.inputs_dtype = values.dtype;
    stream.input_row_stride = values.strides[row_dims - 1] * element;
    stream.input_episode_stride = row_dims == 2 ? values.strides[0] * element : 0;
    for (int d = row_dims; d < values.rank; ++d) {
        ChannelDim& dim = d + 1 < values.rank ? stream.outer[static_cast<std::size_t>(d - row_dims)] : stream.inner;
        dim.input_stride = values.strides[d];
    }
}

CallPlan make_plan(std::span<const StreamView> streams, const Query& query, const Names& names) {
    if (streams.empty()) fail(names.op, "streams", "have at least one stream", "none");
    CallPlan plan;
    plan.streams.reserve(streams.size());
    for (std::size_t i = 0; i < streams.size(); ++i) {
        plan.streams.push_back(StreamContract(streams[i], i, names).plan());
    }
    plan.time_dtype = streams[0].times.dtype;
    plan.device = streams[0].values.device;
    require_same_kind(plan, streams, names);
    plan_targets(plan, query, names);
    require_query(plan, query, names);
    plan_rows(plan, query, names);
    return plan;
}

TensorView output_view(const CallPlan& plan, const StreamView& stream) {
    const int row_dims = num_row_dims(stream);
    TensorView out;
    out.dtype = stream.dtype.value_or(stream.values.dtype);
    out.device = stream.values.device;
    out.rank = stream.values.rank - row_dims + 2;
    out.shape[0] = plan.num_rows;
    out.shape[1] = plan.num_targets;
    for (int d = 2; d < out.rank; ++d) out.shape[d] = stream.values.shape[row_dims + d - 2];
    std::int64_t stride = 1;
    for (int d = out.rank - 1; d >= 0; --d) {
        out.strides[d] = stride;
        stride *= out.shape[d];
    }
    return out;
}

}  // namespace align_detail
}  // namespace robocache
