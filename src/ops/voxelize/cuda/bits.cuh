// Occupancy by bits: a grid of one bit for each cell, in shared memory where a cloud's fits, else in global memory.
// Then the bits are written out as cells.
#pragma once

#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

constexpr int own_threads = 1024;
constexpr int write_threads = 256;

/// `count` cells (a multiple of 4 but for the end of the grid) from bits; `out` is where the first one goes.
template <class Out>
__device__ __forceinline__ void write_bits(std::uint32_t bits, std::int32_t count, Out* out) {
    struct alignas(4 * sizeof(Out)) Four {
        Out cells[4];
    };
    const auto cell = [&](int c) { return static_cast<Out>((bits >> c) & 1U); };
    if (count == 4 && reinterpret_cast<std::uintptr_t>(out) % sizeof(Four) == 0) {
        *reinterpret_cast<Four*>(out) = {cell(0), cell(1), cell(2), cell(3)};
        return;
    }
    for (int c = 0; c < count; ++c) out[c] = cell(c);
}

/// A thread writes 16 bytes of cells where it can: 16 bytes of u8 are four times four cells.
template <class Out, class Bits>
__device__ __forceinline__ void write_cells(Bits&& word_of, std::int64_t num, Out* out, std::int64_t thread,
                                            std::int64_t threads) {
    if constexpr (sizeof(Out) == 1) {
        if (reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
            const std::int64_t whole = num / 16;
            for (std::int64_t k = thread; k < whole; k += threads) {
                const std::uint32_t bits = word_of(k / 2) >> (16 * (k & 1));
                std::uint32_t words[4];
#pragma unroll
                for (int u = 0; u < 4; ++u) {  // four bits to four bytes
                    const std::uint32_t four = (bits >> (4 * u)) & 15U;
                    words[u] = (four * 0x00204081U) & 0x01010101U;
                }
                *reinterpret_cast<uint4*>(out + 16 * k) = make_uint4(words[0], words[1], words[2], words[3]);
            }
            for (std::int64_t c = whole * 16 + thread; c < num; c += threads) {
                out[c] = static_cast<Out>((word_of(c / 32) >> (c & 31)) & 1U);
            }
            return;
        }
    }
    for (std::int64_t k = thread; k < (num + 3) / 4; k += threads) {
        const std::uint32_t bits = word_of(k / 8) >> (4 * (k & 7));
        const std::int64_t left = num - 4 * k;
        write_bits<Out>(bits & 15U, static_cast<std::int32_t>(left < 4 ? left : 4), out + 4 * k);
    }
}

template <class Bits>
__device__ __forceinline__ void write_cells_as(DType dtype, Bits&& word_of, std::int64_t num, void* out,
                                               std::int64_t first, std::int64_t thread, std::int64_t threads) {
    switch (dtype) {
        case DType::i32: return write_cells(word_of, num, static_cast<std::int32_t*>(out) + first, thread, threads);
        case DType::f32: return write_cells(word_of, num, static_cast<float*>(out) + first, thread, threads);
        default: return write_cells(word_of, num, static_cast<std::uint8_t*>(out) + first, thread, threads);
    }
}

// ---- a few blocks for each cloud ------------------------------------------------------------------------------------

template <class Source>
struct OwnArguments {
    Places<Source> places;
    Clouds clouds;
    std::int32_t parts;  // blocks of a cloud
    std::int32_t words;  // of each
    void* out;
    DType out_dtype;
    std::int64_t* dropped;
};

/// Every block of a cloud looks at all its points, and marks and writes its own part of the cells.
template <class T>
__global__ __launch_bounds__(own_threads) void mark_own_cells(
    const __grid_constant__ OwnArguments<PointReader<T>> args) {
    extern __shared__ __align__(16) std::uint32_t own_bits[];
    __shared__ unsigned long long num_dropped;
    const Places<PointReader<T>>& places = args.places;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    for (std::int32_t w = thread; w < args.words; w += own_threads) own_bits[w] = 0;
    if (thread == 0) num_dropped = 0;
    __syncthreads();
    wait_for_earlier_work();
    const std::int64_t cloud = blockIdx.x / args.parts;
    const std::int64_t part = blockIdx.x - cloud * args.parts;
    const std::int64_t first = part * args.words * 32;  // cell
    const std::int64_t left = places.grid.num_cells - first;
    const std::int64_t num = left < args.words * 32 ? left : args.words * 32;
    const std::int64_t begin = args.clouds.begin(cloud);
    const std::int64_t end = args.clouds.begin(cloud + 1);
    std::uint32_t dropped = 0;
    constexpr int batch = 8;  // points on their way at once
    for (std::int64_t i = begin + thread; i < end; i += batch * own_threads) {
        typename PointReader<T>::Scalar p[batch][3] = {};
#pragma unroll
        for (int k = 0; k < batch; ++k) {
            if (i + k * own_threads < end) (void)places.source.read(i + k * own_threads, p[k]);
        }
        const auto mark = [&](int k, std::int64_t cell) {
            if (i + k * own_threads >= end) return;
            if (cell < 0) ++dropped;
            const auto mine = static_cast<std::uint64_t>(cell - first);
            if (mine < static_cast<std::uint64_t>(num)) atomicOr(&own_bits[mine >> 5], 1U << (mine & 31));
        };
        if constexpr (sizeof(p[0][0]) == 4) {
            if (places.grid.is_quick) {
                std::int32_t cell[batch];
                places.grid.quick_indices(p, cell);
#pragma unroll
                for (int k = 0; k < batch; ++k) mark(k, cell[k]);
                continue;
            }
        }
#pragma unroll
        for (int k = 0; k < batch; ++k) mark(k, places.grid.index(p[k]));
    }
    if (args.dropped != nullptr && dropped != 0) atomicAdd(&num_dropped, static_cast<unsigned long long>(dropped));
    __syncthreads();
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return own_bits[w]; }, num, args.out,
        cloud * places.grid.num_cells + first, thread, own_threads);
    if (args.dropped != nullptr && thread == 0 && part == 0) {
        args.dropped[cloud] = static_cast<std::int64_t>(num_dropped);
    }
}

// ---- a global grid of bits
// -------------------------------------------------------------------------------------------

struct WriteArguments {
    const std::uint32_t* bits;
    std::int64_t num_cells;
    void* out;
    DType out_dtype;
};

static __global__ __launch_bounds__(write_threads) void write_marks(const __grid_constant__ WriteArguments args) {
    wait_for_earlier_work();
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * write_threads + threadIdx.x;
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return args.bits[w]; }, args.num_cells, args.out, 0, thread,
        static_cast<std::int64_t>(gridDim.x) * write_threads);
}

}  // namespace robocache::voxelize_detail
