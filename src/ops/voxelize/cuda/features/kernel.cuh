// Features of points, reduced cell by cell. list_points has a block for each bin, which lists the points of its cells.
// write_features writes the grid once, in the order of memory: a warp writes its empty cells, then reduces the others,
// a few channels per thread. Cells with many points are reduced by a whole warp, those with very many by the block.
#pragma once

#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

#include "ops/voxelize/cuda/features/channels.cuh"

namespace robocache::voxelize_detail {

using ListScan = cub::BlockScan<std::uint32_t, list_threads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Turns the counts of a bin's cells into where their points begin in the list, by the block. Not inlined: that would
/// spill registers of the loops over keys.
static __device__ __noinline__ void start_cells(const BinJob& job, std::int32_t bin, std::uint32_t* cells,
                                                ListScan::TempStorage& scratch, std::uint32_t& base) {
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t bin_cells = 1 << job.space.tiles.bin_bits;
    if (job.plan.counts != nullptr) {
        const std::int64_t first = job.first_cell + static_cast<std::int64_t>(bin) * bin_cells;
        const std::int64_t left = job.plan.total_cells() - first;
        const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
        write_cells(CounterCells{cells, false}, num, job.plan.counts + first, thread, list_threads);
        __syncthreads();
    }
    const std::int32_t share = bin_cells / (list_threads / warp_threads);  // contiguous cells of a warp
    std::uint32_t* mine = cells + thread / warp_threads * share + thread % warp_threads;
    std::uint32_t sum = 0;
    for (std::int32_t k = 0; k < share; k += warp_threads) sum += mine[k];
    sum = __reduce_add_sync(all_lanes, sum);
    std::uint32_t start = 0;
    std::uint32_t total = 0;
    ListScan(scratch).ExclusiveSum(thread % warp_threads == 0 ? sum : 0, start, total);
    if (thread == 0) {
        base = total > 0 ? atomicAdd(job.space.listed, total) : 0;  // without points there was no sort_tiles
        job.space.begins[bin] = base;
    }
    __syncthreads();
    start = __shfl_sync(all_lanes, start + base, 0);
    for (std::int32_t k = 0; k < share; k += warp_threads) {
        std::uint32_t before = 0;
        std::uint32_t all = 0;
        cub::WarpScan<std::uint32_t>::TempStorage unused;  // empty for a whole warp
        cub::WarpScan<std::uint32_t>(unused).ExclusiveSum(mine[k], before, all);
        mine[k] = start + before;
        start += all;
    }
    __syncthreads();
}

/// One block lists the points of one bin, cell by cell.
static __global__ __launch_bounds__(list_threads, 2) void list_points(const __grid_constant__ BinJob job) {
    extern __shared__ __align__(16) std::uint32_t ends[];  // of each cell in the bin's list of points
    __shared__ ListScan::TempStorage scratch;
    __shared__ LongSpans longer;
    __shared__ std::uint32_t base;
    const BinSpace& space = job.space;
    const SortedTiles& tiles = space.tiles;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    const std::int32_t bin_cells = 1 << tiles.bin_bits;
    const auto mask = static_cast<std::uint32_t>(bin_cells - 1);
    const std::int64_t in_pass = static_cast<std::int64_t>(bin) << tiles.bin_bits;
    BlockCells<false>{ends}.clear(bin_cells);
    __syncthreads();
    wait_for_earlier_work();
    for_keys_of_bin<std::uint32_t>(tiles, bin, longer,
                                   [&](std::uint32_t key, std::int64_t) { atomicAdd(&ends[key & mask], 1U); });
    __syncthreads();
    start_cells(job, bin, ends, scratch, base);
    // Every point takes its index, and starts become ends.
    for_keys_of_bin<std::uint32_t>(tiles, bin, longer, [&](std::uint32_t key, std::int64_t tile) {
        const std::uint32_t at = atomicAdd(&ends[key & mask], 1U);
        space.points[at] = static_cast<std::uint32_t>(tile * tiles.tile) + (key >> 16);
    });
    __syncthreads();
    for (std::int32_t c = thread; c < bin_cells / 4; c += list_threads) {
        reinterpret_cast<uint4*>(space.ends + in_pass)[c] = reinterpret_cast<const uint4*>(ends)[c];
    }
}

/// Where the points of a cell are in the list.
struct Listed {
    std::uint32_t begin;
    std::uint32_t count;
};

__device__ __forceinline__ Listed points_of(const BinSpace& space, std::int64_t cell) {
    const bool first = (cell & ((std::int64_t{1} << space.tiles.bin_bits) - 1)) == 0;
    const std::uint32_t begin = *(first ? space.begins + (cell >> space.tiles.bin_bits) : space.ends + cell - 1);
    return {begin, space.ends[cell] - begin};
}

/// Writes `value` to all channels of a warp's cells that are not in `occupied`; `out` is where the first one begins.
template <class Out, int width>
__device__ __forceinline__ void write_empty(Out value, unsigned occupied, std::int32_t num, std::int32_t parts,
                                            Out* out) {
    Pack<Out, width> pack;
#pragma unroll
    for (int u = 0; u < width; ++u) pack.values[u] = value;
    auto* to = reinterpret_cast<Pack<Out, width>*>(out);
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    if (occupied == 0) {
#pragma unroll 4
        for (std::int32_t at = lane; at < num * parts; at += warp_threads) write_away(to + at, pack);
        return;
    }
    std::int32_t cell = lane / parts;
    std::int32_t part = lane - cell * parts;
    const std::int32_t more_cells = warp_threads / parts;
    const std::int32_t more_parts = warp_threads - more_cells * parts;
    for (std::int32_t at = lane; at < num * parts; at += warp_threads) {
        if ((occupied >> cell & 1U) == 0) write_away(to + at, pack);
        part += more_parts;
        cell += more_cells + (part >= parts ? 1 : 0);
        part -= part >= parts ? parts : 0;
    }
}

/// A cell with a few points.
struct FewPoints {
    std::uint32_t begin;
    std::uint16_t count;
    std::uint16_t cell;  // of the warp's
};

/// Reduces the listed cells of a warp, contiguous channels by contiguous threads, so that none is idle; two at once.
template <int bytes, Sums sums, int width>
__device__ __forceinline__ void reduce_few(const BinJob& job, const FewPoints* few, std::int32_t num_few,
                                           std::int64_t out_cell) {
    constexpr int batch = 2;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto num_channels = static_cast<std::int32_t>(job.plan.features.num_channels);
    const std::int32_t parts = num_channels / width;  // of a cell
    const std::int32_t items = num_few * parts;
    for (std::int32_t some = 0; some < items; some += batch * warp_threads) {
        FewPoints cell[batch];
        std::int32_t c[batch];
        std::uint32_t point[batch];
        float x[batch][width];
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const std::int32_t item = some + u * warp_threads + lane;
            const std::int32_t row = item / parts;
            c[u] = (item - row * parts) * width;
            cell[u] = item < items ? few[row] : FewPoints{0, 0, 0};
            if (cell[u].count != 0) point[u] = job.space.points[cell[u].begin];
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count != 0) read_channels<bytes, width>(job.plan, point[u], c[u], x[u]);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count == 0) continue;
            float result[width];
            reduce_alone<bytes, sums, width>(job.plan, job.space.points + cell[u].begin, cell[u].count, c[u], x[u],
                                             result);
            write_channels<bytes, width>(job.plan, (out_cell + cell[u].cell) * num_channels + c[u], result);
        }
    }
}

struct FeatureShared {
    std::uint16_t crowded[feature_threads];  // cells of the block
    std::int32_t num_crowded;
    FewPoints few[feature_threads / warp_threads][warp_threads];
    alignas(16) char scratch[feature_threads * 8];
};

/// A block writes cells of the pass, one for each thread. width: channels of a thread, 4 where memory allows.
template <int bytes, Sums sums, int width>
__global__ __launch_bounds__(feature_threads, Rounds<sums>::num_sums > 0
                                                  ? 3
                                                  : 5) void write_features(const __grid_constant__ BinJob job) {
    __shared__ FeatureShared shared;
    const DensePlan& plan = job.plan;
    const BinSpace& space = job.space;
    if (threadIdx.x == 0) shared.num_crowded = 0;
    __syncthreads();
    wait_for_earlier_work();
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto warp = static_cast<std::int32_t>(threadIdx.x / warp_threads);
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * feature_threads;
    const std::int64_t in_pass = std::int64_t{space.tiles.num_bins} << space.tiles.bin_bits;
    const std::int64_t left = plan.total_cells() - job.first_cell;
    const std::int64_t mine = first + warp * warp_threads;
    const std::int64_t cells_left = (left < in_pass ? left : in_pass) - mine;
    const auto num = static_cast<std::int32_t>(cells_left < warp_threads ? cells_left : warp_threads);
    const std::int64_t out_cell = job.first_cell + mine;
    const auto num_channels = static_cast<std::int32_t>(plan.features.num_channels);

    const std::uint32_t end = lane < num ? space.ends[mine + lane] : 0;
    std::uint32_t begin = __shfl_up_sync(all_lanes, end, 1);
    if (lane == 0 && num > 0) begin = points_of(space, mine).begin;
    const std::uint32_t count = lane < num ? end - begin : 0;
    const unsigned occupied = __ballot_sync(all_lanes, count != 0);
    const std::int64_t to = out_cell * num_channels;
    if (bytes == 4 || plan.out_dtype == DType::f32) {
        write_empty<float, width>(plan.fill, occupied, num, num_channels / width, static_cast<float*>(plan.out) + to);
    } else {
        write_empty<std::uint16_t, width>(to_16_bits(plan.fill, plan.out_dtype), occupied, num, num_channels / width,
                                          static_cast<std::uint16_t*>(plan.out) + to);
    }
    const bool is_few = count != 0 && count < warp_cell;
    const unsigned all_few = __ballot_sync(all_lanes, is_few);
    if (is_few) {
        shared.few[warp][__popc(all_few & ((1U << lane) - 1))] = {begin, static_cast<std::uint16_t>(count),
                                                                  static_cast<std::uint16_t>(lane)};
    }
    if (count >= warp_cell) {
        shared.crowded[atomicAdd(&shared.num_crowded, 1)] = static_cast<std::uint16_t>(threadIdx.x);
    }
    __syncwarp();
    reduce_few<bytes, sums, width>(job, shared.few[warp], __popc(all_few), out_cell);

    __syncthreads();
    char* scratch_of_warp = shared.scratch + warp * warp_threads * 8;
    for (std::int32_t k = warp; k < shared.num_crowded; k += feature_threads / warp_threads) {
        const Listed many = points_of(space, first + shared.crowded[k]);
        if (many.count >= block_cell) continue;
        reduce_together<Warp, bytes, sums, width>(plan, space.points + many.begin, many.count,
                                                  job.first_cell + first + shared.crowded[k], scratch_of_warp);
    }
    __syncthreads();
    for (std::int32_t k = 0; k < shared.num_crowded; ++k) {
        const Listed many = points_of(space, first + shared.crowded[k]);
        if (many.count < block_cell) continue;
        reduce_together<Block, bytes, sums, width>(plan, space.points + many.begin, many.count,
                                                   job.first_cell + first + shared.crowded[k], shared.scratch);
    }
}

}  // namespace robocache::voxelize_detail
