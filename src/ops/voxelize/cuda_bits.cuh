// Occupancy by bits: a grid of one bit for each cell, in shared memory where a cloud's fits, else in global memory.
// Then the bits are written out as cells.
#pragma once

#include "ops/voxelize/cuda_places.cuh"

namespace robocache::voxelize_detail {

constexpr int mark_threads = 256;
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

// ---- depth images: a global grid of bits ----------------------------------------------------------------------------

template <class Raw>
struct MarkArguments {
    DepthPlan depth;
    DeviceGrid<float> grid;
    std::int32_t chunks;  // of a row, per_thread pixels each
    std::int32_t bands;   // of band_rows rows, in an image
    std::int32_t blocks;  // of an image
    std::uint32_t* bits;
    std::int64_t* dropped;
};

constexpr int band_rows = 4;
constexpr int lately_bits = 12;  // of the table of cells that a block has marked lately
constexpr std::uint32_t no_cell = 0xffffffffU;

/// A thread takes the same few pixels of the rows of a band, so that the columns' part of the projection is computed
/// once; a block stays inside one image, so that the camera is read once. For quick grids.
template <class Raw, int per_thread>
__global__ __launch_bounds__(mark_threads, 3) void mark_depth(const __grid_constant__ MarkArguments<Raw> args) {
    const DepthPlan& depth = args.depth;
    __shared__ std::uint32_t lately[1 << lately_bits];
    for (std::uint32_t k = threadIdx.x; k < 1U << lately_bits; k += mark_threads) lately[k] = no_cell;
    __syncthreads();
    wait_for_earlier_work();
    const std::int32_t image = static_cast<std::int32_t>(blockIdx.x) / args.blocks;
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x - image * args.blocks) * mark_threads + threadIdx.x;
    const std::int64_t band = item / args.chunks;
    const std::int64_t u0 = (item - band * args.chunks) * per_thread;
    const std::int64_t cloud = image / depth.num_views;
    const std::int64_t view = image - cloud * depth.num_views;
    const Camera camera = camera_of(depth, cloud, view);
    const std::int64_t cloud_cells = cloud * args.grid.num_cells;
    std::uint32_t* bits = args.bits + (cloud_cells >> 5);
    const auto first_bit = static_cast<std::uint32_t>(cloud_cells & 31);
    const char* pixels = depth.data + cloud * depth.strides[0] + view * depth.strides[1] + u0 * depth.strides[3];
    std::uint32_t dropped = 0;
    float column[per_thread];
#pragma unroll
    for (int k = 0; k < per_thread; ++k) column[k] = (static_cast<float>(u0 + k) - camera.cx) / camera.fx;
    struct alignas(per_thread * sizeof(Raw)) Some {
        Raw values[per_thread];
    };
    std::int32_t last = no_point;
    const std::int64_t first_row = band * band_rows;
    const auto num_rows = static_cast<int>(depth.height - first_row < band_rows ? depth.height - first_row : band_rows);
    const auto read = [&](int r) {
        return *reinterpret_cast<const Some*>(pixels + (first_row + r) * depth.strides[2]);
    };
    Some next{};
    if (num_rows > 0) next = read(0);
    for (int r = 0; r < num_rows; ++r) {
        const float row = (static_cast<float>(first_row + r) - camera.cy) / camera.fy;
        const Some some = next;
        if (r + 1 < num_rows) next = read(r + 1);
        float p[per_thread][3];
        std::int32_t cell[per_thread];
#pragma unroll
        for (int k = 0; k < per_thread; ++k) {
            const float metres = depth_of(some.values[k], depth.unit);
            const bool measured = is_measured(metres, depth.max_depth);
            const float x = column[k] * metres;
            const float y = row * metres;
            p[k][0] = x;
            p[k][1] = y;
            p[k][2] = metres;
            if (camera.has_pose) {
#pragma unroll
                for (int a = 0; a < 3; ++a) {
                    const float* pose = camera.pose + 4 * a;
                    p[k][a] = ((pose[0] * x + pose[1] * y) + pose[2] * metres) + pose[3];
                }
            }
            cell[k] = measured ? index_quickly(args.grid.quick, p[k]) : no_point;
        }
        args.grid.settle(p, cell);
#pragma unroll
        for (int k = 0; k < per_thread; ++k) dropped += cell[k] == dropped_point ? 1 : 0;
        // Neighbours often share a cell; and what the block has marked lately is not marked again.
#pragma unroll
        for (int k = 0; k < per_thread; ++k) {
            if (cell[k] < 0 || cell[k] == last) continue;
            last = cell[k];
            const auto mine = static_cast<std::uint32_t>(cell[k]);
            if (atomicExch(&lately[mine * 2654435761U >> (32 - lately_bits)], mine) == mine) continue;
            const std::uint32_t at = mine + first_bit;
            atomicOr(bits + (at >> 5), 1U << (at & 31));
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
