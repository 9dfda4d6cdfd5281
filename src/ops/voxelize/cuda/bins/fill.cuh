// The second kernel of bins: a block collects the keys of its bin from all tiles.
#pragma once

#include "ops/voxelize/cuda/write_cells.cuh"

namespace robocache::voxelize_detail {

/// The lanes of this thread's group, of `lanes` lanes.
template <int lanes>
__device__ __forceinline__ unsigned group_mask() {
    constexpr unsigned group = (1U << lanes) - 1;
    return group << (threadIdx.x % warp_threads / lanes * lanes);
}

template <class Stored, int unit>
struct KeyUnit {
    Stored only;

    __device__ __forceinline__ std::uint32_t key(int) const { return only; }
};

template <class Stored, int unit>
    requires(unit > 1)
struct alignas(16) KeyUnit<Stored, unit> {
    std::uint32_t words[4];

    __device__ __forceinline__ std::uint32_t key(int k) const {
        if constexpr (sizeof(Stored) == 4) return words[k];
        return words[k / 2] >> (16 * (k % 2)) & 0xffffU;
    }
};

/// Spans of a bin that are long enough for a whole warp; in shared memory.
struct LongSpans {
    static constexpr std::int32_t most = 512;
    uint2 spans[most];  // tile, span
    std::int32_t num;   // may exceed `most`
};

/// Calls body(key, tile) for every key of a bin, by all threads of the block. A group of `lanes` lanes takes the keys
/// of a tile; several tiles are in flight. Longer spans are kept for later, when each is taken by a whole warp: points
/// in the order of a scan have few and very long ones. If LongSpans is full, most tiles have long spans, so that every
/// group is busy with one of its own.
template <class Stored, int lanes, int unit, class Body>
__device__ __forceinline__ void for_keys_by(const SortedTiles& tiles, std::int32_t bin, LongSpans& longer,
                                            Body&& body) {
    using Unit = KeyUnit<Stored, unit>;
    constexpr int rounds = 2;                 // of one unit per lane
    constexpr int batch = unit == 1 ? 4 : 2;  // tiles
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t lane = thread % lanes;
    const auto groups = static_cast<std::int32_t>(blockDim.x / lanes);
    const auto* keys = static_cast<const Stored*>(tiles.keys);
    const std::uint32_t* spans = tiles.spans + bin * tiles.num_tiles;
    const auto keys_of = [&](std::int32_t tile, std::uint32_t span) {
        return keys + static_cast<std::int64_t>(tile) * tiles.pitch + (span & 0xffffU);
    };
    const auto read = [](const Stored* from) { return *reinterpret_cast<const Unit*>(from); };
    const auto take = [&](const Unit& some, std::int32_t left, std::int64_t tile) {
#pragma unroll
        for (int k = 0; k < unit; ++k) {
            if (k < left) body(some.key(k), tile);
        }
    };
    if (thread == 0) longer.num = 0;
    __syncthreads();
    const auto num_tiles = static_cast<std::int32_t>(tiles.num_tiles);
    for (std::int32_t first = 0; first < num_tiles; first += batch * groups) {
        const std::int32_t tile = first + thread / lanes;
        std::uint32_t span[batch];
        std::int32_t size[batch];
        Unit units[batch][rounds];
#pragma unroll
        for (int u = 0; u < batch; ++u) {  // all loads start before the first is used
            span[u] = tile + u * groups < num_tiles ? spans[tile + u * groups] : 0;
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            size[u] = static_cast<std::int32_t>(span[u] >> 16);
#pragma unroll
            for (int r = 0; r < rounds; ++r) {
                const std::int32_t at = (lane + r * lanes) * unit;
                if (at < size[u]) units[u][r] = read(keys_of(tile + u * groups, span[u]) + at);
            }
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (first + u * groups >= num_tiles) break;
#pragma unroll
            for (int r = 0; r < rounds; ++r) {
                take(units[u][r], size[u] - (lane + r * lanes) * unit, tile + u * groups);
            }
            if (size[u] <= rounds * lanes * unit) continue;
            std::int32_t place = 0;
            if (lane == 0) place = atomicAdd(&longer.num, 1);
            place = __shfl_sync(group_mask<lanes>(), place, 0, lanes);
            if (place < LongSpans::most) {
                if (lane == 0) longer.spans[place] = make_uint2(static_cast<std::uint32_t>(tile + u * groups), span[u]);
                continue;
            }
            for (std::int32_t at = (lane + rounds * lanes) * unit; at < size[u]; at += lanes * unit) {
                take(read(keys_of(tile + u * groups, span[u]) + at), size[u] - at, tile + u * groups);
            }
        }
    }
    __syncthreads();
    constexpr int more = 4;
    constexpr std::int32_t step = warp_threads * unit;
    const std::int32_t num = longer.num < LongSpans::most ? longer.num : LongSpans::most;
    for (std::int32_t e = thread / warp_threads; e < num; e += static_cast<std::int32_t>(blockDim.x) / warp_threads) {
        const auto tile = static_cast<std::int32_t>(longer.spans[e].x);
        const std::uint32_t span = longer.spans[e].y;
        const auto size = static_cast<std::int32_t>(span >> 16);
        for (std::int32_t k = (rounds * lanes + thread % warp_threads) * unit; k < size; k += more * step) {
            Unit units[more];
#pragma unroll
            for (int v = 0; v < more; ++v) {
                if (k + v * step < size) units[v] = read(keys_of(tile, span) + k + v * step);
            }
#pragma unroll
            for (int v = 0; v < more; ++v) take(units[v], size - (k + v * step), tile);
        }
    }
}

template <class Stored, class Body>
__device__ __forceinline__ void for_keys_of_bin(const SortedTiles& tiles, std::int32_t bin, LongSpans& longer,
                                                Body&& body) {
    constexpr int wide = 16 / sizeof(Stored);
    if (tiles.unit == 1) return for_keys_by<Stored, 8, 1>(tiles, bin, longer, body);
    if (tiles.bin_keys > 6 * wide) return for_keys_by<Stored, 8, wide>(tiles, bin, longer, body);
    if (tiles.bin_keys > 2 * wide) return for_keys_by<Stored, 4, wide>(tiles, bin, longer, body);
    for_keys_by<Stored, 2, wide>(tiles, bin, longer, body);
}

/// What the kernels of bins need after sort_tiles.
struct BinJob {
    DensePlan plan;
    BinSpace space;           // its tiles: those of this pass
    std::int64_t first_cell;  // of this pass
};

/// A block counts the keys of its bin, or marks bits, and writes its cells.
template <bool marks>
__global__ __launch_bounds__(most_fill_threads) void fill_bins(const __grid_constant__ BinJob job) {
    extern __shared__ __align__(16) std::uint32_t bin_words[];
    __shared__ LongSpans longer;
    const SortedTiles& tiles = job.space.tiles;
    const BlockCells<marks> cells{bin_words};
    cells.clear(1 << tiles.bin_bits);
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    for_keys_of_bin<std::uint16_t>(tiles, bin, longer, [&](std::uint32_t key, std::int64_t) { cells.add(key); });
    __syncthreads();
    cells.write(job.plan, job.first_cell + (static_cast<std::int64_t>(bin) << tiles.bin_bits), 1 << tiles.bin_bits);
}

}  // namespace robocache::voxelize_detail
