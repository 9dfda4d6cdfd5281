// Dense grids by bins. A bin is a range of cells whose counters fit the shared memory of a block. sort_tiles reads
// tiles of points and sorts each by bin, in shared memory; then one block per bin collects its keys from all tiles,
// counts or reduces them in shared memory, and writes its cells once. No global atomics on cells, no clearing, and the
// result does not depend on the order of anything (except sums of floats).
#pragma once

#include <cub/block/block_scan.cuh>

#include "ops/voxelize/cuda/bins/stream.cuh"

namespace robocache::voxelize_detail {

struct SortJob {
    Places places;
    SortedTiles tiles;
    std::int64_t first_cell;  // of this pass
    std::int64_t* dropped;    // null: not wanted, or counted by an earlier pass
    PointStream stream;
    std::uint32_t* listed;  // to be cleared for list_points; null: there is none
};

using SortScan = cub::BlockScan<std::uint32_t, sort_threads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Where a thread's points are in their tile: 4 l ... 4 l + 3 of 128 that its warp takes at a time.
template <int per_thread>
__device__ __forceinline__ std::int32_t place_in_tile(int p) {
    const auto warp = static_cast<std::int32_t>(threadIdx.x / warp_threads);
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    return warp * per_thread * warp_threads + p / 4 * 4 * warp_threads + 4 * lane + p % 4;
}

/// Turns sizes of bins into starts, at multiples of the unit, and writes the spans; returns the keys of the tile.
__device__ __forceinline__ std::uint32_t place_bins(const SortedTiles& tiles, std::int64_t tile, std::uint32_t* sizes,
                                                    SortScan::TempStorage& scratch) {
    const std::int32_t share = (tiles.num_bins + sort_threads - 1) / sort_threads;
    const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) * share;
    const std::int32_t end = first + share < tiles.num_bins ? first + share : tiles.num_bins;
    const auto more = static_cast<std::uint32_t>(tiles.unit - 1);
    std::uint32_t mine = 0;
    for (std::int32_t b = first; b < end; ++b) mine += (sizes[b] + more) & ~more;
    std::uint32_t start = 0;
    std::uint32_t total = 0;
    SortScan(scratch).ExclusiveSum(mine, start, total);
    for (std::int32_t b = first; b < end; ++b) {
        const std::uint32_t size = sizes[b];
        sizes[b] = start;
        tiles.spans[b * tiles.num_tiles + tile] = start | size << 16;
        start += (size + more) & ~more;
    }
    return total;
}

/// Blocks sort tiles in turn. Stored: u16, or u32 for features.
template <bool is_f32, int per_thread, class Stored>
__global__ __launch_bounds__(sort_threads, 2) void sort_tiles(const __grid_constant__ SortJob job) {
    extern __shared__ __align__(16) char shared_memory[];
    __shared__ SortScan::TempStorage scratch;
    __shared__ std::uint64_t barriers[sort_threads / warp_threads][2 * ring_parts];  // arrived, free
    constexpr int tile = per_thread * sort_threads;
    constexpr bool has_ring = has_bulk_copies && per_thread == points_per_thread_of_many;  // blocks have several tiles
    const Places& places = job.places;
    const std::int32_t num_bins = job.tiles.num_bins;
    auto* sorted = reinterpret_cast<Stored*>(shared_memory);
    auto* sizes = reinterpret_cast<std::uint32_t*>(shared_memory + job.tiles.pitch * sizeof(Stored));
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t warp = thread / warp_threads;
    for (std::int32_t b = thread; b < num_bins; b += sort_threads) sizes[b] = 0;
    Ring ring(
        job.stream,
        shared_memory + job.tiles.pitch * sizeof(Stored) + (num_bins + 3) / 4 * 16 + warp * ring_parts * part_bytes,
        barriers[warp], per_thread / 4, warp);
    if constexpr (has_ring) ring.set_up();
    __syncthreads();
    if constexpr (!has_ring) prefetch_share(job.stream, warp, per_thread * warp_threads * 12);
    wait_for_earlier_work();
    if constexpr (has_ring) ring.begin();
    if (job.listed != nullptr && blockIdx.x == 0 && thread == 0) *job.listed = 0;

    const std::int32_t bin_bits = job.tiles.bin_bits;
    const std::uint32_t cells = static_cast<std::uint32_t>(num_bins) << bin_bits;
    std::uint32_t dropped = 0;
    for (std::int64_t t = blockIdx.x; t < job.tiles.num_tiles; t += gridDim.x) {
        const std::int64_t first = t * tile;
        std::uint32_t key[per_thread];
        std::uint32_t ranks[per_thread / 2];  // in its bin, two of 16 bits
        const auto take = [&](int p, bool inside, std::uint32_t at) {
            key[p] = no_key;
            if (p % 2 == 0) ranks[p / 2] = 0;
            if (inside) {
                key[p] = at;
                ranks[p / 2] |= atomicAdd(&sizes[at >> bin_bits], 1U) << (16 * (p % 2));
            }
        };
        bool streamed = false;
        if constexpr (is_f32) {
            streamed = t < job.stream.num_tiles;
            if (streamed) {
                const auto first_cell = static_cast<std::uint32_t>(job.first_cell);
                constexpr int some = per_thread == points_per_thread ? per_thread : 4;  // at once
#pragma unroll
                for (int g = 0; g < per_thread; g += some) {
                    float p[some][3];
                    std::int32_t cell[some];
#pragma unroll
                    for (int f = 0; f < some; f += 4) {
                        if constexpr (has_ring) {
                            ring.take(p + f);
                        } else {
                            read_four<true>(job.stream.data + (first + place_in_tile<per_thread>(g + f)) * 12, p + f);
                        }
                    }
                    places.grid.quick_indices(p, cell);
                    if constexpr (has_ring) ring.refill();
#pragma unroll
                    for (int u = 0; u < some; ++u) {
                        const std::uint32_t at = static_cast<std::uint32_t>(cell[u]) - first_cell;
                        dropped += cell[u] < 0 ? 1 : 0;
                        take(g + u, at < cells, at);  // a dropped point's number is larger than any cell's
                    }
                }
            }
        }
        if (!streamed) {
#pragma unroll
            for (int p = 0; p < per_thread; ++p) {
                const std::int64_t i = first + place_in_tile<per_thread>(p);
                const std::int64_t cell = i < places.num_points ? places.template key<is_f32>(i) : no_point;
                if (cell == dropped_point) {
                    ++dropped;
                    if (job.dropped != nullptr && places.num_clouds > 1) {
                        const std::int64_t cloud = places.template cloud_of<is_f32>(i);
                        atomicAdd(reinterpret_cast<unsigned long long*>(job.dropped) + cloud, 1ULL);
                    }
                }
                const auto at = static_cast<std::uint64_t>(cell - job.first_cell);
                take(p, cell >= 0 && at < cells, static_cast<std::uint32_t>(at));
            }
        }
        __syncthreads();
        const std::uint32_t total = place_bins(job.tiles, t, sizes, scratch);
        __syncthreads();
#pragma unroll
        for (int p = 0; p < per_thread; ++p) {
            if (key[p] == no_key) continue;
            const std::uint32_t at = sizes[key[p] >> bin_bits] + (ranks[p / 2] >> (16 * (p % 2)) & 0xffffU);
            const std::uint32_t cell = key[p] & ((1U << bin_bits) - 1);
            if constexpr (sizeof(Stored) == 2) {
                sorted[at] = static_cast<std::uint16_t>(cell);
            } else {
                sorted[at] = cell | static_cast<std::uint32_t>(place_in_tile<per_thread>(p)) << 16;
            }
        }
        __syncthreads();
        for (std::int32_t b = thread; b < num_bins; b += sort_threads) sizes[b] = 0;
        char* keys =
            static_cast<char*>(job.tiles.keys) + t * job.tiles.pitch * static_cast<std::int64_t>(sizeof(Stored));
        const auto bytes = static_cast<std::int32_t>(total * sizeof(Stored));
        for (std::int32_t at = 16 * thread; at < bytes; at += 16 * sort_threads) {
            *reinterpret_cast<uint4*>(keys + at) = *reinterpret_cast<const uint4*>(shared_memory + at);
        }
        __syncthreads();
    }
    if (job.dropped != nullptr && places.num_clouds == 1) {
        dropped = __reduce_add_sync(all_lanes, dropped);
        if (thread % warp_threads == 0 && dropped != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(job.dropped), static_cast<unsigned long long>(dropped));
        }
    }
}

}  // namespace robocache::voxelize_detail
