// Reading a plan: the rows of an episode, the targets of a query row, and what align writes for one. One definition for
// CPU and CUDA: `stream` and `query` are a StreamPlan and a CallPlan, or a DeviceStream and a DeviceQuery.
#pragma once

#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::align_detail {

/// A load from memory that nothing writes during the call; through the read-only cache of a GPU.
template <class T>
ROBOCACHE_HD T load_constant(const T* from) {
#ifdef __CUDA_ARCH__
    return __ldg(from);
#else
    return *from;
#endif
}

/// The rows of one episode of one stream.
template <class Time>
struct EpisodeRows {
    EpisodeTimes<Time> times;
    const char* values;
    std::int64_t first_row;  // what the index output counts from
};

/// Episodes out of range have no rows; offsets out of order are clamped. Memory stays safe without checks.
template <class Time, class Stream>
ROBOCACHE_HD EpisodeRows<Time> episode_rows(const Stream& stream, std::int64_t episode) {
    const auto* times = reinterpret_cast<const Time*>(stream.times);
    const std::int64_t time_stride = stream.time_row_stride;
    if (episode < 0 || episode >= stream.num_episodes) return {{times, time_stride, 0}, stream.values, 0};
    if (stream.offsets == nullptr) {
        return {{times + episode * stream.time_episode_stride, time_stride, stream.num_rows},
                stream.values + episode * stream.value_episode_stride,
                0};
    }
    const RowRange rows =
        clamped_rows(load_constant(stream.offsets + episode * stream.offsets_stride),
                     load_constant(stream.offsets + (episode + 1) * stream.offsets_stride), stream.num_rows);
    return {{times + rows.begin * time_stride, time_stride, rows.count()},
            stream.values + rows.begin * stream.value_row_stride,
            rows.begin};
}

template <class Query, class Stream>
ROBOCACHE_HD std::int64_t episode_of(const Query& query, const Stream& stream, std::int64_t b) {
    if (query.episode != nullptr) return load_constant(query.episode + b * query.episode_stride);
    return stream.num_episodes == 1 ? 0 : b;
}

/// Target j of query row b as given, before the stream's latency.
template <class Time, class Query>
ROBOCACHE_HD Time target_time(const Query& query, std::int64_t b, std::int64_t j) {
    const auto* times = reinterpret_cast<const Time*>(query.times) + b * query.time_row_stride;
    if (query.deltas == nullptr) return load_constant(times + j * query.time_target_stride);
    const auto* deltas = reinterpret_cast<const Time*>(query.deltas);
    return add_time(load_constant(times), load_constant(deltas + j * query.delta_stride));
}

/// The settings of a stream besides its method.
inline Rules rules_of(const StreamPlan& stream) {
    return {stream.max_gap, stream.has_max_gap, stream.outside_valid, stream.before, stream.after};
}

/// One target of an episode that has rows, for every method. All times with the stream's latency.
template <class Time>
struct Target {
    EpisodeTimes<Time> times;
    Neighbors near;
    Time t;
    Time earlier;  // the neighboring targets; t itself where there is none
    Time later;
    bool has_earlier;
    bool has_later;
};

/// Target j of query row b. search(times, t) is last_at_or_before(times, t, any hint).
template <class Time, class Query, class Stream, class Search>
ROBOCACHE_HD Target<Time> target_at(const Query& query, const Stream& stream, const EpisodeTimes<Time>& times,
                                    std::int64_t b, std::int64_t j, const Search& search) {
    const auto latency = duration_as<Time>(stream.latency);
    const auto at = [&](std::int64_t i) { return add_time(target_time<Time>(query, b, i), latency); };
    const Time t = at(j);
    const bool has_earlier = j > 0;
    const bool has_later = j + 1 < query.num_targets;
    return {times,
            neighbors_of(times, t, search(times, t), gap_as<Time>(stream.tolerance)),
            t,
            has_earlier ? at(j - 1) : t,
            has_later ? at(j + 1) : t,
            has_earlier,
            has_later};
}

/// The sample of a target by a method.
template <class Time>
ROBOCACHE_HD Sample sample_of(const Target<Time>& target, Method method, const Rules& rules, OuterRows& outer) {
    if (is_window(method)) {
        return sample_window(target.times, target.t, target.earlier, target.later, target.has_earlier, target.has_later,
                             target.near, rules);
    }
    Sample sample = sample_at(target.times, target.t, target.near, method, rules);
    if (method == Method::cubic && sample.kind == Kind::blend && !target.near.outside()) {
        outer = widen_to_cubic(target.times, target.t, sample);
    }
    return sample;
}

/// Calls body.template operator()<Time>() with the type of the plan's times.
template <class Body>
decltype(auto) with_time_type(const CallPlan& plan, Body&& body) {
    switch (plan.time_dtype) {
        case DType::f32: return body.template operator()<float>();
        case DType::f64: return body.template operator()<double>();
        default: return body.template operator()<std::int64_t>();
    }
}

}  // namespace robocache::align_detail
