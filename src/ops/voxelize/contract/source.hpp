// Where points come from: clouds of a batch, points, pixels of depth images. One definition for CPU and CUDA.
#pragma once

#include "ops/voxelize/contract/plan.hpp"

namespace robocache::voxelize_detail {

/// Offsets, which may be unchecked: results are always inside the points and the clouds.
struct Clouds {
    const std::int64_t* offsets;
    std::int64_t stride;
    std::int64_t num_clouds;
    std::int64_t num_points;

    /// The first point of a cloud, for b in [0, num_clouds]; never above num_points.
    ROBOCACHE_HD std::int64_t begin(std::int64_t b) const {
        if (offsets == nullptr) return b == 0 ? 0 : num_points;
        const std::int64_t at = offsets[b * stride];
        return at < 0 ? 0 : (at > num_points ? num_points : at);
    }

    /// The last cloud that begins at or before point i.
    ROBOCACHE_HD std::int64_t of(std::int64_t i) const {
        if (offsets == nullptr || num_clouds <= 1) return 0;
        std::int64_t lo = 1;
        std::int64_t hi = num_clouds;
        while (lo < hi) {
            const std::int64_t middle = lo + (hi - lo) / 2;
            if (offsets[middle * stride] <= i) {
                lo = middle + 1;
            } else {
                hi = middle;
            }
        }
        return lo - 1;
    }
};

ROBOCACHE_HD Clouds clouds_of(const PointsPlan& points, std::int64_t num_clouds, std::int64_t num_points) {
    return {points.offsets, points.offsets_stride, num_clouds, num_points};
}

template <class T>
struct ScalarOf {
    using type = float;
};
template <>
struct ScalarOf<double> {
    using type = double;
};

ROBOCACHE_HD float coordinate(float x) {
    return x;
}
ROBOCACHE_HD double coordinate(double x) {
    return x;
}
ROBOCACHE_HD float coordinate(Half x) {
    return to_float(x);
}

/// T: float, Half or double.
template <class T>
struct PointReader {
    using Scalar = typename ScalarOf<T>::type;

    PointsPlan points;

    /// Point i; always true.
    ROBOCACHE_HD bool read(std::int64_t i, Scalar p[3]) const {
        const char* row = points.data + i * points.row_stride;
        for (int a = 0; a < 3; ++a) p[a] = coordinate(*reinterpret_cast<const T*>(row + a * points.axis_stride));
        return true;
    }
};

ROBOCACHE_HD Camera camera_of(const DepthPlan& depth, std::int64_t cloud, std::int64_t view) {
    Camera camera{};
    const std::int64_t* ks = depth.intrinsics_strides;
    const float* k = depth.intrinsics + cloud * ks[0] + view * ks[1];
    camera.fx = k[0];
    camera.fy = k[ks[2] + ks[3]];
    camera.cx = k[2 * ks[3]];
    camera.cy = k[ks[2] + 2 * ks[3]];
    camera.has_pose = depth.pose != nullptr;
    if (!camera.has_pose) return camera;
    const std::int64_t* ps = depth.pose_strides;
    const float* pose = depth.pose + cloud * ps[0] + view * ps[1];
    for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 4; ++c) camera.pose[4 * r + c] = pose[r * ps[2] + c * ps[3]];
    }
    return camera;
}

struct Pixel {
    std::int64_t cloud;
    std::int64_t view;
    std::int64_t v;
    std::int64_t u;
};

ROBOCACHE_HD Pixel pixel_of(const DepthPlan& depth, std::int64_t i) {
    const std::int64_t row = i / depth.width;
    const std::int64_t image = row / depth.height;
    return {image / depth.num_views, image % depth.num_views, row % depth.height, i % depth.width};
}

ROBOCACHE_HD std::int64_t pixel_offset(const std::int64_t strides[4], const Pixel& at) {
    return at.cloud * strides[0] + at.view * strides[1] + at.v * strides[2] + at.u * strides[3];
}

/// The point of a pixel; false where nothing was measured. Raw: float or std::uint16_t.
template <class Raw>
ROBOCACHE_HD bool read_pixel(const DepthPlan& depth, const Pixel& at, float p[3]) {
    const Raw raw = *reinterpret_cast<const Raw*>(depth.data + pixel_offset(depth.strides, at));
    const float meters = depth_of(raw, depth.unit);
    if (!is_measured(meters, depth.max_depth)) return false;
    point_of_pixel(camera_of(depth, at.cloud, at.view), static_cast<float>(at.u), static_cast<float>(at.v), meters, p);
    return true;
}

/// Reads the camera for every pixel. False, and p not written: no depth was measured.
template <class Raw>
struct DepthReader {
    using Scalar = float;

    DepthPlan depth;

    ROBOCACHE_HD bool read(std::int64_t i, float p[3]) const { return read_pixel<Raw>(depth, pixel_of(depth, i), p); }
};

ROBOCACHE_HD const CellGrid<float>& cells_of(const GridPlan& grid, float) {
    return grid.f32;
}
ROBOCACHE_HD const CellGrid<double>& cells_of(const GridPlan& grid, double) {
    return grid.f64;
}

/// Calls body(source) with the PointReader of the points' dtype.
template <class Plan, class Body>
void with_points(const Plan& plan, Body&& body) {
    switch (plan.points.dtype) {
        case DType::f64: return body(PointReader<double>{plan.points});
        case DType::f16: return body(PointReader<Half>{plan.points});
        default: return body(PointReader<float>{plan.points});
    }
}

}  // namespace robocache::voxelize_detail
