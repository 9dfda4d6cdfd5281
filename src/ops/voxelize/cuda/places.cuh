// Points on the GPU: reading them, whatever they are made of, and the place of each in the grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/device.hpp"
#include "core/cuda/overlap.cuh"
#include "ops/voxelize/contract/source.hpp"

namespace robocache::voxelize_detail {

constexpr std::int32_t no_point = -1;  // no depth was measured
constexpr std::uint32_t no_cell = 0xffffffffU;
constexpr unsigned all_lanes = 0xffffffffU;

// Note [Fixed cells]
// A place along an axis as a share of the grid, cut to [0, 1], times the cells, plus 2^e (at least the cells of any
// axis), is a float whose low 23 - e bits are the fraction and whose higher ones the cell. Where the fraction is
// further from 0 and 1 than the place may be off, the cell is certain. The others, and with them all that was cut, are
// left to exact methods.

/// For quick grids.
struct FixedGrid {
    float scale[3];  // 1 / (size * cells)
    float cells[3];
    float whole;                 // 2^e
    std::int32_t fraction_bits;  // 23 - e
    std::uint32_t to_high;       // 2^(32 - fraction_bits)
    std::uint32_t first_index;   // what cell (0, 0, 0) has before it is taken away
    std::uint32_t shape_y;
    std::uint32_t shape_z;
    float useful_steps;  // with more, most cells would be uncertain

    /// From places, each in [0, 1], and 2^e with some steps of the fraction more. The smallest of the fractions is
    /// aligned to the left.
    __device__ __forceinline__ void find(const float place[3], float from, std::uint32_t& index,
                                         std::uint32_t& fraction) const {
        std::uint64_t at[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            const float fixed = __fmaf_rn(place[a], cells[a], from);
            at[a] = static_cast<std::uint64_t>(__float_as_uint(fixed)) * to_high;
        }
        fraction = min(min(static_cast<std::uint32_t>(at[0]), static_cast<std::uint32_t>(at[1])),
                       static_cast<std::uint32_t>(at[2]));
        index =
            (static_cast<std::uint32_t>(at[0] >> 32) * shape_y + static_cast<std::uint32_t>(at[1] >> 32)) * shape_z +
            static_cast<std::uint32_t>(at[2] >> 32);
    }

    /// 2^e and so many steps, and the fractions below which a place is within those of a face.
    __device__ __forceinline__ float whole_and(std::uint32_t steps) const {
        return __uint_as_float(__float_as_uint(whole) + steps);
    }
    __device__ __forceinline__ std::uint32_t near(std::uint32_t steps) const {
        return 2 * steps << (32 - fraction_bits);
    }
};

inline FixedGrid make_fixed(const QuickGrid& grid) {
    FixedGrid fixed{};
    std::uint32_t most = 1;
    for (int a = 0; a < 3; ++a) {
        fixed.cells[a] = static_cast<float>(grid.shape[a]);
        fixed.scale[a] = 1.0F / (grid.size[a] * fixed.cells[a]);
        most = most < grid.shape[a] ? grid.shape[a] : most;
    }
    const int e = ceil_log2(most);
    fixed.whole = static_cast<float>(std::int64_t{1} << e);
    fixed.fraction_bits = 23 - e;
    fixed.to_high = 1U << (9 + e);
    fixed.useful_steps = static_cast<float>(1 << fixed.fraction_bits) / 8;
    fixed.shape_y = grid.shape[1];
    fixed.shape_z = grid.shape[2];
    const std::uint32_t first = static_cast<std::uint32_t>(127 + e) << e;
    fixed.first_index = (first * fixed.shape_y + first) * fixed.shape_z + first;
    return fixed;
}

/// a * b, cut to [0, 1]; 0 for NaN.
__device__ __forceinline__ float product_cut(float a, float b) {
    float result;
    asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

/// a * b + c, cut to [0, 1]; 0 for NaN.
__device__ __forceinline__ float fused_cut(float a, float b, float c) {
    float result;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
    return result;
}

/// The grid as kernels see it.
template <class Scalar>
struct DeviceGrid {
    CellGrid<Scalar> cells;
    QuickGrid quick;
    FixedGrid fixed;
    std::int64_t shape[3];
    std::int64_t num_cells;
    bool is_quick;

    explicit DeviceGrid(const GridPlan& grid)
        : cells(cells_of(grid, Scalar{})),
          quick{},
          fixed{},
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
        if (is_quick) fixed = make_fixed(quick);
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

    /// The same for several points of a quick grid, where their fractions are at least what is returned. Note [Fixed
    /// cells]: with scale (2 roundings) and product the place is off by 3 roundings, the quotient by 1, the sum by one
    /// of a number below 2^(e + 1): together less than 3 steps.
    template <int count>
    __device__ __forceinline__ std::uint32_t fixed_indices(const float (&p)[count][3], std::int32_t (&at)[count],
                                                           std::uint32_t (&fraction)[count]) const {
        constexpr std::uint32_t steps = 3;
        const float from = fixed.whole_and(steps);
#pragma unroll
        for (int k = 0; k < count; ++k) {
            float place[3];
#pragma unroll
            for (int a = 0; a < 3; ++a) place[a] = product_cut(p[k][a] - quick.origin[a], fixed.scale[a]);
            std::uint32_t index = 0;
            fixed.find(place, from, index, fraction[k]);
            at[k] = static_cast<std::int32_t>(index - fixed.first_index);
        }
        return fixed.near(steps);
    }

    /// For all of them: rare cases are looked at together.
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
        return read_pixel<Raw>(source.depth, pixel_at(source.depth, i), p);
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

/// Bytes of dynamic shared memory that a kernel with at most 6 KiB of its own may have: 226 KB on an H200, 93 KB on
/// GPUs of compute capability 12.0.
inline std::int64_t most_shared() {
    return shared_of_block() - 6 * 1024;
}

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
    explicit Cutter(void* data) : data_(static_cast<char*>(data)) {}

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
