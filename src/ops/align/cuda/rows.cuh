// The kernel of most calls: linear, previous, next and nearest, the same dtype in and out, rows of plain memory. All
// streams of a call in one launch.
//
// A warp works alone on a tile of up to 32 targets: every lane locates one target (window.cuh), then the lanes move the
// rows together, in the widest accesses that the addresses allow. Warps that search and warps that move share an SM
// without waiting for each other.
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/window.cuh"

namespace robocache::align_detail {

/// Moves words [begin, end) of the tile's rows, counted target by target. All loads of a round before the first use.
/// all_blend: every target blends two rows, the usual case, without a test per word.
template <class T, int bytes, int unroll, bool all_blend>
__device__ __forceinline__ void write_words(const RowsStream& s, const PlacedRow* placed, char* out,
                                            std::uint32_t begin, std::uint32_t end) {
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
            store_word(out + k[u] * s.out_target_stride + at[u], result);
        }
    }
}

/// `steps`: how often the widest access is halved for this stream.
template <class T, int widest = 16>
__device__ __forceinline__ void write_rows_of(int steps, bool all_blend, const RowsStream& s, const PlacedRow* placed,
                                              char* out, std::uint32_t begin, std::uint32_t end) {
    if constexpr (widest >= static_cast<int>(sizeof(T))) {
        if (steps != 0) {
            write_rows_of<T, widest / 2>(steps - 1, all_blend, s, placed, out, begin, end);
        } else if (is_float<T> && all_blend) {
            write_words<T, widest, 4, true>(s, placed, out, begin, end);
        } else {
            write_words<T, widest, 2, false>(s, placed, out, begin, end);
        }
    }
}

__device__ __forceinline__ void write_rows(bool all_blend, const RowsStream& s, const PlacedRow* placed, char* out,
                                           std::uint32_t begin, std::uint32_t end) {
    const auto steps_from = [&](Format widest) { return static_cast<int>(s.format) - static_cast<int>(widest); };
    if (s.format >= Format::raw16) {
        write_rows_of<std::uint8_t>(steps_from(Format::raw16), all_blend, s, placed, out, begin, end);
    } else if (s.format >= Format::bf16x8) {
        write_rows_of<BFloat16>(steps_from(Format::bf16x8), all_blend, s, placed, out, begin, end);
    } else if (s.format >= Format::f16x8) {
        write_rows_of<Half>(steps_from(Format::f16x8), all_blend, s, placed, out, begin, end);
    } else if (s.format >= Format::f64x2) {
        write_rows_of<double>(steps_from(Format::f64x2), all_blend, s, placed, out, begin, end);
    } else {
        write_rows_of<float>(steps_from(Format::f32x4), all_blend, s, placed, out, begin, end);
    }
}

template <class Time, int capacity>
__global__ __launch_bounds__(RowsTuning::warps* warp_size,
                             8) void align_rows(const __grid_constant__ RowsTable<capacity> table) {
    __shared__ PlacedRow placed_of_warp[RowsTuning::warps][warp_size];
    __shared__ Time window_of_warp[RowsTuning::warps][staged_times];
    const int warp = threadIdx.x / warp_size;
    const int lane = threadIdx.x % warp_size;
    const std::uint32_t number = blockIdx.x * (blockDim.x / warp_size) + warp;
    wait_for_earlier_work();
    if (number >= table.num_tiles) return;
    const DeviceQuery& q = table.query;
    const RowsTile tile = rows_tile(table, number);
    const RowsStream& s = table.streams[tile.stream];
    const bool active = lane < tile.count;
    const std::int64_t j = tile.first_target + (active ? lane : 0);
    const RawTarget<Time> raw(q, tile.row, j);
    const EpisodeRows<Time> episode = episode_rows<Time>(s.stream, episode_of(q, s.stream, tile.row));
    const EpisodeTimes<Time> times{episode.times.data, 1, episode.times.count};
    Sample sample{{0, 0}, 0.0, Kind::zero, false};
    std::int64_t left = -1;
    const bool in_double = s.format == Format::f64x2 || s.format == Format::f64x1;
    if (times.count > 0) {
        Time t;
        Located<Time> located = locate(s, q, tile, times, raw, active, lane, window_of_warp[warp], t);
        if (active) {  // the others have no neighbors
            snap(times, t, gap_as<Time>(s.stream.tolerance), located);
            left = located.near.left;
            sample = in_double ? sample_of<double>(times, t, located, s.method, s.stream.rules)
                               : sample_of<float>(times, t, located, s.method, s.stream.rules);
        }
    }
    PlacedRow* placed = placed_of_warp[warp];
    if (active) {
        PlacedRow row{};
        row.set(sample, episode.values, s.stream.value_row_stride, in_double);
        placed[lane] = row;
        if (tile.part == 0) {
            s.stream.write_valid(tile.row, j, sample.valid);
            s.stream.write_index(tile.row, j, episode.first_row, left);
        }
    }
    __syncwarp();
    const bool all_blend = __all_sync(all_lanes, !active || placed[lane].b != nullptr);
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count) * s.num_words;
    const std::uint32_t share = s.parts == 1 ? total : (total + s.parts - 1) / s.parts;
    const std::uint32_t begin = share * tile.part;
    char* out = s.out + tile.row * s.out_row_stride + tile.first_target * s.out_target_stride;
    write_rows(all_blend, s, placed, out, begin, begin + share < total ? begin + share : total);
}

}  // namespace robocache::align_detail
