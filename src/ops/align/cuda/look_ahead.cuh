// Before the wait of an overlapped launch: the row a target will probably be at, from times that may not be there yet,
// and rows asked for ahead. Nothing here decides anything; see ahead.cuh.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/align/cuda/rows.cuh"

namespace robocache::align_detail {

/// Before the wait. Leaves nothing behind in the first-level cache, which does not see what others write.
template <class T>
__device__ __forceinline__ T load_early(const T* from) {
    T x;
    if constexpr (__is_same(T, float)) {
        asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    } else if constexpr (__is_same(T, double)) {
        asm volatile("ld.global.cg.f64 %0, [%1];" : "=d"(x) : "l"(from) : "memory");
    } else {
        asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    }
    return x;
}

/// After the wait. The compiler must not take it for a load from before.
template <class T>
__device__ __forceinline__ T load_again(const T* from) {
    T x;
    if constexpr (__is_same(T, float)) {
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    } else if constexpr (__is_same(T, double)) {
        asm volatile("ld.global.f64 %0, [%1];" : "=d"(x) : "l"(from) : "memory");
    } else {
        asm volatile("ld.global.s64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    }
    return x;
}

/// rows_episode of a plain call, early or again. Offsets that are not there yet are clamped like wrong ones.
template <bool early, class Time>
__device__ __forceinline__ RowsEpisode<Time> plain_episode(const RowsStream<Time>& s, std::int64_t b) {
    const std::int64_t e = s.num_episodes == 1 ? 0 : b;
    if (s.offsets == nullptr) {
        return {s.times + e * s.time_episode_stride, s.num_rows, s.values + e * s.value_episode_stride, 0};
    }
    const auto offset = [&](std::int64_t i) { return early ? load_early(s.offsets + i) : load_again(s.offsets + i); };
    const auto [begin, end] = clamped_rows(offset(e), offset(e + 1), s.num_rows);
    return {s.times + begin, end - begin, s.values + begin * s.value_row_stride, begin};
}

/// Rows begin, begin + stride, ... of an episode.
struct SparseSpan {
    std::int64_t begin;
    std::int32_t count;
    std::int32_t stride;
};

/// The rows around a target, as they were found before the wait: the last one at or before it, and the last one that
/// has the next later time. left below 0: not found.
struct RowsAhead {
    std::int64_t left;
    std::int64_t right;
};

/// Where a time would be among evenly spaced ones.
template <class Time>
__device__ __forceinline__ std::int64_t even_row(Time first, Time last, std::int64_t count, Time t) {
    if (!(first < t)) return 0;
    if (!(t < last)) return count - 1;
    const float share = __fdividef(static_cast<float>(distance(first, t)), static_cast<float>(distance(first, last)));
    const auto row = static_cast<std::int64_t>(share * static_cast<float>(count - 1));
    return row < 0 ? 0 : (row > count - 1 ? count - 1 : row);
}

/// A search by each half of a warp for its own `end`. Each round divides the remaining rows into sixteen parts, until
/// at most `enough` rows remain. Returns the first of them in the first half of the warp, the last of them in the
/// second.
template <class Time>
__device__ __forceinline__ std::int64_t bracket_early(const RowsEpisode<Time>& episode, Time end, int lane,
                                                      std::int64_t enough) {
    constexpr int half = warp_size / 2;
    const bool last_half = lane >= half;
    std::int64_t low = 0;
    std::int64_t high = episode.count - 1;
    while (__any_sync(0xffffffffU, high - low > enough)) {
        const std::int64_t step = (high - low + half - 1) / half;
        const std::int64_t row = low + (lane % half) * step;
        const bool before = row <= high && load_early(episode.times + row) <= end;
        const unsigned all = __ballot_sync(0xffffffffU, before);
        const int parts = __popc(last_half ? all >> half : all & 0xffffU);
        const std::int64_t begin = low + (parts > 0 ? parts - 1 : 0) * step;
        high = parts > 0 && begin + step < high ? begin + step : (parts > 0 ? high : low);
        low = begin;
    }
    return last_half ? high : low;
}

/// For an episode with too many rows for a window: four times where the target of each lane would be if they were
/// even, and 16 around each end of the tile, in one wait. `rows` is set where the first ones show it. Returns the rows
/// between the others; if the times are so uneven that these miss an end of the tile, bracket_early finds it.
template <class Time>
__device__ __forceinline__ SparseSpan probe_early(const RowsStream<Time>& s, const RowsTile& tile,
                                                  const RowsEpisode<Time>& episode, Time t, int lane, RowsAhead& rows) {
    constexpr int half = warp_size / 2;
    constexpr int near = 4;
    const std::int64_t count = episode.count;
    const Time first = load_early(episode.times);
    const Time last = load_early(episode.times + count - 1);
    const Time t_low = __shfl_sync(0xffffffffU, t, 0);
    const Time t_high = __shfl_sync(0xffffffffU, t, tile.count - 1);
    const Time end = lane < half ? t_low : t_high;
    const std::int64_t pitch = s.window_margin / (half / 2 - 1) + 1;
    std::int64_t probe =
        even_row(first, last, count, end) + pitch * (lane % half - (lane < half ? half / 2 : half / 2 - 1));
    probe = probe < 0 ? 0 : (probe > count - 1 ? count - 1 : probe);
    std::int64_t begin = even_row(first, last, count, t) - 1;
    begin = begin < 0 ? 0 : (begin > count - near ? count - near : begin);
    Time x[near];
#pragma unroll
    for (int i = 0; i < near; ++i) x[i] = load_early(episode.times + begin + i);
    const bool before = load_early(episode.times + probe) <= end;
#pragma unroll
    for (int i = 0; i + 1 < near; ++i) {
        if (x[i] <= t && t < x[i + 1]) rows = {begin + i, begin + i + 1};
        if (x[i] == x[i + 1] && rows.right == begin + i) ++rows.right;
    }
    if (rows.right == begin + near - 1 && rows.right < count - 1) rows = {-1, -1};  // its time may repeat
    const unsigned low_side = __ballot_sync(0xffffffffU, before) & 0xffffU;
    const unsigned high_side = __ballot_sync(0xffffffffU, !before) >> half;
    std::int64_t low = __shfl_sync(0xffffffffU, probe, low_side == 0 ? 0 : 31 - __clz(low_side));
    std::int64_t high = __shfl_sync(0xffffffffU, probe, high_side == 0 ? 31 : half + __ffs(high_side) - 1);
    const bool misses = (low_side == 0 && low > 0) || (high_side == 0 && high < count - 1);
    if (misses && !__all_sync(0xffffffffU, rows.left >= 0)) {
        const std::int64_t found = bracket_early(episode, end, lane, pitch);
        low = __shfl_sync(0xffffffffU, found, 0);
        high = __shfl_sync(0xffffffffU, found, half);
    }
    const std::int64_t num_rows = high > low ? high - low + 1 : 2;
    std::int32_t stride = 1;
    while (num_rows > static_cast<std::int64_t>(stride) * staged_times) stride *= 2;
    return {low, static_cast<std::int32_t>((num_rows + stride - 1) / stride), stride};
}

/// Brings times into shared memory; what is beyond them there is later than every target.
template <class Time>
__device__ __forceinline__ void stage_early(const RowsEpisode<Time>& episode, const SparseSpan& span, int lane,
                                            Time* window) {
    constexpr int rounds = staged_times / warp_size;
    Time x[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
        const std::int64_t row = span.begin + static_cast<std::int64_t>(lane + i * warp_size) * span.stride;
        if (lane + i * warp_size < span.count && row < episode.count) {
            x[i] = load_early(episode.times + row);
        } else {
            x[i] = latest<Time>();
        }
    }
#pragma unroll
    for (int i = 0; i < rounds; ++i) window[lane + i * warp_size] = x[i];
    __syncwarp();
}

/// The left row is the last one of a window that is not after t, or its first; between the rows of a sparse one it is
/// searched for in global memory.
template <class Time>
__device__ __forceinline__ RowsAhead rows_early(const RowsEpisode<Time>& episode, const SparseSpan& span,
                                                const Time* window, Time t) {
    std::int32_t low = 0;
#pragma unroll
    for (std::int32_t step = staged_times / 2; step > 0; step /= 2) {
        if (window[low + step] <= t) low += step;
    }
    std::int64_t left = span.begin + static_cast<std::int64_t>(low) * span.stride;
    if (span.stride == 1) {
        const std::int32_t next = low + 1 < staged_times ? low + 1 : low;
        return {left, span.begin + last_of_time(window, staged_times, staged_times, next)};
    }
    constexpr int near = 8;
    std::int32_t stride = span.stride;
    for (; stride > near; stride /= 2) {
        const std::int64_t middle = left + stride / 2;
        if (middle < episode.count && load_early(episode.times + middle) <= t) left = middle;
    }
    if (stride > 1) {
        int later = 0;
#pragma unroll
        for (int i = 1; i < near; ++i) {
            const bool inside = i < stride && left + i < episode.count;
            later += inside && load_early(episode.times + left + i) <= t ? 1 : 0;
        }
        left += later;
    }
    std::int64_t right = left + 1;
#pragma unroll
    for (int i = 1; i < near / 2; ++i) {
        const std::int64_t row = left + i;
        const bool repeats =
            row + 1 < episode.count && load_early(episode.times + row) == load_early(episode.times + row + 1);
        if (right == row && repeats) ++right;
    }
    return {left, right};
}

/// The rows that probably are around this lane's target, inside the episode.
template <class Time>
__device__ __forceinline__ RowsAhead look_ahead(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                                const RowsEpisode<Time>& episode, int lane, Time* window) {
    const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride + tile.first_target;
    const Time t = add_time(load_early(targets + (lane < tile.count ? lane : 0)), s.latency);
    if (episode.count < 2) return {0, 1};
    const RowSpan expected = expected_rows(q, tile, episode.count, s.window_margin * 3 / 2, staged_times);
    SparseSpan span{expected.begin, expected.count, 1};
    RowsAhead rows{-1, -1};
    if (span.count == 0) span = probe_early(s, tile, episode, t, lane, rows);
    if (!__all_sync(0xffffffffU, rows.left >= 0)) {
        stage_early(episode, span, lane, window);
        if (rows.left < 0) rows = rows_early(episode, span, window, t);
    }
    const std::int64_t left = rows.left > episode.count - 2 ? episode.count - 2 : rows.left;
    const std::int64_t right = rows.right > episode.count - 1 ? episode.count - 1 : rows.right;
    return {left, right > left ? right : left + 1};
}

/// Asks the second-level cache for rows [row, row + count), which lie side by side: exactly these bytes, up to the
/// words of 16 that are inside the episode. (prefetch.global.L2 brings lines of 128 bytes, too many where rows are
/// skipped.)
template <class Time>
__device__ __forceinline__ void prefetch_rows(const RowsStream<Time>& s, const RowsEpisode<Time>& episode,
                                              std::int64_t row, std::int64_t count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const char* from = episode.values + row * s.row_bytes;
    const char* end = from + count * s.row_bytes;
    const auto before = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(from) % 16);
    const auto after = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(end) % 16);
    if (before != 0) from += row > 0 && s.row_bytes >= 16 ? -before : 16 - before;
    if (after != 0) end += row + count < episode.count && s.row_bytes >= 16 ? 16 - after : -after;
    if (from >= end) return;
    prefetch(from, static_cast<std::uint32_t>(end - from));
#endif
}

/// The two rows of every target: all at once where that brings few others.
template <class Time>
__device__ __forceinline__ void prefetch_tile(const RowsStream<Time>& s, const RowsTile& tile,
                                              const RowsEpisode<Time>& episode, std::int64_t left, int lane) {
    if (episode.count < 2) return;
    const std::int64_t low = __shfl_sync(0xffffffffU, left, 0);
    const std::int64_t rows = __shfl_sync(0xffffffffU, left, tile.count - 1) + 2 - low;
    if (rows > 0 && rows <= tile.count * 5 / 2) {
        if (lane == 0) prefetch_rows(s, episode, low, rows);
    } else if (lane < tile.count) {
        prefetch_rows(s, episode, left, 2);
    }
}

}  // namespace robocache::align_detail
