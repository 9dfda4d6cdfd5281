// The second kernel of slots: a block counts or marks the keys of its bin in shared memory, and writes its cells.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/voxelize/cuda/slots.cuh"

namespace robocache::voxelize_detail {

/// The cells of a bin in shared memory: counters, or bits.
template <bool marks>
struct BinCells {
    std::uint32_t* words;

    /// Only if it is a key; said in PTX, because the compiler makes a branch of it.
    __device__ __forceinline__ void take_slot(std::uint32_t slot) const {
        const std::uint32_t to = shared_address(words + (marks ? slot >> 5 : slot));
        if constexpr (marks) {
            asm volatile(
                "{\n .reg .pred is_key;\n setp.lt.u32 is_key, %1, 0x8000;\n"
                " @is_key red.shared.or.b32 [%0], %2;\n}" ::"r"(to),
                "r"(slot), "r"(1U << (slot & 31))
                : "memory");
        } else {
            asm volatile(
                "{\n .reg .pred is_key;\n setp.lt.u32 is_key, %1, 0x8000;\n"
                " @is_key red.shared.add.u32 [%0], 1;\n}" ::"r"(to),
                "r"(slot)
                : "memory");
        }
    }

    /// Keys come first in a unit.
    __device__ __forceinline__ void take_unit(const uint4& unit) const {
        const std::uint32_t pairs[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if (w >= 2 && (pairs[w] & 0xffffU) >= has_span) return;
            take_slot(pairs[w] & 0xffffU);
            take_slot(pairs[w] >> 16);
        }
    }

    /// Some units, by a warp.
    __device__ __forceinline__ void take_span(const uint4* from, std::uint32_t num) const {
        constexpr std::uint32_t batch = 2;
        for (std::uint32_t k = threadIdx.x % warp_threads; k < num; k += batch * warp_threads) {
            uint4 unit[batch];
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                unit[u] = make_uint4(no_key, no_key, no_key, no_key);
                if (k + u * warp_threads < num) unit[u] = from[k + u * warp_threads];
            }
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                if constexpr (marks) {
                    mark_together(unit[u]);
                } else {
                    take_unit(unit[u]);
                }
            }
        }
    }

    /// Keys of a span are often of one word, where threads would wait for each other.
    __device__ __forceinline__ void mark_together(const uint4& unit) const {
        const std::uint32_t pairs[4] = {unit.x, unit.y, unit.z, unit.w};
        std::uint32_t word = 0;
        std::uint32_t bits = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const std::uint32_t key = pairs[k / 2] >> (16 * (k % 2)) & 0xffffU;
            if (key >= has_span) break;
            if (key >> 5 != word && bits != 0) {
                atomicOr(words + word, bits);
                bits = 0;
            }
            word = key >> 5;
            bits |= 1U << (key & 31);
        }
        if (bits != 0) atomicOr(words + word, bits);
    }
};

/// Takes every key of a bin, by all threads of the block, which have so many units on their way at once.
template <bool marks, std::uint32_t batch>
__device__ __forceinline__ void take_bin(const SlotTiles& tiles, LongSpans& longer, const BinCells<marks>& cells) {
    static_assert(LongSpans::most * row_units % (batch * fill_threads) == 0);
    const std::uint32_t num = tiles.num_tiles * row_units;
    const uint4* rows = tiles.rows + static_cast<std::int64_t>(blockIdx.x) * num;
    std::uint32_t first = threadIdx.x;
    for (std::uint32_t begin = 0; begin < num; begin += LongSpans::most * row_units) {
        const std::uint32_t end = min(num, begin + LongSpans::most * row_units);
        bool has_longer = false;
        for (; first < end; first += batch * fill_threads) {
            uint4 unit[batch];
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                unit[u].x = no_key;
                if (first + u * fill_threads < end) unit[u] = rows[first + u * fill_threads];
            }
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                const std::uint32_t slot = unit[u].x & 0xffffU;
                if (slot < has_span) {
                    cells.take_unit(unit[u]);
                } else if (slot == has_span) {
                    has_longer = true;
                    longer.spans[atomicAdd(&longer.num, 1)] =
                        make_uint2((first + u * fill_threads) / row_units, unit[u].x >> 16 | unit[u].y << 16);
                }
            }
        }
        // Not asked of longer.num: the next round may be adding to it.
        if (__syncthreads_or(has_longer ? 1 : 0) == 0) continue;
        const std::int32_t num_spans = longer.num;
        for (std::int32_t e = threadIdx.x / warp_threads; e < num_spans; e += fill_threads / warp_threads) {
            const uint2 span = longer.spans[e];
            const std::uint16_t* keys = tiles.spans + static_cast<std::int64_t>(span.x) * span_pitch;
            cells.take_span(reinterpret_cast<const uint4*>(keys + (span.y & 0xffffU)), ((span.y >> 16) + 7) / 8);
        }
        __syncthreads();
        if (threadIdx.x == 0) longer.num = 0;
        __syncthreads();
    }
}

struct FillArguments {
    SlotTiles tiles;
    std::int64_t num_cells;
    void* out;
    DType out_dtype;
    bool occupancy;
    std::int32_t* counts;
};

/// A block counts the keys of its bin, or marks bits, and writes its cells. Of one wave of tiles it has two units for a
/// thread, and few registers; of more, many.
template <bool marks, bool many>
__global__ __launch_bounds__(fill_threads,
                             many ? 1 : 2) void fill_from_slots(const __grid_constant__ FillArguments args) {
    extern __shared__ __align__(16) std::uint32_t slot_counters[];
    __shared__ LongSpans longer;
    if constexpr (marks) {
        for (std::uint32_t w = threadIdx.x; w < args.tiles.bin_cells / 32; w += fill_threads) slot_counters[w] = 0;
    } else {
        auto* fours = reinterpret_cast<uint4*>(slot_counters);
        for (std::uint32_t c = threadIdx.x; c < args.tiles.bin_cells / 4; c += fill_threads) {
            fours[c] = make_uint4(0, 0, 0, 0);
        }
    }
    if (threadIdx.x == 0) longer.num = 0;
    __syncthreads();
    wait_for_earlier_work();
    take_bin<marks, many ? 4 : 2>(args.tiles, longer, {slot_counters});
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * args.tiles.bin_cells;
    const std::int64_t left = args.num_cells - first;
    const auto num = static_cast<std::int32_t>(left < args.tiles.bin_cells ? left : args.tiles.bin_cells);
    if constexpr (marks) {
        write_cells_as(
            args.out_dtype, [&](std::int64_t w) { return slot_counters[w]; }, num, args.out, first, threadIdx.x,
            fill_threads);
    } else {
        write_counts_as(args.out_dtype, slot_counters, num, args.occupancy, args.out, first);
        if (args.counts != nullptr) write_counts(slot_counters, num, false, args.counts + first);
    }
}

}  // namespace robocache::voxelize_detail
