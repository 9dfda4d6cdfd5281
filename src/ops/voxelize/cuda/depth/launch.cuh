// Occupancy of depth images: its workspace and its launches.
#pragma once

#include <algorithm>

#include "ops/voxelize/cuda/depth/kernel.cuh"
#include "ops/voxelize/cuda/write_cells.cuh"

namespace robocache::voxelize_detail {

struct MarkSpace {
    std::uint32_t* bits;
    View* views;
};

inline MarkSpace cut_marks(const DensePlan& plan, Cutter& cutter) {
    return {cutter.take<std::uint32_t>((plan.total_cells() + 31) / 32),
            cutter.take<View>(plan.num_clouds * plan.depth.num_views)};
}

/// Writes the bits as cells, by `threads` threads.
struct WriteMarks {
    BitCells bits;
    std::int64_t num_cells;
    void* out;
    DType out_dtype;
    std::int64_t threads;

    __device__ void operator()(std::int64_t thread) const {
        write_cells(bits, num_cells, out, out_dtype, 0, thread, threads);
    }
};

template <class Raw>
void launch_marks(MarkJob job, cudaStream_t stream) {
    const DepthPlan& depth = job.depth;
    constexpr int many = 16 / static_cast<int>(sizeof(Raw));
    std::int64_t steps = depth.width * static_cast<std::int64_t>(sizeof(Raw));
    steps |= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(depth.data));
    for (int d = 0; d < 3; ++d) steps |= depth.strides[d];
    const bool wide = depth.strides[3] == sizeof(Raw) && steps % 16 == 0 && depth.unit < 0x1p60F;
    const std::int64_t chunks = wide ? depth.width / many : depth.width;
    const std::int64_t bands = (depth.height + depth_rows - 1) / depth_rows;
    const std::int64_t blocks = (chunks * bands + depth_threads - 1) / depth_threads;
    if (blocks * depth_threads > UINT32_MAX) throw Unsupported("voxelize_depth: larger images than a CUDA grid takes");
    job.chunks = static_cast<std::uint32_t>(chunks);
    job.blocks = static_cast<std::uint32_t>(blocks);
    const auto kernel = wide ? &mark_depth<Raw, many> : &mark_depth<Raw, 1>;
    launch_overlapped(kernel, {job.num_images * blocks, depth_threads}, stream, job, "voxelize: launching mark_depth");
}

inline void by_marks(const DensePlan& plan, cudaStream_t stream) {
    Cutter cutter(plan.workspace.data);
    const MarkSpace space = cut_marks(plan, cutter);
    const std::int64_t cells = plan.total_cells();
    if (cells == 0) return;
    const MarkJob job(plan, space.views, space.bits);
    for_each(std::max(job.num_fours, job.num_images), PrepareMarks{job}, stream, "voxelize: preparing marks");
    if (plan.num_points > 0) {
        plan.depth.dtype == DType::u16 ? launch_marks<std::uint16_t>(job, stream) : launch_marks<float>(job, stream);
    }
    const std::int64_t threads = std::min<std::int64_t>((cells + 15) / 16, 1 << 20);
    for_each(threads, WriteMarks{{space.bits}, cells, plan.out, plan.out_dtype, threads}, stream,
             "voxelize: writing marks");
}

}  // namespace robocache::voxelize_detail
