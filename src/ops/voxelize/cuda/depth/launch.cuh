// Occupancy of depth images: its workspace and its launches.
#pragma once

#include <algorithm>

#include "ops/voxelize/cuda/bits.cuh"
#include "ops/voxelize/cuda/depth/kernel.cuh"

namespace robocache::voxelize_detail {

/// What occupancy of depth images needs in the workspace.
struct MarkSpace {
    std::uint32_t* bits;
    View* views;
};

inline MarkSpace cut_marks(const DensePlan& plan, Cutter& cutter) {
    return {cutter.take<std::uint32_t>((plan.total_cells() + 31) / 32),
            cutter.take<View>(plan.num_clouds * plan.depth.num_views)};
}

template <class Raw>
void launch_marks(MarkArguments args, cudaStream_t stream) {
    const DepthPlan& depth = args.depth;
    constexpr int many = 16 / static_cast<int>(sizeof(Raw));
    std::int64_t steps = depth.width * static_cast<std::int64_t>(sizeof(Raw));
    steps |= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(depth.data));
    for (int d = 0; d < 3; ++d) steps |= depth.strides[d];
    const bool wide = depth.strides[3] == sizeof(Raw) && steps % 16 == 0 && depth.unit < 0x1p60F;
    const std::int64_t chunks = wide ? depth.width / many : depth.width;
    const std::int64_t bands = (depth.height + depth_rows - 1) / depth_rows;
    const std::int64_t blocks = (chunks * bands + depth_threads - 1) / depth_threads;
    if (blocks * depth_threads > UINT32_MAX) throw Unsupported("voxelize_depth: larger images than a CUDA grid takes");
    args.chunks = static_cast<std::uint32_t>(chunks);
    args.blocks = static_cast<std::uint32_t>(blocks);
    const unsigned all = blocks_for(args.num_images * blocks, 1);
    constexpr const char* what = "voxelize: launching mark_depth";
    if (wide) {
        launch_overlapped(mark_depth<Raw, many>, all, depth_threads, 0, stream, args, what);
    } else {
        launch_overlapped(mark_depth<Raw, 1>, all, depth_threads, 0, stream, args, what);
    }
}

inline void by_marks(const DensePlan& plan, cudaStream_t stream) {
    Cutter cutter(plan.workspace.data);
    const MarkSpace space = cut_marks(plan, cutter);
    const std::int64_t cells = plan.total_cells();
    if (cells == 0) return;
    if (plan.dropped != nullptr) {
        check_cuda(cudaMemsetAsync(plan.dropped, 0, static_cast<std::size_t>(plan.num_clouds) * 8, stream),
                   "voxelize: clearing dropped");
    }
    const MarkArguments marks(plan, space.views, space.bits);
    launch_overlapped(prepare_marks, blocks_for(std::max(marks.num_fours, marks.num_images), depth_threads),
                      depth_threads, 0, stream, marks, "voxelize: launching prepare_marks");
    if (plan.num_points > 0) {
        if (plan.depth.dtype == DType::u16) {
            launch_marks<std::uint16_t>(marks, stream);
        } else {
            launch_marks<float>(marks, stream);
        }
    }
    const WriteArguments args{space.bits, cells, plan.out, plan.out_dtype};
    launch_overlapped(write_marks, blocks_for(std::min<std::int64_t>((cells + 15) / 16, 1 << 20), write_threads),
                      write_threads, 0, stream, args, "voxelize: launching write_marks");
}

}  // namespace robocache::voxelize_detail
