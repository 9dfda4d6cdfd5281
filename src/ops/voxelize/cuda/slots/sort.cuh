// Occupancy and count by slots. A bin is a range of cells that one block counts; it has a row of slots in every tile of
// points, twice as many as an even spread fills. sort_slots puts the keys of a tile into its rows, without sorting;
// fill_from_slots has a block for each bin, whose rows are contiguous. A bin with more keys than slots has a span of
// keys instead, and the first slots of its row hold its position.
#pragma once

#include <cub/warp/warp_scan.cuh>

#include "ops/voxelize/cuda/bins/stream.cuh"

namespace robocache::voxelize_detail {

constexpr std::uint32_t row_units = row_slots / 8;  // of 16 bytes
constexpr std::uint32_t row_pitch = 72;  // keys, in shared memory: 144 bytes, so that rows begin in different banks
constexpr int slot_warps = slot_threads / warp_threads;
constexpr std::uint32_t no_span = 0xffff;
constexpr std::uint32_t has_span = 0xfffe;  // in the first slot; then where the span begins, and how many keys it has

struct SlotJob {
    Places places;
    SlotTiles tiles;
    bool streams;
    std::int64_t* dropped;
};

__device__ __forceinline__ std::uint32_t slot_bin(const SlotTiles& tiles, std::uint32_t cell) {
    return __umulhi(cell >> 5, tiles.to_bin);
}

/// The shared memory of sort_slots.
struct SlotMemory {
    float points[most_slot_tile][3];  // then, of each four, the cells and slots
    uint4 rows[most_slot_bins * row_pitch / 8];
    std::uint16_t spans[slot_span_pitch];
    std::uint32_t sizes[most_slot_bins + 1];  // the last is for points without a cell: large, so that they get no slot
    std::uint16_t starts[most_slot_bins];     // of spans; no_span
    std::uint32_t spans_end;
    std::uint64_t barriers[most_slot_parts];
};

/// Bytes of shared memory for three blocks per SM. slot_bytes_of_two is for two, so that blocks of one wave are spread
/// evenly and leave room for a block of fill_from_slots.
constexpr std::int64_t slot_bytes_of_three = sizeof(SlotMemory);
static_assert(3 * (slot_bytes_of_three + 1024) <= 228 * 1024 && slot_bytes_of_three <= slot_bytes_of_two);

/// The points of a block's tile, in parts that warps take in turn.
struct SlotTile {
    const SlotJob& job;
    SlotMemory& memory;
    std::int32_t first;  // point
    std::int32_t num;
    std::int32_t parts;

    __device__ SlotTile(const SlotJob& given, SlotMemory& shared)
        : job(given), memory(shared), first(static_cast<std::int32_t>(blockIdx.x) * given.tiles.parts * part_points) {
        const std::int32_t left = static_cast<std::int32_t>(given.places.num_points) - first;
        const std::int32_t most = given.tiles.parts * part_points;
        num = left < most ? left : most;
        parts = (num + part_points - 1) / part_points;
    }

    __device__ __forceinline__ bool streams(std::int32_t part) const {
        return job.streams && (part + 1) * part_points <= num;
    }
    __device__ __forceinline__ const char* from(std::int32_t part) const {
        return job.places.points.data + (static_cast<std::int64_t>(first) + part * part_points) * 12;
    }

    /// May be called before earlier work has finished.
    __device__ __forceinline__ void prefetch_part(std::int32_t part) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (streams(part)) prefetch(from(part), part_bytes);
#endif
    }

    __device__ __forceinline__ void start(std::int32_t part) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (!streams(part)) return;
        start_part(&memory.points[part * part_points], from(part), &memory.barriers[part], used_once_policy());
#endif
    }

    /// Returns when the points of a part are in shared memory; by all lanes of its warp.
    __device__ __forceinline__ void await(std::int32_t part) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (streams(part)) return await_barrier(shared_address(&memory.barriers[part]), 0);
#endif
#pragma unroll
        for (std::int32_t k = 0; k < part_points / warp_threads; ++k) {
            const auto at = static_cast<std::int32_t>(part * part_points + k * warp_threads +
                                                      static_cast<std::int32_t>(threadIdx.x) % warp_threads);
            float p[3] = {0, 0, 0};
            if (at < num) job.places.read<float>(first + at, p);
#pragma unroll
            for (int a = 0; a < 3; ++a) memory.points[at][a] = p[a];
        }
        __syncwarp();
    }
};

/// Puts keys into their rows.
struct RowsOfTile {
    const SlotTiles& tiles;
    SlotMemory& memory;
    std::int32_t last = 0;  // of all slots

    __device__ __forceinline__ std::uint32_t bin_of(bool sure, std::int32_t cell) const {
        return sure ? slot_bin(tiles, static_cast<std::uint32_t>(cell)) : most_slot_bins;
    }
    __device__ __forceinline__ std::uint32_t next_slot(std::uint32_t bin) { return atomicAdd(&memory.sizes[bin], 1U); }
    __device__ __forceinline__ void put(std::int32_t cell, std::uint32_t bin, std::uint32_t slot) {
        last = max(last, static_cast<std::int32_t>(slot));
        auto* slots = reinterpret_cast<std::uint16_t*>(memory.rows);
        const std::uint32_t key = static_cast<std::uint32_t>(cell) - bin * tiles.bin_cells;
        // Eight slots one after the other are in eight units, so that all units of a row are about as full.
        if (slot < row_slots) slots[bin * row_pitch + slot * 8 - slot / 8 * 63] = static_cast<std::uint16_t>(key);
    }
};

/// Four points of a lane; returns how many are not in the grid.
__device__ __forceinline__ std::uint32_t put_four(const DeviceGrid& grid, RowsOfTile& rows, std::int32_t place,
                                                  std::int32_t left) {
    float (*points)[3] = rows.memory.points + place;
    std::int32_t cell[4];
    std::uint32_t slot[4];
    std::uint32_t others = 0;
    {
        float p[4][3];
        read_four<false>(points, p);
        std::uint32_t fraction[4];
        std::uint32_t bin[4];
        const std::uint32_t near = grid.fixed_indices(p, cell, fraction);
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // all atomics start before the first is used
            const bool sure = fraction[k] >= near && k < left;
            if (!sure) others |= 1U << k;
            bin[k] = rows.bin_of(sure, cell[k]);
            slot[k] = rows.next_slot(bin[k]);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) rows.put(cell[k], bin[k], slot[k]);
    }
    std::uint32_t dropped = 0;
    while (others != 0) {
        const std::int32_t at = __ffs(static_cast<int>(others)) - 1;
        others &= others - 1;
        const std::int32_t one = at < left ? settle_index(grid.quick, points[at]) : no_point;
        std::uint32_t slot_of_one = 0;
        if (one >= 0) {
            const std::uint32_t bin = rows.bin_of(true, one);
            slot_of_one = rows.next_slot(bin);
            rows.put(one, bin, slot_of_one);
        }
        dropped += one == dropped_point ? 1 : 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (k == at) cell[k] = one;
            if (k == at) slot[k] = slot_of_one;
        }
    }
    auto* kept = reinterpret_cast<std::uint32_t*>(points);
    *reinterpret_cast<int4*>(kept) = make_int4(cell[0], cell[1], cell[2], cell[3]);
    *reinterpret_cast<uint2*>(kept + 4) = make_uint2(slot[0] | slot[1] << 16, slot[2] | slot[3] << 16);
    return dropped;
}

/// Where the spans of bins with more keys than slots begin, at multiples of 8, or no_span; by a warp. Returns where the
/// last one ends.
__device__ __forceinline__ std::uint32_t place_spans(const SlotTiles& tiles, SlotMemory& memory) {
    constexpr std::int32_t share = (most_slot_bins + warp_threads - 1) / warp_threads;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    std::uint32_t sizes[share];
    std::uint32_t start = 0;
#pragma unroll
    for (std::int32_t i = 0; i < share; ++i) {
        const std::int32_t bin = lane * share + i;
        const std::uint32_t size = bin < tiles.num_bins ? memory.sizes[bin] : 0;
        sizes[i] = size > row_slots ? (size + 7) & ~7U : 0;
        start += sizes[i];
    }
    std::uint32_t end = 0;
    cub::WarpScan<std::uint32_t>::TempStorage unused;  // empty for a whole warp
    cub::WarpScan<std::uint32_t>(unused).ExclusiveSum(start, start, end);
#pragma unroll
    for (std::int32_t i = 0; i < share; ++i) {
        const std::int32_t bin = lane * share + i;
        if (bin < tiles.num_bins) memory.starts[bin] = static_cast<std::uint16_t>(sizes[i] != 0 ? start : no_span);
        start += sizes[i];
    }
    return end;
}

/// Bins with more keys than slots: their keys one after the other, and rows that say where they are.
static __device__ __noinline__ void write_spans(const SlotTiles& tiles, SlotMemory& memory, std::int32_t parts) {
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    if (thread < warp_threads) {
        const std::uint32_t end = place_spans(tiles, memory);
        if (thread == 0) memory.spans_end = end;
    }
    auto* units = reinterpret_cast<uint4*>(memory.spans);
    for (std::int32_t u = thread; u < slot_span_pitch / 8; u += slot_threads) {
        units[u] = make_uint4(no_key, no_key, no_key, no_key);
    }
    __syncthreads();
    if (thread < tiles.num_bins && memory.starts[thread] != no_span) {
        uint4* row = memory.rows + thread * (row_pitch / 8);
        row[0] = make_uint4(has_span | std::uint32_t{memory.starts[thread]} << 16, memory.sizes[thread] | 0xffff0000U,
                            no_key, no_key);
        for (std::uint32_t u = 1; u < row_units; ++u) row[u] = make_uint4(no_key, no_key, no_key, no_key);
    }
    for (std::int32_t part = thread / warp_threads; part < parts; part += slot_warps) {
        const auto* kept =
            reinterpret_cast<const std::uint32_t*>(memory.points[part * part_points + 4 * (thread % warp_threads)]);
        const int4 cells = *reinterpret_cast<const int4*>(kept);
        const uint2 slots = *reinterpret_cast<const uint2*>(kept + 4);
        const std::int32_t cell[4] = {cells.x, cells.y, cells.z, cells.w};
        const std::uint32_t slot[4] = {slots.x & 0xffffU, slots.x >> 16, slots.y & 0xffffU, slots.y >> 16};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (cell[k] < 0) continue;
            const std::uint32_t bin = slot_bin(tiles, static_cast<std::uint32_t>(cell[k]));
            const std::uint32_t start = memory.starts[bin];
            if (start == no_span) continue;
            memory.spans[start + slot[k]] =
                static_cast<std::uint16_t>(static_cast<std::uint32_t>(cell[k]) - bin * tiles.bin_cells);
        }
    }
    __syncthreads();
    auto* to = reinterpret_cast<uint4*>(tiles.spans + static_cast<std::int64_t>(blockIdx.x) * slot_span_pitch);
    const auto num = static_cast<std::int32_t>(memory.spans_end / 8);
    for (std::int32_t u = thread; u < num; u += slot_threads) to[u] = units[u];
}

/// A block has a tile. `counts` does not change the code: the two instances have different carveouts of shared memory.
/// Registers are few, so that a block of fill_from_slots fits beside two blocks, and they beside one of the call
/// before.
template <bool counts>
__global__ __launch_bounds__(slot_threads, 4) void sort_slots(const __grid_constant__ SlotJob job) {
    extern __shared__ __align__(16) char slot_memory[];
    SlotMemory& memory = *reinterpret_cast<SlotMemory*>(slot_memory);
    const SlotTiles& tiles = job.tiles;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t warp = thread / warp_threads;
    const std::int32_t lane = thread % warp_threads;
    const SlotTile tile(job, memory);
#pragma unroll
    for (std::uint32_t u = threadIdx.x; u < most_slot_bins * (row_pitch / 8); u += slot_threads) {
        memory.rows[u] = make_uint4(no_key, no_key, no_key, no_key);
    }
    if (thread <= most_slot_bins) memory.sizes[thread] = thread < most_slot_bins ? 0 : 1U << 31;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (thread < tile.parts) {
        init_barrier(shared_address(&memory.barriers[thread]), 1);
        publish_barriers();
    }
#endif
    if (lane == 0) {
#pragma unroll 1
        for (std::int32_t part = warp; part < tile.parts; part += slot_warps) tile.prefetch_part(part);
    }
    __syncthreads();
    wait_for_earlier_work();
    if (lane == 0) {
#pragma unroll 1
        for (std::int32_t part = warp; part < tile.parts; part += slot_warps) tile.start(part);
    }
    __syncwarp();
    RowsOfTile rows{tiles, memory};
    std::uint32_t dropped = 0;
#pragma unroll 1
    for (std::int32_t part = warp; part < tile.parts; part += slot_warps) {
        tile.await(part);
        const std::int32_t place = part * part_points + 4 * lane;
        dropped += put_four(job.places.grid, rows, place, tile.num - place);
    }
    if (__syncthreads_or(rows.last >= static_cast<std::int32_t>(row_slots) ? 1 : 0) != 0) {
        write_spans(tiles, memory, tile.parts);
    }
    for (std::uint32_t u = threadIdx.x; u < row_units * tiles.num_bins; u += slot_threads) {
        const std::uint32_t bin = u / row_units;
        tiles.rows[(bin * tiles.num_tiles + blockIdx.x) * row_units + u % row_units] =
            memory.rows[bin * (row_pitch / 8) + u % row_units];
    }
    if (job.dropped != nullptr) {
        dropped = __reduce_add_sync(all_lanes, dropped);
        if (lane == 0 && dropped != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(job.dropped), static_cast<unsigned long long>(dropped));
        }
    }
}

}  // namespace robocache::voxelize_detail
