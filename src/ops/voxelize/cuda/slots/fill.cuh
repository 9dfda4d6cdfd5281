// The second kernel of slots: a block counts or marks the keys of its bin in shared memory, and writes its cells.
#pragma once

#include "ops/voxelize/cuda/bins/fill.cuh"
#include "ops/voxelize/cuda/slots/sort.cuh"

namespace robocache::voxelize_detail {

/// The cells of a bin, filled from slots.
template <bool marks>
struct SlotCells : BlockCells<marks> {
    using BlockCells<marks>::words;

    /// Adds a slot if it holds a key. PTX with a predicate, because the compiler makes a branch of it, which is slower.
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

    /// Keys come first in a unit, empty slots last.
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

    /// Keys of a span are often in one word, so a thread joins the bits of a word before its atomic.
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

/// Takes every key of a bin, by all threads of the block; each has `batch` loads in flight.
template <bool marks, std::uint32_t batch>
__device__ __forceinline__ void take_bin(const SlotTiles& tiles, LongSpans& longer, const SlotCells<marks>& cells) {
    static_assert(LongSpans::most * row_units % (batch * slot_fill_threads) == 0);
    const std::uint32_t num = tiles.num_tiles * row_units;
    const uint4* rows = tiles.rows + static_cast<std::int64_t>(blockIdx.x) * num;
    std::uint32_t first = threadIdx.x;
    for (std::uint32_t begin = 0; begin < num; begin += LongSpans::most * row_units) {
        const std::uint32_t end = min(num, begin + LongSpans::most * row_units);
        bool has_longer = false;
        for (; first < end; first += batch * slot_fill_threads) {
            uint4 unit[batch];
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                unit[u].x = no_key;
                if (first + u * slot_fill_threads < end) unit[u] = rows[first + u * slot_fill_threads];
            }
#pragma unroll
            for (std::uint32_t u = 0; u < batch; ++u) {
                const std::uint32_t slot = unit[u].x & 0xffffU;
                if (slot < has_span) {
                    cells.take_unit(unit[u]);
                } else if (slot == has_span) {
                    has_longer = true;
                    longer.spans[atomicAdd(&longer.num, 1)] =
                        make_uint2((first + u * slot_fill_threads) / row_units, unit[u].x >> 16 | unit[u].y << 16);
                }
            }
        }
        // Not read from longer.num: other threads may already add to it in the next round.
        if (__syncthreads_or(has_longer ? 1 : 0) == 0) continue;
        const std::int32_t num_spans = longer.num;
        for (std::int32_t e = threadIdx.x / warp_threads; e < num_spans; e += slot_fill_threads / warp_threads) {
            const uint2 span = longer.spans[e];
            const std::uint16_t* keys = tiles.spans + static_cast<std::int64_t>(span.x) * slot_span_pitch;
            cells.take_span(reinterpret_cast<const uint4*>(keys + (span.y & 0xffffU)), ((span.y >> 16) + 7) / 8);
        }
        __syncthreads();
        if (threadIdx.x == 0) longer.num = 0;
        __syncthreads();
    }
}

struct FillJob {
    DensePlan plan;
    SlotTiles tiles;
};

/// A block counts the keys of its bin, or marks bits, and writes its cells. With one wave of tiles a thread has two
/// units, and needs few registers; with more (`many`), it has many.
template <bool marks, bool many>
__global__ __launch_bounds__(slot_fill_threads,
                             many ? 1 : 2) void fill_from_slots(const __grid_constant__ FillJob job) {
    extern __shared__ __align__(16) std::uint32_t slot_words[];
    __shared__ LongSpans longer;
    const SlotCells<marks> cells{{slot_words}};
    cells.clear(static_cast<std::int32_t>(job.tiles.bin_cells));
    if (threadIdx.x == 0) longer.num = 0;
    __syncthreads();
    wait_for_earlier_work();
    take_bin<marks, many ? 4 : 2>(job.tiles, longer, cells);
    cells.write(job.plan, static_cast<std::int64_t>(blockIdx.x) * job.tiles.bin_cells,
                static_cast<std::int32_t>(job.tiles.bin_cells));
}

}  // namespace robocache::voxelize_detail
