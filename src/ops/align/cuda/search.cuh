// The search for one target in global memory, for kernels that take any strides; how their targets are cut into tiles.
#pragma once

#include "ops/align/cuda/device_stream.cuh"

namespace robocache::align_detail {

/// How targets are cut into tiles, one for each block: targets of one row of the query, or whole rows.
struct Tiling {
    std::int64_t tiles_per_row;
    std::int32_t targets;  // of one row in a tile
    std::int32_t rows;     // of the query in a tile; above 1 only if a tile takes all targets of a row
};

/// The targets of a block.
struct Tile {
    std::int64_t first_row;     // b
    std::int64_t first_target;  // j
    std::int32_t num_rows;
    std::int32_t num_targets;  // of each row

    __device__ std::int32_t count() const { return num_rows * num_targets; }
};

__device__ __forceinline__ Tile tile_at(const Tiling& tiling, const DeviceQuery& q, std::int64_t number) {
    const std::int64_t group = number / tiling.tiles_per_row;
    const std::int64_t row = group * tiling.rows;
    const std::int64_t target = (number - group * tiling.tiles_per_row) * tiling.targets;
    const std::int64_t rows_left = q.num_rows - row;
    const std::int64_t targets_left = q.num_targets - target;
    return {row, target, static_cast<std::int32_t>(rows_left < tiling.rows ? rows_left : tiling.rows),
            static_cast<std::int32_t>(targets_left < tiling.targets ? targets_left : tiling.targets)};
}

/// last_at_or_before, beginning where evenly spaced times would have it: one wait for memory where times are nearly
/// even, about twice the logarithm of it at worst.
template <class Time>
__device__ inline std::int64_t search_by_guess(const EpisodeTimes<Time>& times, Time t) {
    const Time first = times[0];
    const Time last = times[times.count - 1];
    if (!(first <= t)) return -1;
    if (last <= t) return times.count - 1;
    std::int64_t low = 0;                 // times[low] <= t
    std::int64_t high = times.count - 1;  // times[high] > t
    const float share = static_cast<float>(distance(first, t)) / static_cast<float>(distance(first, last));
    auto probe = static_cast<std::int64_t>(share * static_cast<float>(high));
    probe = probe < 1 ? 1 : (probe >= high ? high - 1 : probe);
    if (high - low < 2) return low;
    // Four neighbors of the guess, on their way at once.
    const std::int64_t before = probe > 1 ? probe - 1 : 0;
    const std::int64_t after = probe + 1 < high ? probe + 1 : high;
    const std::int64_t beyond = probe + 2 < high ? probe + 2 : high;
    const Time t_before = times[before];
    const Time t_probe = times[probe];
    const Time t_after = times[after];
    const Time t_beyond = times[beyond];
    std::int64_t step = 2;
    if (t_before <= t && t < t_beyond) {
        return t < t_probe ? before : (t < t_after ? probe : after);
    }
    if (t_beyond <= t) {
        low = beyond;
        for (; low + step < high && times[low + step] <= t; step *= 4) low += step;
        high = low + step < high ? low + step : high;
    } else {
        high = before;
        for (; high - step > low && !(times[high - step] <= t); step *= 4) high -= step;
        low = high - step > low ? high - step : low;
    }
    return first_after(times, low + 1, high, t) - 1;
}

/// A target, the episode it is in, and its neighbors there.
template <class Time>
struct FoundTarget {
    DeviceEpisode<Time> episode;
    EpisodeTimes<Time> times;
    Time t;
    Neighbors near;
};

template <class Time>
__device__ __forceinline__ FoundTarget<Time> find_target(const DeviceStream& s, const DeviceQuery& q, std::int64_t b,
                                                         std::int64_t j) {
    FoundTarget<Time> found{};
    found.episode = s.episode<Time>(q.episode_of(s, b));
    found.times = found.episode.times;
    found.t = q.target<Time>(b, j, duration_as<Time>(s.latency));
    found.near = {-1, -1, false};
    if (found.times.count == 0) return found;
    found.near = neighbors_of(found.times, found.t, search_by_guess(found.times, found.t), gap_as<Time>(s.tolerance));
    return found;
}

}  // namespace robocache::align_detail
