// Keys of points and of pixels on the CPU, written so that the compiler makes vectors of the loops.
//
// Included by one source file per instruction set: everything is in an unnamed namespace, see kernels_impl.hpp.
#pragma once

#include "ops/voxelize/cpu/kernels.hpp"

namespace robocache::voxelize_detail {
namespace {

/// floor(at) of a number that an int32 can hold.
ROBOCACHE_HD std::int32_t floor_of_small(float at) {
    const auto cut = static_cast<std::int32_t>(at);
    return cut - (at < static_cast<float>(cut) ? 1 : 0);
}

/// x, or 0 where mask is 0 and not all ones.
ROBOCACHE_HD float masked(float x, std::uint32_t mask) {
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & mask);
}

/// As find_cell and linear_index, without a branch. is_point is 0 for a pixel without a measurement, else 1.
/// Returns 1 for a point that is dropped, else 0.
template <class Word>
ROBOCACHE_HD std::int32_t put_key(const KeyJob<Word>& job, std::int64_t k, float px, float py, float pz,
                                  std::uint32_t is_point) {
    const CellGrid<float>& grid = job.cells;
    const float x = place(px, grid.origin[0], grid.size[0]);
    const float y = place(py, grid.origin[1], grid.size[1]);
    const float z = place(pz, grid.origin[2], grid.size[2]);
    const std::uint32_t in = static_cast<std::uint32_t>(is_within(x, grid.low[0], grid.limit[0])) &
                             static_cast<std::uint32_t>(is_within(y, grid.low[1], grid.limit[1])) &
                             static_cast<std::uint32_t>(is_within(z, grid.low[2], grid.limit[2])) & is_point;
    // What is outside becomes 0: a number that does not fit must not be converted.
    const std::uint32_t mask = 0U - in;
    const auto cx = static_cast<Word>(floor_of_small(masked(x, mask)));
    const auto cy = static_cast<Word>(floor_of_small(masked(y, mask)));
    const auto cz = static_cast<Word>(floor_of_small(masked(z, mask)));
    const Word key = job.first + cx * job.x_stride + cy * job.y_stride + cz;
    job.keys[k] = key;
    job.buckets[k] = (static_cast<std::uint32_t>(key >> job.shift) & mask) | (job.none & ~mask);
    return static_cast<std::int32_t>(is_point - in);
}

template <class Word>
std::int64_t keys_of_points(const float* __restrict xyz, const KeyJob<Word>& given) {
    const KeyJob<Word> job = given;
    std::int32_t dropped = 0;
    const auto count = static_cast<std::int32_t>(job.count);
    ROBOCACHE_IVDEP
    for (std::int32_t k = 0; k < count; ++k) {
        dropped += put_key(job, k, xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2], 1);
    }
    return dropped;
}

template <bool has_pose, class Word, class Raw>
ROBOCACHE_HD std::int64_t keys_of_row(const PixelRow& given_row, const KeyJob<Word>& given) {
    const KeyJob<Word> job = given;
    PixelRow row = given_row;
    row.camera.has_pose = has_pose;
    const Raw* __restrict raw = static_cast<const Raw*>(row.raw);
    const auto u = static_cast<std::int32_t>(row.u);
    const auto v = static_cast<float>(static_cast<std::int32_t>(row.v));
    std::int32_t dropped = 0;
    const auto count = static_cast<std::int32_t>(job.count);
    ROBOCACHE_IVDEP
    for (std::int32_t k = 0; k < count; ++k) {
        const float depth = depth_of(raw[k], row.unit);
        float p[3];
        point_of_pixel(row.camera, static_cast<float>(u + k), v, depth, p);
        dropped += put_key(job, k, p[0], p[1], p[2], static_cast<std::uint32_t>(is_measured(depth, row.max_depth)));
    }
    return dropped;
}

template <class Word, class Raw>
std::int64_t keys_of_pixels(const PixelRow& row, const KeyJob<Word>& job) {
    if (row.camera.has_pose) return keys_of_row<true, Word, Raw>(row, job);
    return keys_of_row<false, Word, Raw>(row, job);
}

/// Whatever is not inside does not count; bounds keep what they are where nothing is.
void bounds_of_points(const float* __restrict xyz, std::int64_t count, const CellGrid<float>& given, Bounds& bounds) {
    constexpr int lanes = 8;
    const CellGrid<float> grid = given;
    float low[3][lanes];
    float high[3][lanes];
    for (int a = 0; a < 3; ++a) {
        for (int l = 0; l < lanes; ++l) {
            low[a][l] = bounds.low[a];
            high[a][l] = bounds.high[a];
        }
    }
    const auto visit = [&](const float* p, int l) __attribute__((always_inline)) {
        const float x = place(p[0], grid.origin[0], grid.size[0]);
        const float y = place(p[1], grid.origin[1], grid.size[1]);
        const float z = place(p[2], grid.origin[2], grid.size[2]);
        const int in = static_cast<int>(is_within(x, grid.low[0], grid.limit[0])) &
                       static_cast<int>(is_within(y, grid.low[1], grid.limit[1])) &
                       static_cast<int>(is_within(z, grid.low[2], grid.limit[2]));
        const float at[3] = {x, y, z};
        for (int a = 0; a < 3; ++a) {
            const float least = in != 0 ? at[a] : low[a][l];
            const float most = in != 0 ? at[a] : high[a][l];
            low[a][l] = least < low[a][l] ? least : low[a][l];
            high[a][l] = most > high[a][l] ? most : high[a][l];
        }
    };
    std::int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
        for (int l = 0; l < lanes; ++l) visit(xyz + 3 * (k + l), l);
    }
    for (; k < count; ++k) visit(xyz + 3 * k, 0);
    for (int a = 0; a < 3; ++a) {
        for (int l = 0; l < lanes; ++l) {
            bounds.low[a] = low[a][l] < bounds.low[a] ? low[a][l] : bounds.low[a];
            bounds.high[a] = high[a][l] > bounds.high[a] ? high[a][l] : bounds.high[a];
        }
    }
}

}  // namespace
}  // namespace robocache::voxelize_detail
