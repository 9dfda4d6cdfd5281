// Cells in shared memory, a counter or a bit each, and how they are written to a grid of any type.
#pragma once

#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

template <class Out>
struct alignas(4 * sizeof(Out)) FourCells {
    Out cells[4];
};

/// Cells as counters.
struct CounterCells {
    const std::uint32_t* words;
    bool occupancy;

    template <class Out>
    __device__ __forceinline__ Out value(std::uint32_t count) const {
        if (occupancy) return static_cast<Out>(count != 0 ? 1 : 0);
        if constexpr (sizeof(Out) == 1) return static_cast<Out>(count < 255 ? count : 255);
        return static_cast<Out>(count);
    }
    template <class Out>
    __device__ __forceinline__ Out one(std::int64_t c) const {
        return value<Out>(words[c]);
    }
    template <class Out>
    __device__ __forceinline__ FourCells<Out> four(std::int64_t k) const {
        const uint4 all = reinterpret_cast<const uint4*>(words)[k];
        return {value<Out>(all.x), value<Out>(all.y), value<Out>(all.z), value<Out>(all.w)};
    }
};

/// Cells as bits.
struct BitCells {
    const std::uint32_t* words;

    template <class Out>
    __device__ __forceinline__ Out one(std::int64_t c) const {
        return static_cast<Out>(words[c / 32] >> (c & 31) & 1U);
    }
    template <class Out>
    __device__ __forceinline__ FourCells<Out> four(std::int64_t k) const {
        const std::uint32_t bits = words[k / 8] >> (4 * (k & 7));
        const auto cell = [&](int c) { return static_cast<Out>(bits >> c & 1U); };
        return {cell(0), cell(1), cell(2), cell(3)};
    }
    /// 16 cells of a byte.
    __device__ __forceinline__ uint4 sixteen(std::int64_t k) const {
        const std::uint32_t bits = words[k / 2] >> (16 * (k & 1));
        const auto bytes = [&](int u) { return (bits >> (4 * u) & 15U) * 0x00204081U & 0x01010101U; };
        return make_uint4(bytes(0), bytes(1), bytes(2), bytes(3));
    }
};

/// By thread `thread` of `threads`: 16 bytes or four cells at a time where `out` is aligned.
template <class Cells, class Out, class Index>
__device__ __forceinline__ void write_cells(const Cells& cells, Index num, Out* out, Index thread, Index threads) {
    Index done = 0;
    constexpr bool by_sixteen = sizeof(Out) == 1 && __is_same(Cells, BitCells);
    const auto at = reinterpret_cast<std::uintptr_t>(out);
    if constexpr (by_sixteen) {
        if (at % 16 == 0) {
            done = num / 16 * 16;
            for (Index k = thread; k < num / 16; k += threads) reinterpret_cast<uint4*>(out)[k] = cells.sixteen(k);
        }
    }
    if (done == 0 && at % sizeof(FourCells<Out>) == 0) {
        done = num / 4 * 4;
        for (Index k = thread; k < num / 4; k += threads) {
            reinterpret_cast<FourCells<Out>*>(out)[k] = cells.template four<Out>(k);
        }
    }
    for (Index c = done + thread; c < num; c += threads) out[c] = cells.template one<Out>(c);
}

/// The same from cell `first` of a grid of any type on.
template <class Cells, class Index>
__device__ __forceinline__ void write_cells(const Cells& cells, Index num, void* out, DType dtype, std::int64_t first,
                                            Index thread, Index threads) {
    switch (dtype) {
        case DType::i32: return write_cells(cells, num, static_cast<std::int32_t*>(out) + first, thread, threads);
        case DType::f32: return write_cells(cells, num, static_cast<float*>(out) + first, thread, threads);
        case DType::i64:  // counts only
            if constexpr (__is_same(Cells, CounterCells)) {
                write_cells(cells, num, static_cast<std::int64_t*>(out) + first, thread, threads);
            }
            return;
        default: return write_cells(cells, num, static_cast<std::uint8_t*>(out) + first, thread, threads);
    }
}

/// The cells of a block in shared memory: bits if `marks`, else counters.
template <bool marks>
struct BlockCells {
    std::uint32_t* words;

    __device__ __forceinline__ void clear(std::int32_t num) const {
        const auto thread = static_cast<std::int32_t>(threadIdx.x);
        const auto threads = static_cast<std::int32_t>(blockDim.x);
        if constexpr (marks) {
            for (std::int32_t w = thread; w < num / 32; w += threads) words[w] = 0;
        } else {
            for (std::int32_t c = thread; c < num / 4; c += threads) {
                reinterpret_cast<uint4*>(words)[c] = make_uint4(0, 0, 0, 0);
            }
        }
    }
    __device__ __forceinline__ void add(std::uint32_t cell) const {
        if constexpr (marks) {
            atomicOr(words + (cell >> 5), 1U << (cell & 31));
        } else {
            atomicAdd(words + cell, 1U);
        }
    }
    /// Writes up to `most` cells of the grid from `first` on, and their counts where they are wanted.
    __device__ __forceinline__ void write(const DensePlan& plan, std::int64_t first, std::int32_t most) const {
        const std::int64_t left = plan.total_cells() - first;
        const std::int32_t num = left < most ? static_cast<std::int32_t>(left) : most;
        const auto thread = static_cast<std::int32_t>(threadIdx.x);
        const auto threads = static_cast<std::int32_t>(blockDim.x);
        if constexpr (marks) {
            write_cells(BitCells{words}, num, plan.out, plan.out_dtype, first, thread, threads);
        } else {
            const CounterCells cells{words, plan.reduction == Reduction::occupancy};
            write_cells(cells, num, plan.out, plan.out_dtype, first, thread, threads);
            if (plan.counts == nullptr) return;
            write_cells(CounterCells{words, false}, num, plan.counts + first, thread, threads);
        }
    }
};

}  // namespace robocache::voxelize_detail
