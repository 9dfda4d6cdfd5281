// What the kernels of rows are told, how targets are shared out to warps, and the times that a warp searches.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/align/cuda/device_stream.cuh"
#include "ops/align/cuda/tuning.hpp"
#include "ops/align/cuda/words.cuh"

namespace robocache::align_detail {

/// One target in shared memory. b null: row a as it is; a null too: the weight itself, 0 or NaN.
struct PlacedRow {
    const char* a;
    const char* b;
    union {  // converted once here, not once per word
        double weight_f64;
        float weight_f32;
    };

    template <class Compute>
    __device__ Compute weight() const {
        if constexpr (sizeof(Compute) == 8) {
            return weight_f64;
        } else {
            return weight_f32;
        }
    }
};

/// What the kernel is told of one stream. Parameters are cold at every launch, so what all warps read comes first.
template <class Time>
struct RowsStream {
    const char* values;
    const Time* times;  // side by side inside an episode
    char* out;
    const std::int64_t* offsets;  // null unless ragged
    std::int64_t num_rows;
    std::int64_t num_episodes;
    std::int64_t value_episode_stride;  // bytes
    std::int64_t time_episode_stride;   // elements
    std::int64_t out_row_stride;        // bytes
    std::int64_t value_row_stride;      // bytes
    std::int64_t out_target_stride;     // bytes
    std::uint32_t first_tile;           // of a query row, or of all where rows have few targets
    std::int32_t tile;                  // targets of one row
    std::int32_t rows_per_tile;         // 1, or several where rows have few targets
    std::int32_t parts;                 // tiles that share the width of one target
    std::uint32_t num_words;            // of a row
    Divisor by_num_words;
    Divisor by_tile;             // rows_per_tile > 1
    std::int32_t window_margin;  // rows
    std::int32_t row_bytes;
    Method method;
    Format format;
    Time latency;
    Rules rules;
    Plane valid;
    Plane index;
};

template <class Time, int capacity>
struct RowsTable {
    DeviceQuery query;
    std::uint32_t num_tiles;
    std::int32_t num_streams;
    Divisor by_tiles_per_row;  // of all streams
    bool prefetches_rows;      // align_ahead
    RowsStream<Time> streams[capacity];
};

/// How a warp shares its targets out.
enum class Shape {
    wide,    // of one query row; lanes move the rows together
    narrow,  // of one query row; a lane moves the row of its own target
    many,    // whole query rows that have few targets; every lane searches an episode of its own
};

/// Shared memory of a warp: its window of times, later (narrow) its results.
template <class Time>
constexpr int scratch_size(Shape shape) {
    const int window = staged_times * static_cast<int>(sizeof(Time));
    return shape == Shape::narrow && window < warp_size * narrow_row_bytes ? warp_size * narrow_row_bytes : window;
}

/// What the usual call is like, told to the compiler: linear, episode b for row b, targets side by side, no index asked
/// for, fewer than 2^31 targets and rows.
enum class Asks { anything, plain };

/// The targets of a warp.
struct RowsTile {
    std::int64_t row;           // b of the first
    std::int64_t first_target;  // j of the first
    std::int32_t count;
    std::int32_t part;
    std::int32_t stream;
};

/// Tiles are numbered query row by query row, and there stream by stream: what a row of the output is put together
/// from is written at about the same time, which memory likes. Where rows have few targets, stream by stream.
template <Shape shape, Asks asks, class Time, int capacity>
__device__ __forceinline__ RowsTile rows_tile(const RowsTable<Time, capacity>& table, std::uint32_t number) {
    RowsTile tile{0, 0, 0, 0, 0};
    std::uint32_t row = 0;
    if constexpr (shape != Shape::many) {
        row = table.by_tiles_per_row.divide(number);
        number -= row * table.by_tiles_per_row.divisor;
    }
    if constexpr (capacity > 1) {
        while (tile.stream + 1 < table.num_streams && number >= table.streams[tile.stream + 1].first_tile) {
            ++tile.stream;
        }
        number -= table.streams[tile.stream].first_tile;
    }
    const RowsStream<Time>& s = table.streams[tile.stream];
    const DeviceQuery& q = table.query;
    if constexpr (shape == Shape::many) {
        tile.row = static_cast<std::int64_t>(number) * s.rows_per_tile;
        const std::int64_t left = q.num_rows - tile.row;
        tile.count = static_cast<std::int32_t>((left < s.rows_per_tile ? left : s.rows_per_tile) * q.num_targets);
    } else if constexpr (asks == Asks::plain) {
        const std::uint32_t first = number * static_cast<std::uint32_t>(s.tile);
        const auto left = static_cast<std::int32_t>(static_cast<std::uint32_t>(q.num_targets) - first);
        tile.row = row;
        tile.first_target = first;
        tile.count = left < s.tile ? left : s.tile;
    } else {
        if (s.parts > 1) {
            const std::uint32_t index = number / s.parts;
            tile.part = static_cast<std::int32_t>(number - index * s.parts);
            number = index;
        }
        tile.row = row;
        tile.first_target = static_cast<std::int64_t>(number) * s.tile;
        const std::int64_t left = q.num_targets - tile.first_target;
        tile.count = left < s.tile ? static_cast<std::int32_t>(left) : s.tile;
    }
    return tile;
}

template <class Time>
__device__ __forceinline__ Time latest() {
    return static_cast<Time>(__builtin_inff());
}
template <>
__device__ __forceinline__ std::int64_t latest() {
    return INT64_MAX;
}

template <class Time>
struct RowsEpisode {
    const Time* times;
    std::int64_t count;
    const char* values;
    std::int64_t first_row;
};

/// Episodes out of range have no rows; offsets out of order are clamped: memory stays safe without checks.
template <Asks asks, class Time>
__device__ __forceinline__ RowsEpisode<Time> rows_episode(const RowsStream<Time>& s, const DeviceQuery& q,
                                                          std::int64_t b) {
    std::int64_t e = s.num_episodes == 1 ? 0 : b;
    const Time* times = s.times;
    if constexpr (asks != Asks::plain) {
        if (q.episode != nullptr) e = __ldg(q.episode + b * q.episode_stride);
        if (e < 0 || e >= s.num_episodes) return {times, 0, s.values, 0};
    }
    if (s.offsets == nullptr) {
        return {times + e * s.time_episode_stride, s.num_rows, s.values + e * s.value_episode_stride, 0};
    }
    const auto [begin, end] = clamped_rows(__ldg(s.offsets + e), __ldg(s.offsets + e + 1), s.num_rows);
    return {times + begin, end - begin, s.values + begin * s.value_row_stride, begin};
}

/// Rows [begin, begin + count) of an episode.
struct RowSpan {
    std::int64_t begin;
    std::int32_t count;
};

/// The rows that the targets of this tile would need if times and targets were both spread evenly, with a margin; none
/// where that is more than `most`. It does not wait for the targets to arrive.
__device__ __forceinline__ RowSpan expected_rows(const DeviceQuery& q, const RowsTile& tile, std::int64_t count,
                                                 std::int32_t margin, std::int32_t most) {
    const float rows_per_target = __fdividef(static_cast<float>(count), static_cast<float>(q.num_targets));
    const float from = static_cast<float>(tile.first_target) * rows_per_target - static_cast<float>(margin);
    const float size = static_cast<float>(tile.count) * rows_per_target + 2 * static_cast<float>(margin);
    if (!(size < static_cast<float>(count))) return {0, count <= most ? static_cast<std::int32_t>(count) : 0};
    if (!(size <= static_cast<float>(most))) return {0, 0};
    const auto whole = static_cast<std::int32_t>(size);
    auto begin = static_cast<std::int64_t>(from);
    begin = begin > count - whole ? count - whole : begin;
    return {begin < 0 ? 0 : begin, whole};
}

/// Sends times on their way into the shared memory of a warp, which fetched() waits for, and fills up to a power of two
/// with what is later than every target. Returns that power.
template <class Time>
__device__ __forceinline__ std::int32_t fetch_times(const Time* from, std::int32_t count, std::int32_t lane,
                                                    Time* shared) {
    const std::int32_t power = count <= 1 ? count : 1 << (32 - __clz(count - 1));
    for (std::int32_t i = lane; i < power; i += warp_size) {
        if (i < count) {
            const auto to = shared_address(shared + i);
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from + i),
                         "n"(static_cast<int>(sizeof(Time)))
                         : "memory");
        } else {
            shared[i] = latest<Time>();
        }
    }
    return power;
}

__device__ __forceinline__ void wait_for_times() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

}  // namespace robocache::align_detail
