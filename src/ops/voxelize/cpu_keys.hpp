// Points to keys on the CPU, block by block, whatever the points come from.
#pragma once

#include <algorithm>

#include "ops/voxelize/cpu_kernels.hpp"

namespace robocache::voxelize_detail {

/// A key is the place of a cell in a box of cells, (clouds, x, y, z) in C order: keys in order are cells in order.
struct KeySpace {
    std::int64_t low[3] = {0, 0, 0};
    std::uint64_t extent[3] = {1, 1, 1};
    std::uint64_t num_clouds = 1;

    /// The largest key there may be; 2^64 - 1 is one.
    [[nodiscard]] std::uint64_t last() const { return num_clouds * (extent[0] * extent[1] * extent[2]) - 1; }
};

/// The keys of all points of a plan.
template <class Word>
class KeyReader {
public:
    static constexpr std::int64_t block_size = 1024;

    KeyReader(const DensePlan& plan, const KeySpace& space)
        : KeyReader(plan.points, plan.num_clouds, plan.num_points, plan.grid, space) {
        if (plan.from_depth) depth_ = &plan.depth;
    }
    template <class Plan>
    KeyReader(const Plan& plan, const KeySpace& space)
        : KeyReader(plan.points, plan.num_clouds, plan.num_points, plan.grid, space) {}

    [[nodiscard]] std::int64_t num_points() const { return clouds_.num_points; }

    /// Calls body(first point, count, cloud, keys, status) for stretches of [begin, end) that lie in one cloud.
    template <class Body>
    void each_block(std::int64_t begin, std::int64_t end, const Body& body) const {
        alignas(64) Word keys[block_size];
        alignas(64) std::uint32_t status[block_size];
        std::int64_t cloud = -1;
        for (std::int64_t i = begin; i < end;) {
            std::int64_t count = std::min(block_size, end - i);
            if (depth_ != nullptr) {
                const Pixel at = pixel_of(*depth_, i);
                count = std::min(count, depth_->width - at.u);
                cloud = at.cloud;
                KeyJob<Word> job = job_of(cloud, count, keys, status);
                read_pixels(at, job);
            } else {
                if (cloud < 0 || (cloud + 1 < clouds_.num_clouds && clouds_.begin(cloud + 1) <= i))
                    cloud = clouds_.of(i);
                if (cloud + 1 < clouds_.num_clouds) {
                    // Offsets nobody checked may run backwards: go on by at least one point.
                    count = std::clamp<std::int64_t>(clouds_.begin(cloud + 1) - i, 1, count);
                }
                KeyJob<Word> job = job_of(cloud, count, keys, status);
                read_points(i, job);
            }
            body(i, count, cloud, keys, status);
            i += count;
        }
    }

private:
    KeyReader(const PointsPlan& points, std::int64_t num_clouds, std::int64_t num_points, const GridPlan& grid,
              const KeySpace& space)
        : points_(points), clouds_(clouds_of(points, num_clouds, num_points)), grid_(grid), space_(space) {
        x_stride_ = space.extent[1] * space.extent[2];
        fits_ = true;
        for (int a = 0; a < 3; ++a) fits_ = fits_ && grid.f32.limit[a] <= 0x1p31F && grid.f32.low[a] >= -0x1p31F;
        packed_ = points.dtype == DType::f32 && points.axis_stride == 4 && points.row_stride == 12;
    }

    KeyJob<Word> job_of(std::int64_t cloud, std::int64_t count, Word* keys, std::uint32_t* status) const {
        std::uint64_t first = static_cast<std::uint64_t>(cloud) * space_.extent[0] * x_stride_;
        first -= static_cast<std::uint64_t>(space_.low[0]) * x_stride_ +
                 static_cast<std::uint64_t>(space_.low[1]) * space_.extent[2] +
                 static_cast<std::uint64_t>(space_.low[2]);
        return {grid_.f32,
                static_cast<Word>(first),
                static_cast<Word>(x_stride_),
                static_cast<Word>(space_.extent[2]),
                count,
                keys,
                status};
    }

    void read_points(std::int64_t i, const KeyJob<Word>& job) const {
        if (packed_ && fits_) {
            return kernels_.keys_of_points(reinterpret_cast<const float*>(points_.data + i * 12), job);
        }
        switch (points_.dtype) {
            case DType::f64: return read_each(PointReader<double>{points_, {}, 1, 0}, grid_.f64, i, job);
            case DType::f16: return read_each(PointReader<Half>{points_, {}, 1, 0}, grid_.f32, i, job);
            default: return read_each(PointReader<float>{points_, {}, 1, 0}, grid_.f32, i, job);
        }
    }

    void read_pixels(const Pixel& at, const KeyJob<Word>& job) const {
        const std::int64_t element = size_bytes(depth_->dtype);
        if (depth_->strides[3] == element && fits_) {
            const PixelRow row{depth_->data + pixel_offset(depth_->strides, at),
                               depth_->unit,
                               depth_->max_depth,
                               camera_of(*depth_, at.cloud, at.view),
                               at.u,
                               at.v};
            return depth_->dtype == DType::u16 ? kernels_.keys_of_u16(row, job) : kernels_.keys_of_f32(row, job);
        }
        const std::int64_t i =
            ((at.cloud * depth_->num_views + at.view) * depth_->height + at.v) * depth_->width + at.u;
        if (depth_->dtype == DType::u16) {
            return read_each(DepthReader<std::uint16_t>{*depth_, {}, 1, 0}, grid_.f32, i, job);
        }
        read_each(DepthReader<float>{*depth_, {}, 1, 0}, grid_.f32, i, job);
    }

    template <class Source>
    static void read_each(const Source& source, const CellGrid<typename Source::Scalar>& grid, std::int64_t first,
                          const KeyJob<Word>& job) {
        for (std::int64_t k = 0; k < job.count; ++k) {
            typename Source::Scalar p[3];
            Cell cell;
            job.status[k] = nothing;
            if (!source.read(first + k, p)) continue;
            job.status[k] = dropped;
            if (!find_cell(grid, p, cell)) continue;
            job.status[k] = inside;
            job.keys[k] = job.first + static_cast<Word>(cell.x) * job.x_stride +
                          static_cast<Word>(cell.y) * job.y_stride + static_cast<Word>(cell.z);
        }
    }

    PointsPlan points_;
    const DepthPlan* depth_ = nullptr;
    Clouds clouds_;
    const GridPlan& grid_;
    KeySpace space_;
    std::uint64_t x_stride_;
    bool fits_;    // cells fit 31 bits
    bool packed_;  // points are contiguous float32
    const CpuKernels<Word>& kernels_ = cpu_kernels<Word>();
};

inline KeySpace key_space(const GridPlan& grid, std::int64_t num_clouds) {
    KeySpace space;
    for (int a = 0; a < 3; ++a) space.extent[a] = static_cast<std::uint64_t>(grid.shape[a]);
    space.num_clouds = static_cast<std::uint64_t>(num_clouds);
    return space;
}

/// Whether keys, point numbers and counts need 64 bits.
inline bool needs_wide_words(const KeySpace& space, std::int64_t num_points) {
    constexpr std::uint64_t narrow_last = 0xfffffffe;
    return space.last() > narrow_last || static_cast<std::uint64_t>(num_points) > narrow_last;
}

}  // namespace robocache::voxelize_detail
