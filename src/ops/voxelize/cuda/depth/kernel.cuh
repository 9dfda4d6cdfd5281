// Occupancy of depth images: a global grid of bits, marked by blocks that stay inside one image.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/voxelize/cuda/depth/view.cuh"

namespace robocache::voxelize_detail {

constexpr int depth_warps = depth_threads / 32;

/// Depths of adjacent pixels.
template <class Raw, int count>
struct alignas(count * sizeof(Raw)) SomeDepths {
    Raw values[count];

    __device__ __forceinline__ Raw raw(int k) const { return values[k]; }
    __device__ __forceinline__ float meters(int k, float unit) const { return depth_of(values[k], unit); }
    __device__ __forceinline__ bool is_measured(int k) const { return static_cast<float>(values[k]) > 0.0F; }
};

/// Two in a word, so that the compiler does not split them into registers of their own.
template <int count>
    requires(count % 2 == 0)
struct alignas(count * 2) SomeDepths<std::uint16_t, count> {
    std::uint32_t pairs[count / 2];

    __device__ __forceinline__ std::uint16_t raw(int k) const {
        return static_cast<std::uint16_t>(pairs[k / 2] >> (16 * (k % 2)));
    }
    __device__ __forceinline__ bool is_measured(int k) const { return raw(k) != 0; }
    /// 2^23 + raw as a float, times the unit, less 2^23 times the unit: the last is exact, the rest is rounded once.
    __device__ __forceinline__ float meters(int k, float unit) const {
        const std::uint32_t bits = __byte_perm(pairs[k / 2], 0x4b000000U, k % 2 == 0 ? 0x7410 : 0x7432);
        return __fmaf_rn(__uint_as_float(bits), unit, -8388608.0F * unit);
    }
};

/// Cells that a thread has still to mark, in its own column of shared memory. 32-bit addresses: this is the hot loop.
class Queue {
public:
    __device__ explicit Queue(const std::uint32_t* column) : begin_(shared_address(column)), end_(begin_) {}

    __device__ __forceinline__ void push(std::uint32_t what) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(end_), "r"(what) : "memory");
        end_ += step;
    }
    __device__ __forceinline__ std::uint32_t pop() {
        end_ -= step;
        std::uint32_t what;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(what) : "r"(end_) : "memory");
        return what;
    }
    __device__ __forceinline__ bool is_empty() const { return end_ == begin_; }
    __device__ __forceinline__ std::uint32_t size() const { return (end_ - begin_) / step; }

private:
    static constexpr std::uint32_t step = depth_threads * 4;
    std::uint32_t begin_;
    std::uint32_t end_;
};

/// The cell of a pixel by the rules of the contract; dropped_point, or no_point.
template <class Raw>
__device__ __forceinline__ std::int32_t cell_of_pixel(const MarkJob& job, const Camera& camera, float u, float v,
                                                      Raw raw) {
    const float meters = depth_of(raw, job.depth.unit);
    if (!is_measured(meters, job.depth.max_depth)) return no_point;
    float p[3];
    point_of_pixel(camera, u, v, meters, p);
    const std::int32_t at = index_quickly(job.grid.quick, p);
    return at == unsettled ? settle_index(job.grid.quick, p) : at;
}

/// The pixels of a thread: the same columns of some rows.
template <int per_thread>
struct Strip {
    std::uint32_t u;
    std::uint32_t v;

    __device__ Strip(const MarkJob& job, std::uint32_t number) {
        const std::uint32_t band = number / job.chunks;
        u = (number - band * job.chunks) * per_thread;
        v = band * depth_rows;  // may be below the image
    }
    __device__ __forceinline__ std::int64_t offset(const DepthPlan& depth) const {
        return v * depth.strides[2] + u * depth.strides[3];
    }
    __device__ __forceinline__ std::int32_t num_rows(const DepthPlan& depth) const {
        const std::int64_t left = depth.height - v;
        return static_cast<std::int32_t>(left < depth_rows ? (left < 0 ? 0 : left) : depth_rows);
    }
};

/// Marks cells of one cloud, except those that the block has marked recently.
struct Marker {
    std::uint32_t* recent;
    std::uint32_t* bits;
    std::uint32_t first_bit;

    __device__ __forceinline__ void mark(std::uint32_t cell) const {
        if (atomicExch(&recent[cell * 2654435761U >> (32 - recent_bits)], cell) == cell) return;
        const std::uint32_t at = cell + first_bit;
        atomicOr(bits + (at >> 5), 1U << (at & 31));
    }
};

/// Pixels of a warp that are too near to a face, kept until there are enough for all its threads, or until all warps of
/// the block share the rest.
template <class Raw, int per_thread>
struct NearPixels {
    static constexpr std::uint32_t enough = per_thread * 32;
    Raw raws[2 * enough];
    std::uint16_t where[2 * enough];  // row << 11 | thread << 4 | pixel of the strip
};

/// Neighbors often share a cell: a cell that was marked beside, above or recently is not marked again. The others wait
/// in a queue of the thread, so that the threads of a warp mark together. For quick grids.
template <class Raw, int per_thread>
__global__ __launch_bounds__(depth_threads, depth_blocks_per_sm) void mark_depth(const __grid_constant__ MarkJob job) {
    using Some = SomeDepths<Raw, per_thread>;
    const DepthPlan& depth = job.depth;
    const FixedGrid& fixed = job.grid.fixed;
    __shared__ __align__(16) std::uint32_t recent[1 << recent_bits];
    __shared__ std::uint32_t queues[queue_size][depth_threads];
    __shared__ NearPixels<Raw, per_thread> all_near[depth_warps];
    __shared__ std::uint32_t nums_near[depth_warps];
    __shared__ Camera camera;
    for (std::uint32_t k = threadIdx.x; k < 1U << (recent_bits - 2); k += depth_threads) {
        reinterpret_cast<uint4*>(recent)[k] = make_uint4(no_cell, no_cell, no_cell, no_cell);
    }
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t image = blockIdx.x / job.blocks;
    const std::uint32_t cloud = image / static_cast<std::uint32_t>(depth.num_views);
    const std::uint32_t view = image - cloud * static_cast<std::uint32_t>(depth.num_views);
    const std::uint32_t number = (blockIdx.x - image * job.blocks) * depth_threads + threadIdx.x;
    const Strip<per_thread> strip(job, number);
    const std::int32_t num_rows = strip.num_rows(depth);
    const char* first_pixel = depth.data + cloud * depth.strides[0] + view * depth.strides[1];
    const char* pixels = first_pixel + strip.offset(depth);
    const std::int64_t cloud_cells = static_cast<std::int64_t>(cloud) * job.grid.num_cells;
    const Marker marker{recent, job.bits + (cloud_cells >> 5), static_cast<std::uint32_t>(cloud_cells & 31)};
    wait_for_earlier_work();
    Some next{};
    if (num_rows > 0) next = *reinterpret_cast<const Some*>(pixels);
    static_assert(sizeof(Camera) % 4 == 0 && sizeof(Camera) <= 4 * depth_threads);
    if (threadIdx.x < sizeof(Camera) / 4) {  // in parallel: one thread takes longer
        reinterpret_cast<std::uint32_t*>(&camera)[threadIdx.x] =
            reinterpret_cast<const std::uint32_t*>(&job.views[image].camera)[threadIdx.x];
    }
    if (threadIdx.x < depth_warps) nums_near[threadIdx.x] = 0;
    const auto first_v = static_cast<float>(strip.v);
    const Rays rays = rays_of<per_thread>(job.views[image], static_cast<float>(strip.u), first_v);
    __syncthreads();

    std::uint32_t dropped = 0;
    Queue queue(&queues[0][threadIdx.x]);
    NearPixels<Raw, per_thread>& near = all_near[threadIdx.x / 32];
    std::uint32_t& num_near = nums_near[threadIdx.x / 32];
    const auto mark_near = [&](const NearPixels<Raw, per_thread>& some, std::uint32_t e) {
        const std::uint32_t where = some.where[e];
        const Strip<per_thread> of(job, number - threadIdx.x + (where >> 4 & 127U));
        const std::int32_t cell = cell_of_pixel(job, camera, static_cast<float>(of.u + (where & 15U)),
                                                static_cast<float>(of.v + (where >> 11)), some.raws[e]);
        dropped += cell == dropped_point ? 1 : 0;
        if (cell >= 0) marker.mark(static_cast<std::uint32_t>(cell));
    };
    std::uint32_t above[per_thread];
#pragma unroll
    for (int k = 0; k < per_thread; ++k) above[k] = fixed.first_index + no_cell;
    const std::int32_t rows_of_warp = __reduce_max_sync(all_lanes, num_rows);
    for (std::int32_t r = 0; r < rows_of_warp; ++r) {
        const Some some = next;
        next = Some{};  // depth 0 is no point
        pixels += depth.strides[2];
        if (r + 1 < num_rows) next = *reinterpret_cast<const Some*>(pixels);
        const float row = (first_v + static_cast<float>(r) - rays.cy) * rays.per_fy;
        float ray[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) ray[a] = __fmaf_rn(rays.row[a], row, rays.base[a]);
        float meters[per_thread];
        float deepest = 0;
#pragma unroll
        for (int k = 0; k < per_thread; ++k) {
            meters[k] = some.meters(k, depth.unit);
            deepest = fmaxf(deepest, meters[k]);
        }
        const Nearness limit = nearness_of(fixed, rays, deepest, depth.max_depth);
        const float from = fixed.whole_and(limit.steps);
        std::uint32_t index[per_thread];
        std::uint32_t fraction[per_thread];
        std::uint32_t nearest = 0xffffffffU;
#pragma unroll
        for (int k = 0; k < per_thread; ++k) {
            float position[3];
#pragma unroll
            for (int a = 0; a < 3; ++a) {
                const float along = __fmaf_rn(rays.step[a], static_cast<float>(k), ray[a]);
                position[a] = __saturatef(__fmaf_rn(along, meters[k], rays.offset[a]));
            }
            fixed.find(position, from, index[k], fraction[k]);
            if (meters[k] > 0.0F) {
                nearest = min(nearest, fraction[k]);
            } else {
                index[k] = above[k];
            }
        }
        const bool any_near = nearest < limit.near;
        if (any_near) {
#pragma unroll
            for (int k = 0; k < per_thread; ++k) {
                if (fraction[k] < limit.near && some.is_measured(k)) {
                    index[k] = above[k];
                    const std::uint32_t at = atomicAdd(&num_near, 1U);
                    near.raws[at] = some.raw(k);
                    near.where[at] =
                        static_cast<std::uint16_t>(static_cast<std::uint32_t>(r) << 11 | threadIdx.x << 4 | k);
                }
            }
        }
        // The last pixel of the thread to the left is marked, or waits to be.
        std::uint32_t beside = __shfl_up_sync(all_lanes, index[per_thread - 1], 1);
        if (lane == 0) beside = above[0];
#pragma unroll
        for (int k = 0; k < per_thread; ++k) {
            if (index[k] != above[k] && index[k] != beside) queue.push(index[k]);
            beside = index[k];
            above[k] = index[k];
        }
        const bool is_last = r + 1 == rows_of_warp;
        if (__any_sync(all_lanes, any_near)) {
            __syncwarp();
            const std::uint32_t num = num_near;
            if (num > near.enough) {
                for (std::uint32_t e = lane; e < num; e += 32) mark_near(near, e);
                __syncwarp();
                if (lane == 0) num_near = 0;
            }
            __syncwarp();
        }
        if (__any_sync(all_lanes, is_last || queue.size() > queue_size - per_thread)) {
            while (__any_sync(all_lanes, !queue.is_empty())) {  // all threads of a warp stay together
                if (!queue.is_empty()) marker.mark(queue.pop() - fixed.first_index);
            }
        }
    }
    __syncthreads();
    std::uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < depth_warps; ++w) all += nums_near[w];
    for (std::uint32_t e = threadIdx.x; e < all; e += depth_threads) {
        std::uint32_t at = e;
        int w = 0;
        for (; at >= nums_near[w]; ++w) at -= nums_near[w];
        mark_near(all_near[w], at);
    }
    if (job.dropped != nullptr) {
        dropped = __reduce_add_sync(all_lanes, dropped);
        if (lane == 0 && dropped != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(job.dropped) + cloud,
                      static_cast<unsigned long long>(dropped));
        }
    }
}

}  // namespace robocache::voxelize_detail
