// Occupancy by bits: a grid of one bit for each cell, in shared memory where a cloud's fits, else in global memory.
// Then the bits are written out as cells.
#pragma once

#include "ops/voxelize/cuda_stream.cuh"

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

/// Points [begin, end), as the offsets of a cloud say.
struct PointRange {
    std::int64_t begin;
    std::int64_t end;

    __device__ bool is(const PointRange& other) const { return begin == other.begin && end == other.end; }
};

/// May be called before earlier work has finished, and then again: it reads past the first-level cache, which would
/// keep what was there before. Whatever the offsets are, the range is inside the points.
__device__ __forceinline__ PointRange range_of(const Clouds& clouds, std::int64_t cloud) {
    std::int64_t ends[2] = {0, clouds.num_points};
    if (clouds.offsets == nullptr) return {ends[0], ends[1]};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        std::int64_t at;
        asm volatile("ld.global.cg.s64 %0, [%1];"
                     : "=l"(at)
                     : "l"(clouds.offsets + (cloud + e) * clouds.stride)
                     : "memory");
        ends[e] = at < 0 ? 0 : (at > clouds.num_points ? clouds.num_points : at);
    }
    return {ends[0], ends[1]};
}

/// Asks the second-level cache for points without gaps, by all threads of the block; what it is asked for decides
/// nothing.
__device__ __forceinline__ void ask_for_points(const PointsPlan& points, const PointRange& range) {
    constexpr int line = 128;
    const std::int64_t end = range.end * points.row_stride;
    for (std::int64_t at = range.begin * points.row_stride + line * threadIdx.x; at < end; at += line * own_threads) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(points.data + at));
    }
}

constexpr int own_batch = 8;  // points of a thread that are on their way at once

/// Whether points are f32 without gaps, and begin at a multiple of 16 bytes.
__device__ __forceinline__ bool is_wide(const Places<PointReader<float>>& places, std::int64_t begin) {
    const PointsPlan& points = places.source.points;
    return places.grid.is_quick && points.row_stride == 12 && points.axis_stride == 4 &&
           (reinterpret_cast<std::uintptr_t>(points.data) + begin * 12) % 16 == 0;
}

/// A thread's points of a batch that begins at `first`: two times four. Volatile: the loads are to be on their way
/// before it is known whether they are the right ones.
__device__ __forceinline__ void read_batch(const Places<PointReader<float>>& places, std::int64_t first,
                                           std::int64_t end, float (&p)[own_batch][3]) {
#pragma unroll
    for (int f = 0; f < own_batch; f += 4) {
        const std::int64_t i = first + f * own_threads;
        if (i + 4 <= end) {
            float4 all[3];
            const char* from = places.source.points.data + i * 12;
#pragma unroll
            for (int q = 0; q < 3; ++q) {
                asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(all[q].x), "=f"(all[q].y), "=f"(all[q].z), "=f"(all[q].w)
                             : "l"(from + 16 * q));
            }
            split_four(all, p + f);
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (i + k < end) (void)places.source.read(i + k, p[f + k]);
        }
    }
}

/// Calls body(cell) for a thread's points of a batch; cells are negative outside.
template <class Body>
__device__ __forceinline__ void take_batch(const Places<PointReader<float>>& places, std::int64_t first,
                                           std::int64_t end, const float (&p)[own_batch][3], Body&& body) {
    std::int32_t cell[own_batch];
    places.grid.quick_indices(p, cell);
#pragma unroll
    for (int k = 0; k < own_batch; ++k) {
        if (first + k / 4 * 4 * own_threads + k % 4 < end) body(cell[k]);
    }
}

/// Calls body(cell) for the points of a cloud, by all threads of the block. `early` is what its range was before
/// earlier work had finished: the first points are read from there, and taken if that is what it is.
template <class T, class Body>
__device__ __forceinline__ void for_points(const Places<PointReader<T>>& places, const Clouds& clouds,
                                           std::int64_t cloud, const PointRange& early, Body&& body) {
    if constexpr (__is_same(T, float)) {
        const std::int64_t mine = 4 * static_cast<std::int64_t>(threadIdx.x);
        float p[own_batch][3] = {};
        if (is_wide(places, early.begin)) read_batch(places, early.begin + mine, early.end, p);
        const PointRange range = range_of(clouds, cloud);
        if (is_wide(places, range.begin)) {  // asked of what is certain: threads may have seen different ranges early
            if (!range.is(early)) read_batch(places, range.begin + mine, range.end, p);
            take_batch(places, range.begin + mine, range.end, p, body);
            for (std::int64_t i = range.begin + mine + own_batch * own_threads; i < range.end;
                 i += own_batch * own_threads) {
                read_batch(places, i, range.end, p);
                take_batch(places, i, range.end, p, body);
            }
            return;
        }
    }
    const PointRange range = range_of(clouds, cloud);
    for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += own_batch * own_threads) {
        typename PointReader<T>::Scalar p[own_batch][3] = {};
#pragma unroll
        for (int k = 0; k < own_batch; ++k) {
            if (i + k * own_threads < range.end) (void)places.source.read(i + k * own_threads, p[k]);
        }
#pragma unroll
        for (int k = 0; k < own_batch; ++k) {
            if (i + k * own_threads < range.end) body(places.grid.index(p[k]));
        }
    }
}

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
    const std::int64_t cloud = blockIdx.x / args.parts;
    const std::int64_t part = blockIdx.x - cloud * args.parts;
    const PointRange early = range_of(args.clouds, cloud);
    const PointsPlan& points = places.source.points;
    if (points.row_stride == 3 * sizeof(T) && points.axis_stride == sizeof(T)) ask_for_points(points, early);
    wait_for_earlier_work();
    const std::int64_t first = part * args.words * 32;  // cell
    const std::int64_t left = places.grid.num_cells - first;
    const std::int64_t num = left < args.words * 32 ? left : args.words * 32;
    std::uint32_t dropped = 0;
    for_points(places, args.clouds, cloud, early, [&](std::int64_t cell) {
        if (cell < 0) ++dropped;
        const auto mine = static_cast<std::uint64_t>(cell - first);
        if (mine < static_cast<std::uint64_t>(num)) atomicOr(&own_bits[mine >> 5], 1U << (mine & 31));
    });
    if (args.dropped != nullptr && dropped != 0) atomicAdd(&num_dropped, static_cast<unsigned long long>(dropped));
    __syncthreads();
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return own_bits[w]; }, num, args.out,
        cloud * places.grid.num_cells + first, thread, own_threads);
    if (args.dropped != nullptr && thread == 0 && part == 0) {
        args.dropped[cloud] = static_cast<std::int64_t>(num_dropped);
    }
}

// ---- a global grid of bits ------------------------------------------------------------------------------------------

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
