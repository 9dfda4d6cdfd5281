// Points on the GPU, of any type, and the cell of each in the grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/launch.hpp"
#include "core/cuda/overlap.cuh"
#include "ops/voxelize/contract/source.hpp"
#include "ops/voxelize/cuda/dense_plan.hpp"
#include "ops/voxelize/cuda/tuning.hpp"

namespace robocache::voxelize_detail {

constexpr int warp_threads = 32;
constexpr unsigned all_lanes = 0xffffffffU;
constexpr std::int32_t no_point = -1;  // no depth was measured
constexpr std::uint32_t no_cell = 0xffffffffU;
constexpr std::uint32_t no_key = 0xffffffffU;

// Note [Fixed cells]
// A position along an axis as a share of the grid, cut to [0, 1], times the cells, plus 2^e (at least the cells of any
// axis), is a float whose low 23 - e bits are the fraction and whose higher bits are the cell. Where the fraction is
// further from 0 and 1 than the error of the position, the cell is certain. The other points, and with them all that
// were cut, take an exact path.

/// For quick grids.
struct FixedGrid {
    float scale[3];  // 1 / (size * cells)
    float cells[3];
    float whole;                 // 2^e
    std::int32_t fraction_bits;  // 23 - e
    std::uint32_t to_high;       // 2^(32 - fraction_bits)
    std::uint32_t first_index;   // of cell (0, 0, 0), to be subtracted
    std::uint32_t shape_y;
    std::uint32_t shape_z;
    float useful_steps;  // with more, most cells would be uncertain

    explicit FixedGrid(const QuickGrid& grid) {
        std::uint32_t most = 1;
        for (int a = 0; a < 3; ++a) {
            cells[a] = static_cast<float>(grid.shape[a]);
            scale[a] = 1.0F / (grid.size[a] * cells[a]);
            most = most < grid.shape[a] ? grid.shape[a] : most;
        }
        const int e = ceil_log2(most);
        whole = static_cast<float>(std::int64_t{1} << e);
        fraction_bits = 23 - e;
        to_high = 1U << (9 + e);
        useful_steps = static_cast<float>(1 << fraction_bits) / 8;
        shape_y = grid.shape[1];
        shape_z = grid.shape[2];
        const std::uint32_t first = static_cast<std::uint32_t>(127 + e) << e;
        first_index = (first * shape_y + first) * shape_z + first;
    }

    /// From positions in [0, 1], and 2^e plus some steps of the fraction. `fraction`: the smallest of the three,
    /// aligned to the left.
    __device__ __forceinline__ void find(const float position[3], float from, std::uint32_t& index,
                                         std::uint32_t& fraction) const {
        std::uint64_t at[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            const float fixed = __fmaf_rn(position[a], cells[a], from);
            at[a] = static_cast<std::uint64_t>(__float_as_uint(fixed)) * to_high;
        }
        fraction = min(min(static_cast<std::uint32_t>(at[0]), static_cast<std::uint32_t>(at[1])),
                       static_cast<std::uint32_t>(at[2]));
        index =
            (static_cast<std::uint32_t>(at[0] >> 32) * shape_y + static_cast<std::uint32_t>(at[1] >> 32)) * shape_z +
            static_cast<std::uint32_t>(at[2] >> 32);
    }

    /// 2^e plus some steps, and the fractions below which a position is within those of a face.
    __device__ __forceinline__ float whole_and(std::uint32_t steps) const {
        return __uint_as_float(__float_as_uint(whole) + steps);
    }
    __device__ __forceinline__ std::uint32_t near(std::uint32_t steps) const {
        return 2 * steps << (32 - fraction_bits);
    }
};

inline QuickGrid quick_grid(const GridPlan& grid) {
    QuickGrid quick{};
    for (int a = 0; a < 3; ++a) {
        quick.origin[a] = grid.f32.origin[a];
        quick.size[a] = grid.f32.size[a];
        quick.shape[a] = static_cast<std::uint32_t>(grid.shape[a]);
        (void)make_quick(quick.size[a], quick.less[a], quick.more[a]);
    }
    return quick;
}

/// The grid as kernels see it. `quick` and `fixed` are valid if is_quick.
struct DeviceGrid : GridPlan {
    bool is_quick;
    QuickGrid quick;
    FixedGrid fixed;

    explicit DeviceGrid(const GridPlan& plan)
        : GridPlan(plan),
          is_quick(has_quick_cells(plan)),
          quick(quick_grid(plan)),
          fixed(is_quick ? quick : QuickGrid{}) {}

    /// The index of a point's cell in its cloud; dropped_point outside. Bounded grids only: cells begin at 0.
    __device__ __forceinline__ std::int64_t index(const float p[3]) const {
        if (is_quick) {
            const std::int32_t at = index_quickly(quick, p);
            return at == unsettled ? settle_index(quick, p) : at;
        }
        Cell cell{};
        return find_cell(f32, p, cell) ? linear_index(shape, 0, cell) : dropped_point;
    }

    /// The same for several points of a quick grid, if their fractions are at least the number returned. Note [Fixed
    /// cells]: with scale (2 roundings) and product the position is off by 3 roundings, the quotient by 1, the sum by
    /// one of a number below 2^(e + 1): together less than 3 steps.
    template <int count>
    __device__ __forceinline__ std::uint32_t fixed_indices(const float (&p)[count][3], std::int32_t (&at)[count],
                                                           std::uint32_t (&fraction)[count]) const {
        constexpr std::uint32_t steps = 3;
        const float from = fixed.whole_and(steps);
#pragma unroll
        for (int k = 0; k < count; ++k) {
            float position[3];
#pragma unroll
            for (int a = 0; a < 3; ++a) position[a] = __saturatef((p[k][a] - quick.origin[a]) * fixed.scale[a]);
            std::uint32_t index = 0;
            fixed.find(position, from, index, fraction[k]);
            at[k] = static_cast<std::int32_t>(index - fixed.first_index);
        }
        return fixed.near(steps);
    }

    /// For any points of a quick grid; the exact path is taken once for all that need it.
    template <int count>
    __device__ __forceinline__ void quick_indices(const float (&p)[count][3], std::int32_t (&at)[count]) const {
        std::uint32_t fraction[count];
        const std::uint32_t near = fixed_indices(p, at, fraction);
        std::uint32_t nearest = 0xffffffffU;
#pragma unroll
        for (int k = 0; k < count; ++k) nearest = min(nearest, fraction[k]);
        if (nearest >= near) return;
#pragma unroll
        for (int k = 0; k < count; ++k) {
            if (fraction[k] < near) at[k] = settle_index(quick, p[k]);
        }
    }
};

/// Pixel number i of depth images, by 32-bit divisions where those suffice.
__device__ __forceinline__ Pixel pixel_at(const DepthPlan& depth, std::int64_t i) {
    if (i > UINT32_MAX || depth.width > INT32_MAX || depth.height > INT32_MAX || depth.num_views > INT32_MAX) {
        return pixel_of(depth, i);
    }
    const auto width = static_cast<std::uint32_t>(depth.width);
    const auto height = static_cast<std::uint32_t>(depth.height);
    const auto views = static_cast<std::uint32_t>(depth.num_views);
    const auto n = static_cast<std::uint32_t>(i);
    const std::uint32_t row = n / width;
    const std::uint32_t image = row / height;
    const std::uint32_t cloud = image / views;
    return {cloud, image - cloud * views, row - image * height, n - row * width};
}

/// Points or pixels, and their cells, numbered through all clouds. Kernels are tuned for points of f32, for which their
/// template parameter `is_f32` is true; one more instance takes all other types, chosen at run time.
struct Places {
    PointsPlan points;
    DepthPlan depth;  // data null: points are the source
    std::int64_t num_clouds;
    std::int64_t num_points;
    DeviceGrid grid;

    template <class Plan>
    explicit Places(const Plan& plan)
        : points(plan.points), num_clouds(plan.num_clouds), num_points(plan.num_points), grid(plan.grid) {
        if constexpr (requires { plan.depth; }) {
            if (plan.from_depth) depth = plan.depth;
        }
    }

    [[nodiscard]] bool is_f32() const { return depth.data == nullptr && points.dtype == DType::f32; }
    [[nodiscard]] __device__ __forceinline__ Clouds clouds() const { return clouds_of(points, num_clouds, num_points); }

    template <class T, class Scalar>
    __device__ __forceinline__ void read(std::int64_t i, Scalar p[3]) const {
        const char* row = points.data + i * points.row_stride;
#pragma unroll
        for (int a = 0; a < 3; ++a) p[a] = coordinate(*reinterpret_cast<const T*>(row + a * points.axis_stride));
    }
    /// All types but f64; false: no depth was measured.
    __device__ __forceinline__ bool read_any(std::int64_t i, float p[3]) const {
        if (depth.data != nullptr) {
            const Pixel at = pixel_at(depth, i);
            return depth.dtype == DType::u16 ? read_pixel<std::uint16_t>(depth, at, p)
                                             : read_pixel<float>(depth, at, p);
        }
        if (points.dtype == DType::f16) {
            read<Half>(i, p);
        } else {
            read<float>(i, p);
        }
        return true;
    }
    template <bool is_f32>
    __device__ __forceinline__ std::int64_t cloud_of(std::int64_t i) const {
        if (num_clouds == 1) return 0;
        if constexpr (!is_f32) {
            if (depth.data != nullptr) return pixel_at(depth, i).cloud;
        }
        return clouds().of(i);
    }
    /// The cell of a point in a grid that may be unbounded; false outside. Not for depth images.
    __device__ __forceinline__ bool find(std::int64_t i, Cell& cell) const {
        if (points.dtype == DType::f64) {
            double p[3];
            read<double>(i, p);
            return find_cell(grid.f64, p, cell);
        }
        float p[3];
        (void)read_any(i, p);
        return find_cell(grid.f32, p, cell);
    }

    /// no_point, dropped_point, or the index of the cell in its cloud.
    template <bool is_f32>
    __device__ __forceinline__ std::int64_t cell_of(std::int64_t i) const {
        if constexpr (!is_f32) return cell_of_any(i);
        float p[3];
        read<float>(i, p);
        return grid.index(p);
    }
    /// The same with cloud * cells added.
    template <bool is_f32>
    __device__ __forceinline__ std::int64_t key(std::int64_t i) const {
        const std::int64_t cell = cell_of<is_f32>(i);
        return cell < 0 || num_clouds == 1 ? cell : cloud_of<is_f32>(i) * grid.num_cells + cell;
    }

private:
    /// Not inlined: kernels call it for several points.
    __device__ __noinline__ std::int64_t cell_of_any(std::int64_t i) const {
        if (points.dtype == DType::f64) {
            Cell cell{};
            return find(i, cell) ? linear_index(grid.shape, 0, cell) : dropped_point;
        }
        float p[3];
        return read_any(i, p) ? grid.index(p) : no_point;
    }
};

}  // namespace robocache::voxelize_detail
