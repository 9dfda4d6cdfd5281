// Cameras of depth images: places of pixels in fused operations, and how far they may be off.
#pragma once

#include "core/cuda/for_each.cuh"
#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

// Note [Near pixels]
// What the contract wants for a pixel is forty operations, none of them fused. The same place in fused operations,
//   ((P0 C + P1 R + P2) m + P3 - origin) / extent     along each axis,
// is off by a few roundings of its terms, and so is the result of the contract; Note [Fixed cells] covers the rest.
// The roundings of each term, here and there together: P0 C m: 10, P1 R m: 13, P2 m: 6, P3: 1, P3 - origin: 1, and 4 of
// a number up to 2^e. So a place may be off by a little that grows with the depth; the bound is rounded up generously.

/// The constants of an image. Positions are shares of the grid.
struct alignas(16) View {
    double cx;
    double per_fx;
    double column[3];  // (column C + row R + depth) m + offset
    double depth[3];
    float row[3];
    float step[3];  // of a column
    float offset[3];
    float cy;
    float per_fy;
    float off_column;  // off + (off_column |C| + off_row |R| + off_depth) m is at least the error of positions,
    float off_row;     // in steps of the fraction
    float off_depth;
    float off;      // a whole number
    Camera camera;  // for pixels near faces
};

struct MarkJob {
    DepthPlan depth;
    DeviceGrid grid;
    std::int64_t num_images;
    View* views;
    std::uint32_t* bits;
    std::int64_t num_fours;  // of words of bits
    std::int64_t* dropped;
    double per_extent[3];  // of the grid
    std::uint32_t chunks;  // of a row, per_thread pixels each
    std::uint32_t blocks;  // of an image

    MarkJob(const DensePlan& plan, View* to_views, std::uint32_t* to_bits)
        : depth(plan.depth),
          grid(plan.grid),
          num_images(plan.num_clouds * plan.depth.num_views),
          views(to_views),
          bits(to_bits),
          num_fours((plan.total_cells() + 127) / 128),
          dropped(plan.dropped) {
        for (int a = 0; a < 3; ++a) {
            per_extent[a] = 1.0 / (static_cast<double>(grid.quick.size[a]) * static_cast<double>(grid.fixed.cells[a]));
        }
    }
};

__device__ inline View view_of(const MarkJob& job, const Camera& camera) {
    const QuickGrid& grid = job.grid.quick;
    const FixedGrid& fixed = job.grid.fixed;
    View view{};
    view.camera = camera;
    view.cx = camera.cx;
    view.cy = camera.cy;
    view.per_fx = 1.0 / static_cast<double>(camera.fx);
    view.per_fy = 1.0F / camera.fy;
    const float steps = static_cast<float>(1 << fixed.fraction_bits) * 0x1p-24F;  // of a rounding of a cell
    float off = 0;
    float all = 0;
    for (int a = 0; a < 3; ++a) {
        float p[4];
        for (int c = 0; c < 4; ++c) p[c] = camera.has_pose ? camera.pose[4 * a + c] : (c == a ? 1.0F : 0.0F);
        const double per_extent = job.per_extent[a];
        view.column[a] = static_cast<double>(p[0]) * per_extent;
        view.row[a] = static_cast<float>(static_cast<double>(p[1]) * per_extent);
        view.depth[a] = static_cast<double>(p[2]) * per_extent;
        view.step[a] = static_cast<float>(view.column[a] * view.per_fx);
        view.offset[a] =
            static_cast<float>((static_cast<double>(p[3]) - static_cast<double>(grid.origin[a])) * per_extent);
        const float tiny = 0x1p-100F * (grid.size[a] * fixed.cells[a]);  // for terms that underflow
        const float per_size = steps / grid.size[a];
        const float column = (11.0F * fabsf(p[0]) + tiny) * per_size;
        const float row = (14.0F * fabsf(p[1]) + tiny) * per_size;
        const float depth = (7.0F * fabsf(p[2]) + tiny) * per_size;
        const float rest = 2.0F * (fabsf(p[3]) + fabsf(p[3] - grid.origin[a])) +
                           0x1p-100F * (1.0F + fabsf(p[0]) + fabsf(p[1]) + fabsf(p[2]));
        view.off_column = fmaxf(view.off_column, column);
        view.off_row = fmaxf(view.off_row, row);
        view.off_depth = fmaxf(view.off_depth, depth);
        off = fmaxf(off, rest * per_size);
        all += column + row + depth + rest * per_size;
    }
    view.off = ceilf(off + (5.0F * fixed.whole + 2.0F) * steps) + 1.0F;
    if (!(all < 0x1p22F)) view.off = 0x1p23F;  // infinite or not a number: nothing is certain
    return view;
}

/// Clears the bits and computes the views; a kernel, so that the next one can overlap with it.
struct PrepareMarks : MarkJob {
    __device__ void operator()(std::int64_t k) const {
        if (k < num_fours) reinterpret_cast<uint4*>(bits)[k] = make_uint4(0, 0, 0, 0);
        if (k >= num_images) return;
        const std::int64_t cloud = k / depth.num_views;
        views[k] = view_of(*this, camera_of(depth, cloud, k - cloud * depth.num_views));
    }
};

/// The places of a thread's pixels: (base + row R + step k) m + offset.
struct Rays {
    float base[3];
    float row[3];
    float step[3];
    float offset[3];
    float cy;
    float per_fy;
    float off;        // 2^23 + the error of positions at depth 0, and
    float off_depth;  // its growth per meter
};

template <int per_thread>
__device__ __forceinline__ Rays rays_of(const View& view, float u0, float v0) {
    Rays rays;
    const double column = (static_cast<double>(u0) - view.cx) * view.per_fx;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
        rays.base[a] = static_cast<float>(fma(view.column[a], column, view.depth[a]));
        rays.row[a] = view.row[a];
        rays.step[a] = view.step[a];
        rays.offset[a] = view.offset[a];
    }
    rays.cy = view.cy;
    rays.per_fy = view.per_fy;
    const float columns = fabsf(static_cast<float>(column)) + per_thread * fabsf(static_cast<float>(view.per_fx));
    const float rows = fmaxf(fabsf(v0 - view.cy), fabsf(v0 + depth_rows - view.cy)) * fabsf(view.per_fy);
    rays.off = 0x1p23F + view.off;
    rays.off_depth = __fmaf_rn(view.off_column, columns, __fmaf_rn(view.off_row, rows, view.off_depth));
    return rays;
}

/// How many steps of the fraction away from faces is certain, for depths up to `meters`, and a bit of the number of
/// steps for every one that is too near.
struct Nearness {
    std::uint32_t steps;
    std::uint32_t near;
};

__device__ __forceinline__ Nearness nearness_of(const FixedGrid& fixed, const Rays& rays, float meters,
                                                float max_depth) {
    const float off = __fmaf_ru(rays.off_depth, meters, rays.off);
    const bool useful = off < 0x1p23F + fixed.useful_steps && meters <= max_depth;
    const std::uint32_t steps = useful ? __float_as_uint(off) - 0x4b000000U : 0;
    return {steps, useful ? fixed.near(steps) : 0xffffffffU};
}

}  // namespace robocache::voxelize_detail
