// What the general kernel and the gradient share: one target found by one thread, and where a channel is in memory.
#pragma once

#include "ops/align/cuda/search.cuh"
#include "ops/align/cuda/tables.hpp"

namespace robocache::align_detail {

/// A target, and the episode it is in.
template <class Time>
struct FoundTarget {
    std::int64_t number;  // of the episode
    EpisodeRows<Time> episode;
    Target<Time> target;

    __device__ bool has_rows() const { return episode.times.count > 0; }
};

/// Target j of query row b. In an episode without rows it has no neighbors.
template <class Time>
__device__ __forceinline__ FoundTarget<Time> find_target(const DeviceStream& s, const DeviceQuery& q, std::int64_t b,
                                                         std::int64_t j) {
    FoundTarget<Time> found{};
    found.number = episode_of(q, s, b);
    found.episode = episode_rows<Time>(s, found.number);
    found.target.near = {-1, -1, false};
    if (!found.has_rows()) return found;
    found.target = target_at(q, s, found.episode.times, b, j,
                             [](const EpisodeTimes<Time>& times, Time t) { return search_by_guess(times, t); });
    return found;
}

/// Elements from the first one of a row: in the values of the stream, in its output, and in the values that a gradient
/// reads.
struct ChannelOffsets {
    std::int64_t value;
    std::int64_t out;
    std::int64_t input;
};

/// `outer` counts the outer channel dimensions, `inner` the inner one.
__device__ __forceinline__ ChannelOffsets offsets_of(const DeviceChannels& c, std::int64_t outer, std::int64_t inner) {
    ChannelOffsets offsets{inner * c.inner.value_stride, inner * c.inner.out_stride, inner * c.inner.input_stride};
    for (int d = c.num_outer - 1; d >= 0; --d) {
        const std::int64_t i = outer % c.outer[d].size;
        outer /= c.outer[d].size;
        offsets.value += i * c.outer[d].value_stride;
        offsets.out += i * c.outer[d].out_stride;
        offsets.input += i * c.outer[d].input_stride;
    }
    return offsets;
}

}  // namespace robocache::align_detail
