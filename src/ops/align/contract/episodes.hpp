// Reading a plan on the CPU: the target times of a query row and the rows of an episode.
#pragma once

#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::align_detail {

/// The rows of one episode of one stream.
template <class Time>
struct EpisodeRows {
    EpisodeTimes<Time> times;
    const char* values;
    std::int64_t first_row;  // what the index output counts from
};

/// Episodes out of range have no rows; offsets out of order are clamped. Memory stays safe without checks.
template <class Time>
EpisodeRows<Time> episode_rows(const StreamPlan& stream, std::int64_t episode) {
    const auto* times = reinterpret_cast<const Time*>(stream.times);
    const std::int64_t time_stride = stream.time_row_stride;
    if (episode < 0 || episode >= stream.num_episodes) return {{times, time_stride, 0}, stream.values, 0};
    if (stream.offsets == nullptr) {
        return {{times + episode * stream.time_episode_stride, time_stride, stream.num_rows},
                stream.values + episode * stream.value_episode_stride,
                0};
    }
    const auto [begin, end] = clamped_rows(stream.offsets[episode * stream.offsets_stride],
                                           stream.offsets[(episode + 1) * stream.offsets_stride], stream.num_rows);
    return {{times + begin * time_stride, time_stride, end - begin},
            stream.values + begin * stream.value_row_stride,
            begin};
}

inline std::int64_t episode_of(const CallPlan& plan, const StreamPlan& stream, std::int64_t b) {
    if (plan.episode != nullptr) return plan.episode[b * plan.episode_stride];
    return stream.num_episodes == 1 ? 0 : b;
}

/// Target j of query row b as asked for, before the stream's latency.
template <class Time>
Time target_time(const CallPlan& plan, std::int64_t b, std::int64_t j) {
    const auto* times = reinterpret_cast<const Time*>(plan.times) + b * plan.time_row_stride;
    if (plan.deltas == nullptr) return times[j * plan.time_target_stride];
    return add_time(times[0], reinterpret_cast<const Time*>(plan.deltas)[j * plan.delta_stride]);
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
