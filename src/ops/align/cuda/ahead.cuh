// The simple kernel for calls of one wave of warps, which is over before bandwidth counts: what they wait for is
// memory, twice, after the call before them. So a warp of an overlapped launch looks ahead while that call still runs:
// it searches in times that may not be there yet, and asks the second-level cache for the rows it finds. After the wait
// it reads its target again and the times around the row it had found, and may load the rows meanwhile. Where the times
// say that the row is right, as they nearly always do, the search is over; where not, it begins anew. So what was read
// too early decides nothing.
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/look_ahead.cuh"

namespace robocache::align_detail {

/// Two rows of an episode, in few registers.
struct AheadPair {
    std::int32_t left;
    std::int32_t right;
};

/// The times around the rows that were found ahead, and the target, as they are after the wait.
template <class Time>
struct TimesAgain {
    Time before;  // of the left row
    Time next;    // of the one after it
    Time after;   // of the right row
    Time beyond;  // of the one after that
    Time target;
    bool has_beyond;

    /// All on their way at once. The episode has both rows, and left is before right.
    __device__ __forceinline__ TimesAgain(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                          const RowsEpisode<Time>& episode, const AheadPair& rows, std::int64_t j) {
        has_beyond = rows.right + 1 < episode.count;
        before = load_again(episode.times + rows.left);
        next = load_again(episode.times + rows.left + 1);
        after = load_again(episode.times + rows.right);
        beyond = load_again(episode.times + rows.right + (has_beyond ? 1 : 0));
        const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride;
        target = add_time(load_again(targets + j), s.latency);
    }

    /// The rows are the neighbors, as in find_in: rows between them have the time of the right one.
    __device__ __forceinline__ bool agree() const {
        return before <= target && target < next && next == after && (!has_beyond || beyond != after);
    }

    __device__ __forceinline__ Sample sample(const Rules& rules, const AheadPair& rows) const {
        return sample_inside<float>(target, {rows.left, rows.right, before == target}, before, after, Method::linear,
                                    rules);
    }
};

/// The rows found ahead, inside an episode of two rows or more: it may be another one after the wait.
template <class Time>
__device__ __forceinline__ AheadPair rows_inside(const AheadPair& rows, const RowsEpisode<Time>& episode) {
    const auto last = static_cast<std::int32_t>(episode.count) - 1;
    const std::int32_t left = rows.left < last - 1 ? rows.left : last - 1;
    const std::int32_t right = rows.right < last ? rows.right : last;
    return {left, right > left ? right : left + 1};
}

/// The sample of a target, given the rows that were found ahead.
template <class Time>
__device__ __forceinline__ Sample sample_again(const RowsStream<Time>& s, const DeviceQuery& q, const RowsTile& tile,
                                               const RowsEpisode<Time>& episode, const AheadPair& ahead,
                                               std::int64_t j) {
    if (episode.count == 0) return {{0, 0}, 0.0, Kind::zero, false};
    if (episode.count >= 2) {
        const AheadPair rows = rows_inside(ahead, episode);
        const TimesAgain<Time> again(s, q, tile, episode, rows, j);
        if (again.agree()) return again.sample(s.rules, rows);
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
                                                    const AheadPair& rows, bool& valid) {
    if (again.agree()) {
        const Sample sample = again.sample(s.rules, rows);
        valid = sample.valid;
        return {static_cast<float>(sample.weight), sample.kind == Kind::blend ? AheadKind::blend : AheadKind::left};
    }
    const bool before = rows.left == 0 && again.target < again.before && again.before != again.next;
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
                                            const RowsEpisode<Time>& episode, const AheadPair& ahead,
                                            AheadScratch<Time>& scratch) {
    const int lane = threadIdx.x % warp_size;
    const bool active = lane < tile.count;
    const AheadPair rows = rows_inside(ahead, episode);
    const std::int64_t j = tile.first_target + (active ? lane : 0);
    const TimesAgain<Time> again(s, q, tile, episode, rows, j);
    PlacedRow& placed = scratch.placed[lane];
    placed.a = episode.values + rows.left * s.value_row_stride;
    placed.b = episode.values + rows.right * s.value_row_stride;
    __syncwarp();
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count) * s.num_words;
    WordsAhead<Element> words;
    words.load(s, scratch.placed, lane, total);
    bool valid = false;
    const AheadResult result = result_again(s, again, rows, valid);
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
    AheadPair ahead{0, 1};
    if (has_tile) {
        const RowsEpisode<Time> episode = plain_episode<true>(s, tile.row);
        const RowsAhead rows = look_ahead(s, q, tile, episode, lane, scratch.window);
        ahead = {static_cast<std::int32_t>(rows.left), static_cast<std::int32_t>(rows.right)};
        if (table.prefetches_rows) prefetch_tile(s, tile, episode, rows.left, lane);
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
