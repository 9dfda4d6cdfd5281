// The simple kernel: linear, previous, next and nearest, same dtype in and out, rows of plain memory. All streams of a
// call in one launch. Rows move in the widest accesses that their addresses allow.
//
// A warp works alone on a tile of up to 32 targets: it brings the times around them into shared memory, every lane
// finds one target there, then the lanes move the rows together (or, where rows are narrow, each its own). Warps that
// search and warps that move share a multiprocessor without waiting for each other.
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/search.cuh"
#include "ops/align/cuda/tile.cuh"
#include "ops/align/cuda/words.cuh"

namespace robocache::align_detail {

/// A sample, and the left neighbor it was found by (-1: none).
struct Found {
    Sample sample;
    std::int64_t left;
};

/// The search for those outside the window; `data` is in global memory, or in shared memory if the window has the whole
/// episode. Not inlined: its registers would be taken from every warp.
template <class Compute, class Time>
__device__ __noinline__ Found find_far(const RowsStream<Time>& s, const Time* data, std::int64_t count, Time t) {
    const EpisodeTimes<Time> times{data, 1, count};
    constexpr int num_probes = 5;
    if (count > num_probes) {
        // Where evenly spaced times would have it: five of them on their way at once usually say it all.
        const Time first = data[0];
        const Time last = data[count - 1];
        const float share =
            __fdividef(static_cast<float>(distance(first, t)), static_cast<float>(distance(first, last)));
        auto begin = static_cast<std::int64_t>(share * static_cast<float>(count - 1)) - 1;
        begin = begin < 0 ? 0 : (begin > count - num_probes ? count - num_probes : begin);
        Time x[num_probes];
#pragma unroll
        for (int i = 0; i < num_probes; ++i) x[i] = data[begin + i];
#pragma unroll
        for (int i = 0; i + 2 < num_probes; ++i) {
            if (x[i] <= t && t < x[i + 1] && x[i + 2] != x[i + 1]) {
                const std::int64_t left = begin + i;
                return {sample_inside<Compute>(t, {left, left + 1, x[i] == t}, x[i], x[i + 1], s.method, s.rules),
                        left};
            }
        }
    }
    const std::int64_t left = search_by_guess(times, t);
    return {sample_at(times, t, neighbors_of(times, t, left), s.method, s.rules), left};
}

/// The last of the first `count` places of a window that has the time of this one. `power`: all places of the window;
/// those after `count` may have the same time, if that is the latest there is.
template <class Time>
__device__ __forceinline__ std::int32_t last_of_time(const Time* window, std::int32_t power, std::int32_t count,
                                                     std::int32_t place) {
    const Time t = window[place];
    if (place + 1 >= count || window[place + 1] != t) return place;
    for (std::int32_t step = power / 2; step > 0; step /= 2) {
        if (place + step < count && window[place + step] <= t) place += step;
    }
    return place;
}

/// Neighbors and sample of one target. `window`: times of the rows of `span` in shared memory, filled up to `power`.
template <Asks asks, class Compute, class Time>
__device__ __forceinline__ Found find_in(const RowsStream<Time>& s, const RowsEpisode<Time>& episode,
                                         const RowSpan& span, std::int32_t power, const Time* window, Time t) {
    if (span.count > 1 && window[0] <= t && t < window[span.count - 1]) {
        std::int32_t low = 0;  // window[low] <= t, and t < window[low + 2 step]
        for (std::int32_t step = power / 2; step > 0; step /= 2) {
            if (window[low + step] <= t) low += step;
        }
        const std::int32_t right = last_of_time(window, power, span.count, low + 1);
        if (right + 1 < span.count || span.begin + span.count == episode.count) {  // else the time may repeat beyond
            const Time t_left = window[low];
            const std::int64_t left = span.begin + low;
            return {sample_inside<Compute>(t, {left, span.begin + right, t_left == t}, t_left, window[right],
                                           asks == Asks::plain ? Method::linear : s.method, s.rules),
                    left};
        }
    }
    const bool at_end = span.begin + span.count == episode.count;
    const bool before = span.count > 0 && span.begin == 0 && t < window[0];
    const bool after = span.count > 0 && at_end && window[span.count - 1] <= t;
    if ((before && s.rules.before == Outside::hold) || (after && s.rules.after == Outside::hold)) {  // sample_outside
        const std::int32_t place = before ? last_of_time(window, power, span.count, 0) : span.count - 1;
        const Time edge = window[place];
        const Gap<Time> away = before ? distance(t, edge) : distance(edge, t);
        const bool valid = (after && edge == t) || (s.rules.outside_valid && s.rules.allows(away));
        if (at_end || place + 1 < span.count) {
            return {row_sample(span.begin + place, valid), before ? -1 : span.begin + place};
        }
    }
    const bool whole = span.count == episode.count;
    return find_far<Compute>(s, whole ? window : episode.times, episode.count, t);
}

template <class Compute, class Time>
__device__ __forceinline__ void put_row(const RowsStream<Time>& s, const Sample& sample, const char* values,
                                        PlacedRow& placed) {
    placed.a = nullptr;
    placed.b = nullptr;
    double weight = 0.0;
    if (sample.kind == Kind::nan) {
        weight = __longlong_as_double(0x7ff8000000000000LL);
    } else if (sample.kind != Kind::zero) {
        placed.a = values + sample.rows[0] * s.value_row_stride;
        if (sample.kind == Kind::blend) {
            placed.b = values + sample.rows[1] * s.value_row_stride;
            weight = sample.weight;
        }
    }
    if constexpr (sizeof(Compute) == 8) {
        placed.weight_f64 = weight;
    } else {
        placed.weight_f32 = static_cast<float>(weight);
    }
}

/// Finds one target and notes its rows.
template <Asks asks, class Compute, class Time>
__device__ __forceinline__ void place_target(const RowsStream<Time>& s, const RowsEpisode<Time>& episode,
                                             const RowSpan& span, std::int32_t power, const Time* window, Time t,
                                             std::int64_t b, std::int64_t j, bool writes_planes, PlacedRow& placed) {
    Found found{{{0, 0}, 0.0, Kind::zero, false}, -1};
    if (episode.count > 0) found = find_in<asks, Compute>(s, episode, span, power, window, t);
    put_row<Compute>(s, found.sample, episode.values, placed);
    if (asks != Asks::plain && !writes_planes) return;
    if (s.valid.data != nullptr) {
        static_cast<bool*>(s.valid.data)[b * s.valid.row_stride + j * s.valid.target_stride] = found.sample.valid;
    }
    if (asks != Asks::plain && s.index.data != nullptr) {
        static_cast<std::int64_t*>(s.index.data)[b * s.index.row_stride + j * s.index.target_stride] =
            found.left < 0 ? -1 : episode.first_row + found.left;
    }
}

/// Moves words [begin, end) of the tile's rows, counted target by target. All loads of a round before the first use.
/// all_blend: every target blends two rows, the usual case, without a question per word. `outs`: where each target
/// goes, if they are of many rows.
template <class T, int bytes, bool many_rows, int unroll, bool all_blend, class Time>
__device__ __forceinline__ void write_words(const RowsStream<Time>& s, const PlacedRow* placed, char* const* outs,
                                            char* out, std::uint32_t begin, std::uint32_t end) {
    using W = typename Word<bytes>::type;
    using Compute = typename ComputeOf<T>::type;
    for (std::uint32_t v0 = begin + threadIdx.x % warp_size; v0 < end; v0 += unroll * warp_size) {
        W a[unroll];
        W b[unroll];
        std::uint32_t k[unroll];
        std::uint32_t at[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * warp_size < end ? v0 + u * warp_size : v0;
            k[u] = s.by_num_words.divide(v);
            at[u] = (v - k[u] * s.by_num_words.divisor) * bytes;
            const char* row_a = placed[k[u]].a;
            const char* row_b = placed[k[u]].b;
            if (all_blend || row_a != nullptr) a[u] = __ldg(reinterpret_cast<const W*>(row_a + at[u]));
            if (is_float<T> && (all_blend || row_b != nullptr)) b[u] = __ldg(reinterpret_cast<const W*>(row_b + at[u]));
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (v0 + u * warp_size >= end) continue;
            const PlacedRow& p = placed[k[u]];
            W result = a[u];
            if constexpr (is_float<T>) {
                if (all_blend || p.b != nullptr) {
                    result = blend_words<T, bytes>(a[u], b[u], p.template weight<Compute>());
                }
            }
            if (!all_blend && p.a == nullptr) result = fill_word<T, bytes>(p.template weight<Compute>());
            char* to = out;
            if constexpr (many_rows) {
                to = outs[k[u]];
            } else {
                to += k[u] * s.out_target_stride;
            }
            store_word(to + at[u], result);
        }
    }
}

template <class T, int widest, bool many_rows, int unroll, class Time>
__device__ __forceinline__ void write_by_width(int steps, bool all_blend, const RowsStream<Time>& s,
                                               const PlacedRow* placed, char* const* outs, char* out,
                                               std::uint32_t begin, std::uint32_t end) {
    if constexpr (widest < static_cast<int>(sizeof(T))) {
        return;
    } else {
        if (steps != 0) {
            write_by_width<T, widest / 2, many_rows, unroll>(steps - 1, all_blend, s, placed, outs, out, begin, end);
        } else if (is_float<T> && all_blend) {
            write_words<T, widest, many_rows, unroll, true>(s, placed, outs, out, begin, end);
        } else {
            write_words<T, widest, many_rows, 2, false>(s, placed, outs, out, begin, end);
        }
    }
}

/// Narrow rows that no wide access fits: every lane moves the row of its own target, by way of shared memory, and the
/// warp writes them out side by side. Every target has a row; all_blend: and another one to blend it with.
template <class T, bool all_blend>
__device__ __forceinline__ void write_narrow(const PlacedRow& placed, std::int32_t row_bytes, std::int32_t count,
                                             std::int32_t lane, char* scratch, char* out) {
    constexpr int batch = 8;
    const std::int32_t width = row_bytes / static_cast<std::int32_t>(sizeof(T));
    if (lane < count) {
        const T* row_a = reinterpret_cast<const T*>(placed.a);
        const bool blends = all_blend || placed.b != nullptr;
        const T* row_b = blends ? reinterpret_cast<const T*>(placed.b) : row_a;
        const float w = placed.weight_f32;
        T* to = reinterpret_cast<T*>(scratch) + lane * width;
        for (std::int32_t first = 0; first < width; first += batch) {
            T a[batch];
            T b[batch];
#pragma unroll
            for (int u = 0; u < batch; ++u) {  // beyond the end: the last element again, so that no load has to wait
                const std::int32_t c = first + u < width ? first + u : width - 1;
                a[u] = load_element(row_a + c);
                b[u] = load_element(row_b + c);
            }
#pragma unroll
            for (int u = 0; u < batch; u += 2) {
                T result[2];
                narrow_pair(blend_linear(widen_fast(a[u]), widen_fast(b[u]), w),
                            blend_linear(widen_fast(a[u + 1]), widen_fast(b[u + 1]), w), result);
                if (first + u < width) to[first + u] = blends ? result[0] : a[u];
                if (first + u + 1 < width) to[first + u + 1] = blends ? result[1] : a[u + 1];
            }
        }
    }
    __syncwarp();
    write_side_by_side<T>(scratch, count * row_bytes, lane, out);
}

/// Element stands for streams of many kinds in one launch.
struct AnyElement {};

template <class Element, bool many_rows, int unroll, class Time>
__device__ __forceinline__ void write_rows(bool all_blend, const RowsStream<Time>& s, const PlacedRow* placed,
                                           char* const* outs, char* out, std::uint32_t begin, std::uint32_t end) {
    const auto steps_from = [&](Format widest) { return static_cast<int>(s.format) - static_cast<int>(widest); };
    if constexpr (__is_same(Element, float)) {
        write_by_width<float, 16, many_rows, unroll>(steps_from(Format::f32x4), all_blend, s, placed, outs, out, begin,
                                                     end);
    } else if constexpr (__is_same(Element, Half)) {
        write_by_width<Half, 16, many_rows, unroll>(steps_from(Format::f16x8), all_blend, s, placed, outs, out, begin,
                                                    end);
    } else if constexpr (__is_same(Element, BFloat16)) {
        write_by_width<BFloat16, 16, many_rows, unroll>(steps_from(Format::bf16x8), all_blend, s, placed, outs, out,
                                                        begin, end);
    } else if constexpr (__is_same(Element, double)) {
        write_by_width<double, 16, many_rows, unroll>(steps_from(Format::f64x2), all_blend, s, placed, outs, out, begin,
                                                      end);
    } else if constexpr (__is_same(Element, std::uint8_t)) {
        write_by_width<std::uint8_t, 16, many_rows, unroll>(steps_from(Format::raw16), all_blend, s, placed, outs, out,
                                                            begin, end);
    } else if (s.format >= Format::raw16) {
        write_rows<std::uint8_t, many_rows, unroll>(all_blend, s, placed, outs, out, begin, end);
    } else if (s.format >= Format::bf16x8) {
        write_rows<BFloat16, many_rows, unroll>(all_blend, s, placed, outs, out, begin, end);
    } else if (s.format >= Format::f16x8) {
        write_rows<Half, many_rows, unroll>(all_blend, s, placed, outs, out, begin, end);
    } else if (s.format >= Format::f64x2) {
        write_rows<double, many_rows, unroll>(all_blend, s, placed, outs, out, begin, end);
    } else {
        write_rows<float, many_rows, unroll>(all_blend, s, placed, outs, out, begin, end);
    }
}

template <Asks asks, class Element, class Time>
__device__ __forceinline__ void place_as(const RowsStream<Time>& s, const RowsEpisode<Time>& episode,
                                         const RowSpan& span, std::int32_t power, const Time* window, Time t,
                                         std::int64_t b, std::int64_t j, bool writes_planes, PlacedRow& placed) {
    if constexpr (__is_same(Element, AnyElement)) {
        if (s.format == Format::f64x2 || s.format == Format::f64x1) {
            return place_target<asks, double>(s, episode, span, power, window, t, b, j, writes_planes, placed);
        }
    }
    place_target<asks, float>(s, episode, span, power, window, t, b, j, writes_planes, placed);
}

/// More registers for the wide shape, whose lanes keep four words of two rows on their way; more warps for the others.
constexpr int blocks_per_multiprocessor(Shape shape) {
    return shape == Shape::wide ? 4 : 6;
}

/// The target of a lane, before the stream's latency. Not waited for here.
template <class Time>
struct RawTarget {
    Time time;
    Time delta;
};

template <Asks asks, class Time>
__device__ __forceinline__ RawTarget<Time> raw_target(const DeviceQuery& q, std::int64_t b, std::int64_t j) {
    const Time* times = static_cast<const Time*>(q.times) + b * q.time_row_stride;
    if constexpr (asks == Asks::plain) return {__ldg(times + j), Time{}};
    if (q.deltas == nullptr) return {__ldg(times + j * q.time_target_stride), Time{}};
    return {__ldg(times), __ldg(static_cast<const Time*>(q.deltas) + j * q.delta_stride)};
}

template <Asks asks, class Time>
__device__ __forceinline__ Time target_of(const DeviceQuery& q, const RawTarget<Time>& raw, Time latency) {
    if constexpr (asks == Asks::plain) return add_time(raw.time, latency);
    return add_time(q.deltas == nullptr ? raw.time : add_time(raw.time, raw.delta), latency);
}

template <class Time, class Element, Shape shape, Asks asks, int capacity>
__global__ __launch_bounds__(block_threads, blocks_per_multiprocessor(shape)) void align_rows(
    const __grid_constant__ RowsTable<Time, capacity> table) {
    constexpr bool many = shape == Shape::many;
    constexpr int unroll = shape == Shape::wide ? 4 : 2;
    __shared__ PlacedRow placed_of_warp[warps_per_block][warp_size];
    __shared__ alignas(16) char scratch_of_warp[warps_per_block][many ? 16 : scratch_size<Time>(shape)];
    __shared__ char* outs_of_warp[warps_per_block][many ? warp_size : 1];
    const int warp = threadIdx.x / warp_size;
    const int lane = threadIdx.x % warp_size;
    const std::uint32_t number = blockIdx.x * (blockDim.x / warp_size) + warp;
    wait_for_earlier_work();
    if (number >= table.num_tiles) return;
    const DeviceQuery& q = table.query;
    const RowsTile tile = rows_tile<shape, asks>(table, number);
    const RowsStream<Time>& s = table.streams[tile.stream];
    const bool active = lane < tile.count;
    PlacedRow& placed = placed_of_warp[warp][lane];
    char* out = nullptr;
    if constexpr (many) {
        if (active) {
            const std::uint32_t r = s.by_tile.divide(lane);
            const std::int64_t b = tile.row + r;
            const std::int64_t j = lane - r * s.by_tile.divisor;
            const Time t = target_of<asks>(q, raw_target<asks, Time>(q, b, j), s.latency);
            outs_of_warp[warp][lane] = s.out + b * s.out_row_stride + j * s.out_target_stride;
            const Time* no_window = nullptr;
            place_as<asks, Element>(s, rows_episode<asks>(s, q, b), {0, 0}, 0, no_window, t, b, j, true, placed);
        }
    } else {
        Time* window = reinterpret_cast<Time*>(scratch_of_warp[warp]);
        const std::int64_t j = tile.first_target + (active ? lane : 0);
        const RawTarget<Time> raw = raw_target<asks, Time>(q, tile.row, j);
        const RowsEpisode<Time> episode = rows_episode<asks>(s, q, tile.row);
        const RowSpan span = expected_rows(q, tile, episode.count, s.window_margin, staged_times);
        const std::int32_t power = fetch_times(episode.times + span.begin, span.count, lane, window);
        out = s.out + tile.row * s.out_row_stride + tile.first_target * s.out_target_stride;
        wait_for_times();
        if (active) {
            const Time t = target_of<asks>(q, raw, s.latency);
            place_as<asks, Element>(s, episode, span, power, window, t, tile.row, j, tile.part == 0, placed);
        }
    }
    __syncwarp();
    const bool all_blend = __all_sync(0xffffffffU, !active || placed.b != nullptr);
    if constexpr (shape == Shape::narrow) {
        if (all_blend) {
            return write_narrow<Element, true>(placed, s.row_bytes, tile.count, lane, scratch_of_warp[warp], out);
        }
        if (__all_sync(0xffffffffU, !active || placed.a != nullptr)) {
            return write_narrow<Element, false>(placed, s.row_bytes, tile.count, lane, scratch_of_warp[warp], out);
        }
    }
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count) * s.num_words;
    if constexpr (asks == Asks::plain) {
        return write_rows<Element, many, unroll>(all_blend, s, placed_of_warp[warp], outs_of_warp[warp], out, 0, total);
    }
    const std::uint32_t share = s.parts == 1 ? total : (total + s.parts - 1) / s.parts;
    const std::uint32_t begin = share * tile.part;
    write_rows<Element, many, unroll>(all_blend, s, placed_of_warp[warp], outs_of_warp[warp], out, begin,
                                      begin + share < total ? begin + share : total);
}

}  // namespace robocache::align_detail
