// Points on the GPU: reading them, whatever they are made of, and the place of each in the grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda_overlap.cuh"
#include "ops/voxelize/source.hpp"

namespace robocache::voxelize_detail {

constexpr std::int32_t no_point = -1;  // no depth was measured

/// The grid as kernels see it.
template <class Scalar>
struct DeviceGrid {
    CellGrid<Scalar> cells;
    QuickGrid quick;
    std::int64_t shape[3];
    std::int64_t num_cells;
    bool is_quick;

    explicit DeviceGrid(const GridPlan& grid)
        : cells(cells_of(grid, Scalar{})),
          quick{},
          num_cells(grid.num_cells),
          is_quick(sizeof(Scalar) == 4 && grid.num_cells > 0 && grid.num_cells <= INT32_MAX) {
        for (int a = 0; a < 3; ++a) {
            shape[a] = grid.shape[a];
            quick.origin[a] = static_cast<float>(cells.origin[a]);
            quick.size[a] = static_cast<float>(cells.size[a]);
            quick.shape[a] = static_cast<std::uint32_t>(shape[a]);
            const bool normal = make_quick(static_cast<float>(cells.size[a]), quick.less[a], quick.more[a]);
            is_quick = is_quick && normal && shape[a] <= QuickGrid::most_cells;
        }
    }

    __device__ __forceinline__ bool find(const Scalar p[3], Cell& cell) const { return find_cell(cells, p, cell); }

    /// The index of a point's cell in its cloud; dropped_point outside. Bounded grids only: cells begin at 0.
    __device__ __forceinline__ std::int64_t index(const Scalar p[3]) const {
        if constexpr (sizeof(Scalar) == 4) {
            if (is_quick) {
                const std::int32_t at = index_quickly(quick, p);
                return at == unsettled ? settle_index(quick, p) : at;
            }
        }
        Cell cell{};
        return find(p, cell) ? linear_index(shape, 0, cell) : dropped_point;
    }

    /// The same for several points of a quick grid, whose rare cases are looked at together.
    template <int count>
    __device__ __forceinline__ void quick_indices(const float (&p)[count][3], std::int32_t (&at)[count]) const {
#pragma unroll
        for (int k = 0; k < count; ++k) at[k] = index_quickly(quick, p[k]);
        settle(p, at);
    }

    template <int count>
    __device__ __forceinline__ void settle(const float (&p)[count][3], std::int32_t (&at)[count]) const {
        bool all_settled = true;
#pragma unroll
        for (int k = 0; k < count; ++k) all_settled = all_settled && at[k] != unsettled;
        if (all_settled) return;
#pragma unroll
        for (int k = 0; k < count; ++k) {
            if (at[k] == unsettled) at[k] = settle_index(quick, p[k]);
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

/// What a reader of source.hpp answers, on the device.
template <class Source>
struct OnDevice;

template <class T>
struct OnDevice<PointReader<T>> {
    using Scalar = typename PointReader<T>::Scalar;
    static constexpr bool is_depth = false;

    __device__ static __forceinline__ bool read(const PointReader<T>& source, std::int64_t i, Scalar p[3]) {
        return source.read(i, p);
    }
    __device__ static __forceinline__ std::int64_t cloud_of(const PointReader<T>& source, std::int64_t i) {
        return source.num_clouds == 1 ? 0 : source.cloud_of(i);
    }
    __device__ static __forceinline__ const char* features_of(const PointReader<T>& source, std::int64_t i) {
        return source.features_of(i);
    }
};

template <class Raw>
struct OnDevice<DepthReader<Raw>> {
    using Scalar = float;
    static constexpr bool is_depth = true;

    __device__ static __forceinline__ bool read(const DepthReader<Raw>& source, std::int64_t i, float p[3]) {
        const DepthPlan& depth = source.depth;
        const Pixel at = pixel_at(depth, i);
        const Raw raw = *reinterpret_cast<const Raw*>(depth.data + pixel_offset(depth.strides, at));
        const float metres = depth_of(raw, depth.unit);
        if (!is_measured(metres, depth.max_depth)) return false;
        point_of_pixel(camera_of(depth, at.cloud, at.view), static_cast<float>(at.u), static_cast<float>(at.v), metres,
                       p);
        return true;
    }
    __device__ static __forceinline__ std::int64_t cloud_of(const DepthReader<Raw>& source, std::int64_t i) {
        return source.num_clouds == 1 ? 0 : pixel_at(source.depth, i).cloud;
    }
    __device__ static __forceinline__ const char* features_of(const DepthReader<Raw>& source, std::int64_t i) {
        return source.features.data + pixel_offset(source.features.strides, pixel_at(source.depth, i));
    }
};

/// Points and their cells, numbered through all clouds.
template <class Source>
struct Places {
    using Device = OnDevice<Source>;
    using Scalar = typename Device::Scalar;

    Source source;
    DeviceGrid<Scalar> grid;

    Places(const Source& from, const GridPlan& plan) : source(from), grid(plan) {}

    /// no_point, dropped_point, or cloud * cells + cell.
    __device__ __forceinline__ std::int64_t key(std::int64_t i) const {
        Scalar p[3];
        if (!Device::read(source, i, p)) return no_point;
        const std::int64_t cell = grid.index(p);
        if (cell < 0 || source.num_clouds == 1) return cell;
        return Device::cloud_of(source, i) * grid.num_cells + cell;
    }
};

/// Blocks of `threads` for `items`, one each.
inline unsigned blocks_for(std::int64_t items, int threads) {
    const std::int64_t blocks = (items + threads - 1) / threads;
    if (blocks > INT32_MAX) throw Unsupported("voxelize: more work than a CUDA grid has blocks");
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks);
}

/// More than 48 KiB of dynamic shared memory have to be asked for.
template <class Kernel>
void allow_shared(Kernel* kernel, std::int64_t bytes) {
    if (bytes <= 48 * 1024) return;
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
}

/// Cuts a workspace, or only counts its bytes (data null).
class Cutter {
public:
    explicit Cutter(char* data) : data_(data) {}

    template <class T>
    T* take(std::int64_t count) {
        T* at = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
        used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
        return at;
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

private:
    char* data_;
    std::int64_t used_ = 0;
};

}  // namespace robocache::voxelize_detail
