// Features of points, reduced cell by cell. One kernel has a block for each bin, which lists the points of its cells; a
// second one goes through the grid as it lies in memory and writes it once: a warp writes the empty ones of its cells,
// and makes a few channels of the others with each of its threads. Cells with many points are made by a warp together,
// those with very many by the block.
#pragma once

#include "ops/voxelize/cuda/channels.cuh"

namespace robocache::voxelize_detail {

/// Lists the points of a bin, cell by cell, by a block. `ends`: in shared memory, a zero for each cell.
__device__ __forceinline__ void list_bin(const FeatureArguments& args, std::int32_t bin, std::uint32_t* ends,
                                         std::uint32_t* warp_sums, LongSpans& longer) {
    __shared__ std::uint32_t base;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    const auto mask = static_cast<std::uint32_t>(bin_cells - 1);
    const std::int64_t in_pass = static_cast<std::int64_t>(bin) << args.tiles.bin_bits;
    const std::int64_t left = args.num_cells - args.first_cell - in_pass;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    for_keys_of_bin<std::uint32_t>(args.tiles, bin, longer,
                                   [&](std::uint32_t key, std::int64_t) { atomicAdd(&ends[key & mask], 1U); });
    __syncthreads();
    if (args.counts != nullptr) {
        write_counts(ends, num, false, args.counts + args.first_cell + in_pass);
        __syncthreads();
    }

    // Counts become starts; then every point takes a place, and starts become ends. A warp has cells side by side.
    const std::int32_t share = bin_cells / (list_threads / warp_threads);
    std::uint32_t* mine = ends + thread / warp_threads * share + thread % warp_threads;
    std::uint32_t sum = 0;
    for (std::int32_t k = 0; k < share; k += warp_threads) sum += mine[k];
    sum = __reduce_add_sync(all_lanes, sum);
    std::uint32_t total = 0;
    std::uint32_t start = block_scan(thread % warp_threads == 0 ? sum : 0, warp_sums, total);
    if (thread == 0) {
        base = total > 0 ? atomicAdd(args.listed, total) : 0;  // without points there was no sort_tiles
        args.begins[bin] = base;
    }
    __syncthreads();
    start += base;
    start = __shfl_sync(all_lanes, start, 0);
    for (std::int32_t k = 0; k < share; k += warp_threads) {
        const std::uint32_t size = mine[k];
        std::uint32_t upto = size;
#pragma unroll
        for (int step = 1; step < warp_threads; step *= 2) {
            const std::uint32_t other = __shfl_up_sync(all_lanes, upto, step);
            if (thread % warp_threads >= step) upto += other;
        }
        mine[k] = start + upto - size;
        start += __shfl_sync(all_lanes, upto, warp_threads - 1);
    }
    __syncthreads();
    for_keys_of_bin<std::uint32_t>(args.tiles, bin, longer, [&](std::uint32_t key, std::int64_t tile) {
        const std::uint32_t at = atomicAdd(&ends[key & mask], 1U);
        args.points[at] = static_cast<std::uint32_t>(tile * args.tiles.tile) + (key >> 16);
    });
    __syncthreads();
    for (std::int32_t c = thread; c < bin_cells / 4; c += list_threads) {
        reinterpret_cast<uint4*>(args.ends + in_pass)[c] = reinterpret_cast<const uint4*>(ends)[c];
    }
}

__device__ __forceinline__ void clear_shared(void* memory, std::int32_t bytes) {
    for (std::int32_t at = 16 * static_cast<std::int32_t>(threadIdx.x); at < bytes; at += 16 * list_threads) {
        *reinterpret_cast<uint4*>(static_cast<char*>(memory) + at) = make_uint4(0, 0, 0, 0);
    }
}

/// One block lists the points of one bin.
static __global__ __launch_bounds__(list_threads, 2) void list_points(const __grid_constant__ FeatureArguments args) {
    extern __shared__ __align__(16) std::uint32_t ends[];  // of each cell in the bin's list of points
    __shared__ std::uint32_t warp_sums[list_threads / warp_threads];
    __shared__ LongSpans longer;
    clear_shared(ends, 4 << args.tiles.bin_bits);
    __syncthreads();
    wait_for_earlier_work();
    list_bin(args, static_cast<std::int32_t>(blockIdx.x), ends, warp_sums, longer);
}

/// Where the points of a cell are in the list.
struct Listed {
    std::uint32_t begin;
    std::uint32_t count;
};

__device__ __forceinline__ Listed points_of(const FeatureArguments& args, std::int64_t cell) {
    const bool first = (cell & ((std::int64_t{1} << args.tiles.bin_bits) - 1)) == 0;
    const std::uint32_t begin = *(first ? args.begins + (cell >> args.tiles.bin_bits) : args.ends + cell - 1);
    return {begin, args.ends[cell] - begin};
}

/// Writes `value` to all channels of a warp's cells that are not in `occupied`; `out` is where the first one begins.
template <class Out, int width>
__device__ __forceinline__ void write_empty(Out value, unsigned occupied, std::int32_t num, std::int32_t parts,
                                            Out* out) {
    struct alignas(width * sizeof(Out)) Some {
        Out values[width];
    };
    Some some;
#pragma unroll
    for (int u = 0; u < width; ++u) some.values[u] = value;
    auto* to = reinterpret_cast<Some*>(out);
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    if (occupied == 0) {
#pragma unroll 4
        for (std::int32_t at = lane; at < num * parts; at += warp_threads) write_away(to + at, some);
        return;
    }
    std::int32_t cell = lane / parts;
    std::int32_t part = lane - cell * parts;
    const std::int32_t more_cells = warp_threads / parts;
    const std::int32_t more_parts = warp_threads - more_cells * parts;
    for (std::int32_t at = lane; at < num * parts; at += warp_threads) {
        if ((occupied >> cell & 1U) == 0) write_away(to + at, some);
        part += more_parts;
        cell += more_cells + (part >= parts ? 1 : 0);
        part -= part >= parts ? parts : 0;
    }
}

/// A cell with a few points, as a warp notes it down.
struct FewPoints {
    std::uint32_t begin;
    std::uint16_t count;
    std::uint16_t cell;  // of the warp's
};

/// Makes the cells that a warp has noted down, side by side, so that no thread is idle; two at once.
template <class In, Sums sums, int width>
__device__ __forceinline__ void reduce_few(const FeatureArguments& args, const FewPoints* few, std::int32_t num_few,
                                           std::int64_t out_cell) {
    constexpr int batch = 2;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);
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
            if (cell[u].count != 0) point[u] = args.points[cell[u].begin];
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count != 0) read_channels<In, width>(args, point[u], c[u], x[u]);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count == 0) continue;
            float result[width];
            reduce_channels<In, sums, width>(args, args.points + cell[u].begin, cell[u].count, c[u], x[u], result);
            write_channels<In, width>(args, args.out, (out_cell + cell[u].cell) * num_channels + c[u], result);
        }
    }
}

struct FeatureShared {
    std::uint16_t crowded[feature_threads];  // cells of the block
    std::int32_t num_crowded;
    FewPoints few[feature_threads / warp_threads][warp_threads];
    alignas(16) char scratch[feature_threads * 8];
};

/// A block writes cells of the pass from `first` on, one for each thread. width: channels of a thread, 4 where memory
/// allows.
template <class In, Sums sums, int width>
__device__ __forceinline__ void write_block(const FeatureArguments& args, std::int64_t first, FeatureShared& shared) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto warp = static_cast<std::int32_t>(threadIdx.x / warp_threads);
    const std::int64_t in_pass = std::int64_t{args.tiles.num_bins} << args.tiles.bin_bits;
    const std::int64_t left = args.num_cells - args.first_cell;
    const std::int64_t mine = first + warp * warp_threads;
    const std::int64_t cells_left = (left < in_pass ? left : in_pass) - mine;
    const auto num = static_cast<std::int32_t>(cells_left < warp_threads ? cells_left : warp_threads);
    const std::int64_t out_cell = args.first_cell + mine;
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);

    const std::uint32_t end = lane < num ? args.ends[mine + lane] : 0;
    std::uint32_t begin = __shfl_up_sync(all_lanes, end, 1);
    if (lane == 0 && num > 0) begin = points_of(args, mine).begin;
    const std::uint32_t count = lane < num ? end - begin : 0;
    const unsigned occupied = __ballot_sync(all_lanes, count != 0);
    const float empty = args.fill;
    const std::int64_t to = out_cell * num_channels;
    if constexpr (__is_same(In, Half) || __is_same(In, BFloat16)) {
        if (!args.out_is_f32) {
            write_empty<In, width>(narrow<In>(empty), occupied, num, num_channels / width,
                                   static_cast<In*>(args.out) + to);
        }
    }
    if (args.out_is_f32) {
        write_empty<float, width>(empty, occupied, num, num_channels / width, static_cast<float*>(args.out) + to);
    }
    const bool is_few = count != 0 && count < warm_cell;
    const unsigned all_few = __ballot_sync(all_lanes, is_few);
    if (is_few) {
        shared.few[warp][__popc(all_few & ((1U << lane) - 1))] = {begin, static_cast<std::uint16_t>(count),
                                                                  static_cast<std::uint16_t>(lane)};
    }
    const std::int32_t num_few = __popc(all_few);
    if (count >= warm_cell) {
        shared.crowded[atomicAdd(&shared.num_crowded, 1)] = static_cast<std::uint16_t>(threadIdx.x);
    }
    __syncwarp();
    reduce_few<In, sums, width>(args, shared.few[warp], num_few, out_cell);

    __syncthreads();
    char* scratch_of_warp = shared.scratch + warp * warp_threads * 8;
    for (std::int32_t k = warp; k < shared.num_crowded; k += feature_threads / warp_threads) {
        const Listed many = points_of(args, first + shared.crowded[k]);
        if (many.count >= heavy_cell) continue;
        reduce_together<Warp, In, sums, width>(args, args.points + many.begin, many.count, args.out,
                                               args.first_cell + first + shared.crowded[k], scratch_of_warp);
    }
    __syncthreads();
    for (std::int32_t k = 0; k < shared.num_crowded; ++k) {
        const Listed many = points_of(args, first + shared.crowded[k]);
        if (many.count < heavy_cell) continue;
        reduce_together<Block, In, sums, width>(args, args.points + many.begin, many.count, args.out,
                                                args.first_cell + first + shared.crowded[k], shared.scratch);
    }
}

/// A block for some cells.
template <class In, Sums sums, int width>
__global__ __launch_bounds__(feature_threads, Rounds<sums>::num_sums > 0 ? 3 : 5) void write_features(
    const __grid_constant__ FeatureArguments args) {
    __shared__ FeatureShared shared;
    if (threadIdx.x == 0) shared.num_crowded = 0;
    __syncthreads();
    wait_for_earlier_work();
    write_block<In, sums, width>(args, static_cast<std::int64_t>(blockIdx.x) * feature_threads, shared);
}

/// Launches write_features; for features of each type.
void launch_features_f32(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_f16(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_bf16(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_u8(const FeatureArguments& args, bool deterministic, cudaStream_t stream);

}  // namespace robocache::voxelize_detail
