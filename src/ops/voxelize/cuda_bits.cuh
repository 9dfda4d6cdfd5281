// Occupancy by bits: a grid of one bit for each cell, in shared memory where a cloud's fits, else in global memory,
// where a bit is tested before it is set. Then the bits are written out as cells.
#pragma once

#include "ops/voxelize/cuda_places.cuh"

namespace robocache::voxelize_detail {

constexpr int mark_threads = 256;
constexpr int own_threads = 1024;
constexpr int write_threads = 256;

/// Tested before: most points of a scan fall where a point has been. A stale answer costs a needless atomic, no more.
__device__ __forceinline__ void set_bit(std::uint32_t* bits, std::int64_t cell) {
    std::uint32_t* word = bits + (cell >> 5);
    const std::uint32_t bit = 1U << (cell & 31);
    if ((*static_cast<volatile std::uint32_t*>(word) & bit) == 0) atomicOr(word, bit);
}

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

// ---- one block for each cloud ---------------------------------------------------------------------------------------

template <class Source>
struct OwnArguments {
    Places<Source> places;
    Clouds clouds;
    void* out;
    DType out_dtype;
    std::int64_t* dropped;
};

template <class T>
__global__ __launch_bounds__(own_threads) void mark_own_cloud(
    const __grid_constant__ OwnArguments<PointReader<T>> args) {
    extern __shared__ __align__(16) std::uint32_t own_bits[];
    __shared__ unsigned long long num_dropped;
    const Places<PointReader<T>>& places = args.places;
    const std::int64_t num_cells = places.grid.num_cells;
    const auto words = static_cast<std::int32_t>((num_cells + 31) / 32);
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    for (std::int32_t w = thread; w < words; w += own_threads) own_bits[w] = 0;
    if (thread == 0) num_dropped = 0;
    __syncthreads();
    wait_for_earlier_work();
    const std::int64_t begin = args.clouds.begin(blockIdx.x);
    const std::int64_t end = args.clouds.begin(blockIdx.x + 1);
    std::uint32_t dropped = 0;
#pragma unroll 4
    for (std::int64_t i = begin + thread; i < end; i += own_threads) {
        typename PointReader<T>::Scalar p[3];
        (void)places.source.read(i, p);
        const std::int64_t cell = places.grid.index(p);
        if (cell < 0) {
            ++dropped;
        } else {
            atomicOr(&own_bits[cell >> 5], 1U << (cell & 31));
        }
    }
    if (args.dropped != nullptr && dropped != 0) atomicAdd(&num_dropped, static_cast<unsigned long long>(dropped));
    __syncthreads();
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * num_cells;
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return own_bits[w]; }, num_cells, args.out, first, thread, own_threads);
    if (args.dropped != nullptr && thread == 0) args.dropped[blockIdx.x] = static_cast<std::int64_t>(num_dropped);
}

// ---- depth images: a global grid of bits ----------------------------------------------------------------------------

template <class Raw>
struct MarkArguments {
    DepthPlan depth;
    DeviceGrid<float> grid;
    std::int64_t num_images;
    std::int32_t bands;  // of rows, in an image
    std::uint32_t* bits;
    std::int64_t* dropped;
};

constexpr int band_rows = 8;

/// A block takes a band of rows of one image; a thread the same pixels of every row, so that the camera is read once
/// and the columns' part of the projection is computed once.
template <class Raw, int per_thread>
__global__ __launch_bounds__(mark_threads) void mark_depth(const __grid_constant__ MarkArguments<Raw> args) {
    const DepthPlan& depth = args.depth;
    wait_for_earlier_work();
    const std::int64_t image = blockIdx.x / args.bands;
    const std::int64_t first_row = (blockIdx.x - image * args.bands) * static_cast<std::int64_t>(band_rows);
    const std::int64_t cloud = image / depth.num_views;
    const std::int64_t view = image - cloud * depth.num_views;
    const Camera camera = camera_of(depth, cloud, view);
    std::uint32_t dropped = 0;
    std::uint32_t* bits = args.bits;
    const std::int64_t cloud_cells = cloud * args.grid.num_cells;
    for (std::int64_t u0 = static_cast<std::int64_t>(threadIdx.x) * per_thread; u0 < depth.width;
         u0 += mark_threads * per_thread) {
        float column[per_thread];
#pragma unroll
        for (int k = 0; k < per_thread; ++k) column[k] = (static_cast<float>(u0 + k) - camera.cx) / camera.fx;
        std::int64_t last = -1;  // the cell marked last: neighbours often share it
        for (int r = 0; r < band_rows; ++r) {
            const std::int64_t v = first_row + r;
            if (v >= depth.height) break;
            const float row = (static_cast<float>(v) - camera.cy) / camera.fy;
            struct alignas(per_thread * sizeof(Raw)) Some {
                Raw values[per_thread];
            };
            const char* from = depth.data + cloud * depth.strides[0] + view * depth.strides[1] + v * depth.strides[2] +
                               u0 * depth.strides[3];
            const Some some = *reinterpret_cast<const Some*>(from);
#pragma unroll
            for (int k = 0; k < per_thread; ++k) {
                const float metres = depth_of(some.values[k], depth.unit);
                if (!is_measured(metres, depth.max_depth)) continue;
                const float x = column[k] * metres;
                const float y = row * metres;
                float p[3] = {x, y, metres};
                if (camera.has_pose) {
#pragma unroll
                    for (int a = 0; a < 3; ++a) {
                        const float* pose = camera.pose + 4 * a;
                        p[a] = ((pose[0] * x + pose[1] * y) + pose[2] * metres) + pose[3];
                    }
                }
                const std::int64_t cell = args.grid.index(p);
                if (cell < 0) {
                    ++dropped;
                } else if (cell != last) {
                    set_bit(bits, cloud_cells + cell);
                    last = cell;
                }
            }
        }
    }
    if (args.dropped != nullptr) {
        dropped = __reduce_add_sync(0xffffffffU, dropped);
        if (threadIdx.x % 32 == 0 && dropped != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(args.dropped) + cloud,
                      static_cast<unsigned long long>(dropped));
        }
    }
}

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
