// Points to keys on the CPU, block by block, whatever the points come from.
#pragma once

#include <algorithm>

#include "ops/voxelize/cpu/kernels.hpp"

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

    template <class Plan>
    KeyReader(const Plan& plan, const KeySpace& space, int shift)
        : points_(plan.points),
          clouds_(clouds_of(plan.points, plan.num_clouds, plan.num_points)),
          grid_(plan.grid),
          space_(space),
          shift_(shift),
          x_stride_(space.extent[1] * space.extent[2]) {
        for (int a = 0; a < 3; ++a) {
            fits_ = fits_ && grid_.f32.limit[a] <= 0x1p31F && grid_.f32.low[a] >= -0x1p31F;
        }
        packed_ = points_.dtype == DType::f32 && points_.axis_stride == 4 && points_.row_stride == 12;
        if constexpr (requires { plan.from_depth; }) {
            if (plan.from_depth) depth_ = &plan.depth;
        }
    }

    [[nodiscard]] std::int64_t num_points() const { return clouds_.num_points; }
    [[nodiscard]] std::int64_t num_clouds() const { return clouds_.num_clouds; }
    [[nodiscard]] int shift() const { return shift_; }
    [[nodiscard]] std::int64_t num_buckets() const { return static_cast<std::int64_t>(space_.last() >> shift_) + 1; }

    /// Keys and buckets of the points [begin, end) go to keys[0] and buckets[0] and so on; points in no cell have
    /// bucket num_buckets(). Calls on_dropped(cloud, count) for stretches in which points were dropped.
    template <class OnDropped>
    void read(std::int64_t begin, std::int64_t end, Word* keys, std::uint32_t* buckets,
              const OnDropped& on_dropped) const {
        std::int64_t cloud = -1;
        for (std::int64_t i = begin; i < end;) {
            std::int64_t count = std::min(block_size, end - i);
            std::int64_t dropped = 0;
            if (depth_ != nullptr) {
                const Pixel at = pixel_of(*depth_, i);
                count = std::min(count, depth_->width - at.u);
                cloud = at.cloud;
                dropped = read_pixels(at, job_of(cloud, count, keys + (i - begin), buckets + (i - begin)));
            } else {
                if (cloud < 0 || is_past(cloud, i)) cloud = clouds_.of(i);
                if (cloud + 1 < clouds_.num_clouds) {
                    // Offsets nobody checked may run backwards: go on by at least one point.
                    count = std::clamp<std::int64_t>(clouds_.begin(cloud + 1) - i, 1, count);
                }
                dropped = read_points(i, job_of(cloud, count, keys + (i - begin), buckets + (i - begin)));
            }
            if (dropped > 0) on_dropped(cloud, dropped);
            i += count;
        }
    }

private:
    [[nodiscard]] bool is_past(std::int64_t cloud, std::int64_t i) const {
        return cloud + 1 < clouds_.num_clouds && clouds_.begin(cloud + 1) <= i;
    }

    KeyJob<Word> job_of(std::int64_t cloud, std::int64_t count, Word* keys, std::uint32_t* buckets) const {
        std::uint64_t first = static_cast<std::uint64_t>(cloud) * space_.extent[0] * x_stride_;
        first -= static_cast<std::uint64_t>(space_.low[0]) * x_stride_ +
                 static_cast<std::uint64_t>(space_.low[1]) * space_.extent[2] +
                 static_cast<std::uint64_t>(space_.low[2]);
        KeyJob<Word> job;
        job.cells = grid_.f32;
        job.first = static_cast<Word>(first);
        job.x_stride = static_cast<Word>(x_stride_);
        job.y_stride = static_cast<Word>(space_.extent[2]);
        job.shift = shift_;
        job.none = static_cast<std::uint32_t>(num_buckets());
        job.count = count;
        job.keys = keys;
        job.buckets = buckets;
        return job;
    }

    std::int64_t read_points(std::int64_t i, const KeyJob<Word>& job) const {
        if (packed_ && fits_) {
            return kernels_.keys_of_points(reinterpret_cast<const float*>(points_.data + i * 12), job);
        }
        switch (points_.dtype) {
            case DType::f64: return read_each(PointReader<double>{points_}, grid_.f64, i, job);
            case DType::f16: return read_each(PointReader<Half>{points_}, grid_.f32, i, job);
            default: return read_each(PointReader<float>{points_}, grid_.f32, i, job);
        }
    }

    std::int64_t read_pixels(const Pixel& at, const KeyJob<Word>& job) const {
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
            return read_each(DepthReader<std::uint16_t>{*depth_}, grid_.f32, i, job);
        }
        return read_each(DepthReader<float>{*depth_}, grid_.f32, i, job);
    }

    template <class Source>
    static std::int64_t read_each(const Source& source, const CellGrid<typename Source::Scalar>& grid,
                                  std::int64_t first, const KeyJob<Word>& job) {
        std::int64_t dropped = 0;
        for (std::int64_t k = 0; k < job.count; ++k) {
            typename Source::Scalar p[3];
            Cell cell;
            job.keys[k] = 0;
            job.buckets[k] = job.none;
            if (!source.read(first + k, p)) continue;
            if (!find_cell(grid, p, cell)) {
                ++dropped;
                continue;
            }
            job.keys[k] = job.first + static_cast<Word>(cell.x) * job.x_stride +
                          static_cast<Word>(cell.y) * job.y_stride + static_cast<Word>(cell.z);
            job.buckets[k] = static_cast<std::uint32_t>(job.keys[k] >> job.shift);
        }
        return dropped;
    }

    PointsPlan points_;
    const DepthPlan* depth_ = nullptr;
    Clouds clouds_;
    const GridPlan& grid_;
    KeySpace space_;
    int shift_;
    std::uint64_t x_stride_;
    bool fits_ = true;     // cells fit 31 bits
    bool packed_ = false;  // points are contiguous float32
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
