// The simple kernel for calls of one wave of warps, which is over before bandwidth counts: what they wait for is
// memory, twice, after the call before them. So a warp of an overlapped launch looks ahead while that call still runs:
// it searches in times that may not be there yet, and asks the second-level cache for the rows it finds. After the wait
// it reads its target again and the times around the row it had found, and may load the rows meanwhile. Where the times
// say that the row is right, as they nearly always do, the search is over; where not, it begins anew. So what was read
// too early decides nothing.
#pragma once

#include "core/cuda_bulk.cuh"
#include "core/cuda_overlap.cuh"
#include "ops/align/cuda_rows.cuh"

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
    std::int64_t begin = early ? load_early(s.offsets + e) : load_again(s.offsets + e);
    std::int64_t end = early ? load_early(s.offsets + e + 1) : load_again(s.offsets + e + 1);
    begin = begin < 0 ? 0 : (begin > s.num_rows ? s.num_rows : begin);
    end = end < begin ? begin : (end > s.num_rows ? s.num_rows : end);
    return {s.times + begin, end - begin, s.values + begin * s.value_row_stride, begin};
}

/// Rows begin, begin + stride, ... of an episode.
struct SparseSpan {
    std::int64_t begin;
    std::int32_t count;
    std::int32_t stride;
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

/// For an episode with too many rows for a window: four times where the target of each lane would be if they were
/// even, and 16 around each end of the tile, in one wait. `left` is set where the first ones say it, else -1. Returns
/// the rows that the others leave.
template <class Time>
__device__ __forceinline__ SparseSpan probe_early(const RowsStream<Time>& s, const RowsTile& tile,
                                                  const RowsEpisode<Time>& episode, Time t, int lane,
                                                  std::int64_t& left) {
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
    left = -1;
#pragma unroll
    for (int i = 0; i + 1 < near; ++i) {
        if (x[i] <= t && t < x[i + 1]) left = begin + i;
    }
    const unsigned low_side = __ballot_sync(0xffffffffU, before) & 0xffffU;
    const unsigned high_side = __ballot_sync(0xffffffffU, !before) >> half;
    const std::int64_t low = __shfl_sync(0xffffffffU, probe, low_side == 0 ? 0 : 31 - __clz(low_side));
    const std::int64_t high = __shfl_sync(0xffffffffU, probe, high_side == 0 ? 31 : half + __ffs(high_side) - 1);
    const std::int64_t rows = high > low ? high - low + 1 : 2;
    std::int32_t stride = 1;
    while (rows > static_cast<std::int64_t>(stride) * staged_times) stride *= 2;
    return {low, static_cast<std::int32_t>((rows + stride - 1) / stride), stride};
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

/// The last row of a window that is not after t, or its first; between the rows of a sparse one in global memory.
template <class Time>
__device__ __forceinline__ std::int64_t left_early(const RowsEpisode<Time>& episode, const SparseSpan& span,
                                                   const Time* window, Time t) {
    std::int32_t low = 0;
#pragma unroll
    for (std::int32_t step = staged_times / 2; step > 0; step /= 2) {
        if (window[low + step] <= t) low += step;
    }
    std::int64_t left = span.begin + static_cast<std::int64_t>(low) * span.stride;
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
    return left;
}

/// The row that probably is the left neighbour of this lane's target, inside the episode.
template <class Time>
__device__ __forceinline__ std::int64_t look_ahead(const RowsStream<Time>& s, const DeviceQuery& q,
                                                   const RowsTile& tile, const RowsEpisode<Time>& episode, int lane,
                                                   Time* window) {
    const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride + tile.first_target;
    const Time t = add_time(load_early(targets + (lane < tile.count ? lane : 0)), s.latency);
    if (episode.count < 2) return 0;
    const RowSpan expected = expected_rows(q, tile, episode.count, s.window_margin * 3 / 2, staged_times);
    SparseSpan span{expected.begin, expected.count, 1};
    std::int64_t left = -1;
    if (span.count == 0) span = probe_early(s, tile, episode, t, lane, left);
    if (!__all_sync(0xffffffffU, left >= 0)) {
        stage_early(episode, span, lane, window);
        if (left < 0) left = left_early(episode, span, window, t);
    }
    return left > episode.count - 2 ? episode.count - 2 : left;
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

/// The times around a row that was found ahead, and the target, as they are after the wait.
template <class Time>
struct TimesAgain {
    Time before;
    Time after;
    Time beyond;
    Time target;
    bool has_beyond;

    /// All on their way at once. The episode has row + 1.
    __device__ __forceinline__ TimesAgain(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                          const RowsEpisode<Time>& episode, std::int32_t row, std::int64_t j) {
        has_beyond = row + 2 < episode.count;
        before = load_again(episode.times + row);
        after = load_again(episode.times + row + 1);
        beyond = load_again(episode.times + row + (has_beyond ? 2 : 1));
        const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride;
        target = add_time(load_again(targets + j), s.latency);
    }

    /// The row is the left neighbour, and the next one the right one, as in find_in.
    __device__ __forceinline__ bool agree() const {
        return before <= target && target < after && (!has_beyond || beyond != after);
    }

    __device__ __forceinline__ Sample sample(const Rules& rules, std::int32_t row) const {
        return sample_inside<float>(target, {row, row + 1, before == target}, before, after, Method::linear, rules);
    }
};

/// The sample of a target, given the row that was found ahead.
template <class Time>
__device__ __forceinline__ Sample sample_again(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                               const RowsEpisode<Time>& episode, std::int32_t row, std::int64_t j) {
    if (episode.count == 0) return {{0, 0}, 0.0, Kind::zero, false};
    if (row + 1 < episode.count) {
        const TimesAgain<Time> again(s, q, tile, episode, row, j);
        if (again.agree()) return again.sample(s.rules, row);
        return find_far<float>(s, episode.times, episode.count, again.target).sample;
    }
    const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride;
    return find_far<float>(s, episode.times, episode.count, add_time(load_again(targets + j), s.latency)).sample;
}

/// What becomes of a target beside two rows that were found ahead: a blend of them, or one of them as it is.
enum class AheadKind : std::int32_t { blend, left, right, other };

struct AheadResult {
    float weight;
    AheadKind kind;
};

/// What the times say after the wait. Targets before the first row and after the last one are held here if they can be,
/// as in sample_outside: a warp that leaves for code that no other one needs waits for that code to arrive.
template <class Time>
__device__ __forceinline__ AheadResult result_again(const RowsStream<Time>& s, const TimesAgain<Time>& again,
                                                    std::int32_t row, bool& valid) {
    if (again.agree()) {
        const Sample sample = again.sample(s.rules, row);
        valid = sample.valid;
        return {static_cast<float>(sample.weight), sample.kind == Kind::blend ? AheadKind::blend : AheadKind::left};
    }
    const bool before = row == 0 && again.target < again.before && again.before != again.after;
    const bool after = !again.has_beyond && again.after <= again.target;
    if (!before && !after) return {0.0F, AheadKind::other};
    const Gap<Time> away = before ? distance(again.target, again.before) : distance(again.after, again.target);
    valid = again.after == again.target || (s.rules.outside_valid && s.rules.allows(away));
    if ((before ? s.rules.before : s.rules.after) != Outside::hold) return {0.0F, AheadKind::other};
    return {0.0F, before ? AheadKind::left : AheadKind::right};
}

/// Words of 16 bytes of two rows on their way: a few for each lane, from word v0 of the tile on.
template <class T>
struct WordsAhead {
    static constexpr int unroll = 4;
    uint4 a[unroll];
    uint4 b[unroll];

    template <class Time>
    __device__ __forceinline__ void load(const RowsStream<Time>& s, const PlacedRow* placed, std::uint32_t v0,
                                         std::uint32_t total) {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * warp_size < total ? v0 + u * warp_size : 0;  // no branch around a load
            const std::uint32_t k = s.by_num_words.divide(v);
            const std::uint32_t at = (v - k * s.by_num_words.divisor) * 16;
            a[u] = __ldg(reinterpret_cast<const uint4*>(placed[k].a + at));
            b[u] = __ldg(reinterpret_cast<const uint4*>(placed[k].b + at));
        }
    }

    template <class Time>
    __device__ __forceinline__ void store(const RowsStream<Time>& s, const AheadResult* results, std::uint32_t v0,
                                          std::uint32_t total, char* out) const {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * warp_size;
            if (v >= total) continue;
            const std::uint32_t k = s.by_num_words.divide(v);
            const std::uint32_t at = (v - k * s.by_num_words.divisor) * 16;
            const AheadResult result = results[k];
            uint4 word = blend_words<T, 16>(a[u], b[u], result.weight);
            if (result.kind != AheadKind::blend) word = result.kind == AheadKind::left ? a[u] : b[u];
            store_word(out + k * s.out_target_stride + at, word);
        }
    }
};

/// Shared memory of a warp.
template <class Time>
struct AheadScratch {
    PlacedRow placed[warp_size];
    AheadResult results[warp_size];
    Time window[staged_times];
};

template <class Time>
__device__ __forceinline__ void write_valid(const RowsStream<Time>& s, std::int64_t b, std::int64_t j, bool valid) {
    if (s.valid.data == nullptr) return;
    static_cast<bool*>(s.valid.data)[b * s.valid.row_stride + j * s.valid.target_stride] = valid;
}

/// Writes the rows that were found ahead. They are on their way while the times say whether they are the ones, and with
/// which weights; where they are not all, nothing is written.
template <class Element, class Time>
__device__ __forceinline__ bool write_ahead(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                            const RowsEpisode<Time>& episode, std::int32_t ahead,
                                            AheadScratch<Time>& scratch) {
    const int lane = threadIdx.x % warp_size;
    const bool active = lane < tile.count;
    const auto last = static_cast<std::int32_t>(episode.count) - 2;
    const std::int32_t row = ahead < last ? ahead : last;
    const std::int64_t j = tile.first_target + (active ? lane : 0);
    const TimesAgain<Time> again(s, q, tile, episode, row, j);
    PlacedRow& placed = scratch.placed[lane];
    placed.a = episode.values + row * s.value_row_stride;
    placed.b = placed.a + s.value_row_stride;
    __syncwarp();
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count) * s.num_words;
    WordsAhead<Element> words;
    words.load(s, scratch.placed, lane, total);
    bool valid = false;
    const AheadResult result = result_again(s, again, row, valid);
    if (!__all_sync(0xffffffffU, !active || result.kind != AheadKind::other)) return false;
    scratch.results[lane] = result;
    if (active) write_valid(s, tile.row, j, valid);
    __syncwarp();
    char* out = s.out + tile.row * s.out_row_stride + tile.first_target * s.out_target_stride;
    words.store(s, scratch.results, lane, total, out);
    for (std::uint32_t v0 = WordsAhead<Element>::unroll * warp_size; v0 < total;
         v0 += WordsAhead<Element>::unroll * warp_size) {
        words.load(s, scratch.placed, v0 + lane, total);
        words.store(s, scratch.results, v0 + lane, total, out);
    }
    return true;
}

template <class Element>
constexpr Format widest_format() {
    return __is_same(Element, float) ? Format::f32x4 : __is_same(Element, Half) ? Format::f16x8 : Format::bf16x8;
}

/// align_rows for plain calls, wide rows. f32 is what all its elements are computed in.
template <class Time, class Element, int capacity>
__global__ __launch_bounds__(block_threads, blocks_per_multiprocessor(Shape::wide)) void align_ahead(
    const __grid_constant__ RowsTable<Time, capacity> table) {
    extern __shared__ __align__(16) char ahead_scratch[];
    const int lane = threadIdx.x % warp_size;
    const int warp = threadIdx.x / warp_size;
    AheadScratch<Time>& scratch = reinterpret_cast<AheadScratch<Time>*>(ahead_scratch)[warp];
    const std::uint32_t number = blockIdx.x * (blockDim.x / warp_size) + warp;
    const bool has_tile = number < table.num_tiles;
    const DeviceQuery& q = table.query;
    const RowsTile tile = rows_tile<Shape::wide, Asks::plain>(table, has_tile ? number : 0);
    const RowsStream<Time>& s = table.streams[tile.stream];
    allow_next_kernel();
    std::int32_t ahead = 0;
    if (has_tile) {
        const RowsEpisode<Time> episode = plain_episode<true>(s, tile.row);
        ahead = static_cast<std::int32_t>(look_ahead(s, q, tile, episode, lane, scratch.window));
        if (table.prefetches_rows) prefetch_tile(s, tile, episode, ahead, lane);
    }
    wait_for_earlier_work();
    if (!has_tile) return;
    const RowsEpisode<Time> episode = plain_episode<false>(s, tile.row);
    if constexpr (capacity == 1) {  // for several streams it was slower
        if (episode.count >= 2 && s.format == widest_format<Element>() &&
            write_ahead<Element>(s, q, tile, episode, ahead, scratch)) {
            return;
        }
        __syncwarp();
    }
    const bool active = lane < tile.count;
    PlacedRow& placed = scratch.placed[lane];
    if (active) {
        const std::int64_t j = tile.first_target + lane;
        const Sample sample = sample_again(s, q, tile, episode, ahead, j);
        put_row<float>(s, sample, episode.values, placed);
        write_valid(s, tile.row, j, sample.valid);
    }
    __syncwarp();
    const bool all_blend = __all_sync(0xffffffffU, !active || placed.b != nullptr);
    char* out = s.out + tile.row * s.out_row_stride + tile.first_target * s.out_target_stride;
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count) * s.num_words;
    write_rows<Element, false, 4>(all_blend, s, scratch.placed, nullptr, out, 0, total);
}

}  // namespace robocache::align_detail
