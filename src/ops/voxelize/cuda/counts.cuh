// Occupancy and count by bins: a block counts the keys of its bin in shared memory, or marks bits, and writes its
// cells.
#pragma once

#include "ops/voxelize/cuda/bins.cuh"
#include "ops/voxelize/cuda/bits.cuh"

namespace robocache::voxelize_detail {

constexpr int bin_threads = 256;  // of a block that makes a small bin
constexpr int large_bin_threads = 512;
constexpr int huge_bin_threads = 1024;

struct CountArguments {
    SortedTiles tiles;
    std::int64_t first_cell;
    std::int64_t num_cells;  // of all clouds
    void* out;
    DType out_dtype;
    bool occupancy;
    std::int32_t* counts;
};

template <class Out>
__device__ __forceinline__ Out cell_value(std::uint32_t count, bool occupancy) {
    if (occupancy) return static_cast<Out>(count != 0 ? 1 : 0);
    if constexpr (sizeof(Out) == 1) return static_cast<Out>(count < 255 ? count : 255);
    return static_cast<Out>(count);
}

/// Writes `num` counters as cells of type Out, four at a time where `out` is aligned.
template <class Out>
__device__ __forceinline__ void write_counts(const std::uint32_t* counters, std::int32_t num, bool occupancy,
                                             Out* out) {
    struct alignas(4 * sizeof(Out)) Four {
        Out cells[4];
    };
    std::int32_t done = 0;
    if (reinterpret_cast<std::uintptr_t>(out) % sizeof(Four) == 0) {
        done = num / 4 * 4;
        for (std::int32_t c = 4 * static_cast<std::int32_t>(threadIdx.x); c < done;
             c += 4 * static_cast<std::int32_t>(blockDim.x)) {
            const uint4 four = *reinterpret_cast<const uint4*>(counters + c);
            *reinterpret_cast<Four*>(out + c) = {cell_value<Out>(four.x, occupancy), cell_value<Out>(four.y, occupancy),
                                                 cell_value<Out>(four.z, occupancy),
                                                 cell_value<Out>(four.w, occupancy)};
        }
    }
    for (std::int32_t c = done + static_cast<std::int32_t>(threadIdx.x); c < num;
         c += static_cast<std::int32_t>(blockDim.x)) {
        out[c] = cell_value<Out>(counters[c], occupancy);
    }
}

__device__ __forceinline__ void write_counts_as(DType dtype, const std::uint32_t* counters, std::int32_t num,
                                                bool occupancy, void* out, std::int64_t first) {
    switch (dtype) {
        case DType::i32: return write_counts(counters, num, occupancy, static_cast<std::int32_t*>(out) + first);
        case DType::i64: return write_counts(counters, num, occupancy, static_cast<std::int64_t*>(out) + first);
        case DType::f32: return write_counts(counters, num, occupancy, static_cast<float*>(out) + first);
        default: return write_counts(counters, num, occupancy, static_cast<std::uint8_t*>(out) + first);
    }
}

template <int threads>
__global__ __launch_bounds__(threads, 1024 / threads) void count_bins(const __grid_constant__ CountArguments args) {
    extern __shared__ __align__(16) std::uint32_t counters[];
    __shared__ LongSpans longer;
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    for (std::int32_t c = static_cast<std::int32_t>(threadIdx.x); c < bin_cells / 4; c += threads) {
        reinterpret_cast<uint4*>(counters)[c] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    for_keys_of_bin<std::uint16_t>(args.tiles, bin, longer,
                                   [&](std::uint32_t key, std::int64_t) { atomicAdd(&counters[key], 1U); });
    __syncthreads();
    const std::int64_t first = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    write_counts_as(args.out_dtype, counters, num, args.occupancy, args.out, first);
    if (args.counts != nullptr) write_counts(counters, num, false, args.counts + first);
}

/// Occupancy alone needs a bit for each cell, so that a bin may have all the cells that keys of 16 bits can tell apart.
template <int threads>
__global__ __launch_bounds__(threads, 1024 / threads) void mark_bins(const __grid_constant__ CountArguments args) {
    extern __shared__ __align__(16) std::uint32_t bin_marks[];
    __shared__ LongSpans longer;
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    for (std::int32_t w = static_cast<std::int32_t>(threadIdx.x); w < bin_cells / 32; w += threads) bin_marks[w] = 0;
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    for_keys_of_bin<std::uint16_t>(args.tiles, bin, longer, [&](std::uint32_t key, std::int64_t) {
        atomicOr(&bin_marks[key >> 5], 1U << (key & 31));
    });
    __syncthreads();
    const std::int64_t first = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first;
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return bin_marks[w]; }, left < bin_cells ? left : bin_cells, args.out,
        first, threadIdx.x, threads);
}

}  // namespace robocache::voxelize_detail
