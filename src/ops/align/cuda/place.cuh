// Finding targets on the GPU: which rows a tile asks, and one search per target.
#pragma once

#include "ops/align/cuda/table.cuh"

namespace robocache::align_detail {

/// The part of the output that a block of the general kernel works on.
struct Tile {
    std::int64_t first_row;     // b
    std::int64_t first_target;  // j
    std::int32_t num_rows;
    std::int32_t num_targets;  // of each row

    __device__ std::int32_t count() const { return num_rows * num_targets; }
};

__device__ inline Tile tile_of(const DeviceStream& s, const DeviceQuery& q, std::int64_t number) {
    const std::int64_t index = number - s.first_tile;
    Tile tile;
    const std::int64_t row =
        index <= INT32_MAX ? s.by_tiles_per_row.divide(static_cast<std::uint32_t>(index)) : index / s.tiles_per_row;
    tile.first_row = row * s.rows_per_tile;
    tile.first_target = (index - row * s.tiles_per_row) * s.tile;
    const std::int64_t rows_left = q.num_rows - tile.first_row;
    const std::int64_t targets_left = q.num_targets - tile.first_target;
    tile.num_rows = static_cast<std::int32_t>(rows_left < s.rows_per_tile ? rows_left : s.rows_per_tile);
    tile.num_targets = static_cast<std::int32_t>(targets_left < s.tile ? targets_left : s.tile);
    return tile;
}

template <class Time>
__device__ inline Time target_at(const DeviceQuery& q, std::int64_t b, std::int64_t j) {
    const Time* times = static_cast<const Time*>(q.times) + b * q.time_row_stride;
    if (q.deltas == nullptr) return __ldg(times + j * q.time_target_stride);
    return add_time(__ldg(times), __ldg(static_cast<const Time*>(q.deltas) + j * q.delta_stride));
}

template <class Time>
struct DeviceEpisode {
    EpisodeTimes<Time> times;
    const char* values;
    std::int64_t first_row;
};

/// Episodes out of range have no rows; offsets out of order are clamped: memory stays safe without checks.
template <class Time>
__device__ inline DeviceEpisode<Time> episode_at(const DeviceStream& s, const DeviceQuery& q, std::int64_t b) {
    std::int64_t e = s.num_episodes == 1 ? 0 : b;
    if (q.episode != nullptr) e = __ldg(q.episode + b * q.episode_stride);
    const Time* times = static_cast<const Time*>(s.times);
    if (e < 0 || e >= s.num_episodes) return {{times, s.time_row_stride, 0}, s.values, 0};
    if (s.offsets == nullptr) {
        return {{times + e * s.time_episode_stride, s.time_row_stride, s.num_rows},
                s.values + e * s.value_episode_stride,
                0};
    }
    std::int64_t begin = __ldg(s.offsets + e * s.offsets_stride);
    std::int64_t end = __ldg(s.offsets + (e + 1) * s.offsets_stride);
    begin = begin < 0 ? 0 : (begin > s.num_rows ? s.num_rows : begin);
    end = end < begin ? begin : (end > s.num_rows ? s.num_rows : end);
    return {{times + begin * s.time_row_stride, s.time_row_stride, end - begin},
            s.values + begin * s.value_row_stride,
            begin};
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

__device__ inline void write_planes(const DeviceStream& s, std::int64_t b, std::int64_t j, std::int64_t index,
                                    bool valid) {
    if (s.valid.data != nullptr) {
        static_cast<bool*>(s.valid.data)[b * s.valid.row_stride + j * s.valid.target_stride] = valid;
    }
    if (s.index.data != nullptr) {
        static_cast<std::int64_t*>(s.index.data)[b * s.index.row_stride + j * s.index.target_stride] = index;
    }
}

template <int capacity>
__device__ inline const DeviceStream& stream_of(const DeviceTable<capacity>& table, std::int64_t number) {
    int i = 0;
    while (i + 1 < table.num_streams && number >= table.streams[i + 1].first_tile) ++i;
    return table.streams[i];
}

}  // namespace robocache::align_detail
