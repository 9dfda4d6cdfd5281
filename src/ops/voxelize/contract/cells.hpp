// Where a point is: the cell of a point, keys of cells, the point of a pixel. One definition for CPU and CUDA.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

namespace robocache::voxelize_detail {

// ---- the cell of a point --------------------------------------------------------------------------------------------

/// A grid in the type its cells are computed in. Cells [low, limit) of an axis are inside; both are whole numbers.
template <class Scalar>
struct CellGrid {
    Scalar origin[3];
    Scalar size[3];
    Scalar low[3];
    Scalar limit[3];
};

struct Cell {
    std::int64_t x;
    std::int64_t y;
    std::int64_t z;
};

/// Where p is along an axis, in cells: the cell is the floor of it.
template <class Scalar>
ROBOCACHE_HD Scalar place(Scalar p, Scalar origin, Scalar size) {
    return (p - origin) / size;
}

/// Whether floor(at) is in [low, limit). Both are whole, so `at` itself may be compared; NaN is in no range.
/// Both comparisons are always made (&, not &&): the CPU compiler makes vectors of that.
template <class Scalar>
ROBOCACHE_HD bool is_within(Scalar at, Scalar low, Scalar limit) {
    return static_cast<bool>(static_cast<int>(at >= low) & static_cast<int>(at < limit));
}

/// floor(at) of a number that an int64 can hold.
template <class Scalar>
ROBOCACHE_HD std::int64_t floor_of(Scalar at) {
    const auto cut = static_cast<std::int64_t>(at);
    return cut - (at < static_cast<Scalar>(cut) ? 1 : 0);
}

/// False, and `cell` left alone, for a point outside the grid or not finite.
template <class Scalar>
ROBOCACHE_HD bool find_cell(const CellGrid<Scalar>& grid, const Scalar p[3], Cell& cell) {
    const Scalar x = place(p[0], grid.origin[0], grid.size[0]);
    const Scalar y = place(p[1], grid.origin[1], grid.size[1]);
    const Scalar z = place(p[2], grid.origin[2], grid.size[2]);
    if (!is_within(x, grid.low[0], grid.limit[0]) || !is_within(y, grid.low[1], grid.limit[1]) ||
        !is_within(z, grid.low[2], grid.limit[2])) {
        return false;
    }
    cell = {floor_of(x), floor_of(y), floor_of(z)};
    return true;
}

/// The place of a cell in a C-contiguous (B, X, Y, Z) array; also the key of a bounded sparse grid.
ROBOCACHE_HD std::int64_t linear_index(const std::int64_t shape[3], std::int64_t cloud, const Cell& cell) {
    return ((cloud * shape[0] + cell.x) * shape[1] + cell.y) * shape[2] + cell.z;
}

// Note [Quick cells]
// A division costs as much as all the rest of finding a cell. So the distance from the origin is multiplied by the
// reciprocal of the size made a little less and a little more, and both products are rounded down. The quotient,
// rounded as IEEE says, lies between the products: 2^-22 is more than reciprocal, factor and quotient may be off
// together. Where the two agree, they are its floor. Where not, a whole number k lies between them, and the quotient is
// at least k if away - k * size, which one fused operation gives, is not less than half a step of floats below k times
// the size: from there on it is rounded up to k (k is even). A quotient too small for a float becomes -0, which is
// inside, so cell -1 is left to the division.

/// For grids of f32 with fewer than 2^31 cells.
struct QuickGrid {
    static constexpr std::int64_t most_cells = 1 << 20;  // of an axis: the two floors differ by one at most

    float origin[3];
    float size[3];
    float less[3];
    float more[3];
    std::uint32_t shape[3];
};

/// Whether cells of this size along an axis can be found quickly; sets `less` and `more`.
ROBOCACHE_HD bool make_quick(float size, float& less, float& more) {
    if (!(size >= 0x1p-60F && size <= 0x1p60F)) return false;
    less = 1.0F / size * (1.0F - 0x1p-22F);
    more = 1.0F / size * (1.0F + 0x1p-22F);
    return true;
}

/// floor(a * b) where that is in [-2^22, 2^22); else something that is not in [-1, 2^22).
ROBOCACHE_HD std::int32_t floor_of_product(float a, float b) {
#ifdef __CUDA_ARCH__
    // Adding 1.5 * 2^23 and rounding down leaves the floor in the low bits.
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(__float_as_int(__fmaf_rd(a, b, 12582912.0F))) -
                                     0x4b400000U);
#else
    const double product = static_cast<double>(a) * static_cast<double>(b);
    if (!(product >= -0x1p22 && product < 0x1p22)) return 0x7fffffff;
    const auto cut = static_cast<std::int32_t>(product);
    return cut - (product < static_cast<double>(cut) ? 1 : 0);
#endif
}

constexpr std::int32_t dropped_point = -2;
constexpr std::int32_t unsettled = -3;

/// The index of a point's cell in its cloud, or `unsettled`: outside, or near a face.
ROBOCACHE_HD std::int32_t index_quickly(const QuickGrid& grid, const float p[3]) {
    std::uint32_t at[3];
    std::uint32_t differ = 0;
    bool inside = true;
    for (int a = 0; a < 3; ++a) {
        const float away = p[a] - grid.origin[a];
        at[a] = static_cast<std::uint32_t>(floor_of_product(away, grid.less[a]));
        differ |= at[a] ^ static_cast<std::uint32_t>(floor_of_product(away, grid.more[a]));
        inside = static_cast<bool>(static_cast<int>(inside) & static_cast<int>(at[a] < grid.shape[a]));
    }
    const std::uint32_t index = (at[0] * grid.shape[1] + at[1]) * grid.shape[2] + at[2];
    return inside && differ == 0 ? static_cast<std::int32_t>(index) : unsettled;
}

/// The same along one axis, for any point; negative outside.
ROBOCACHE_HD std::int32_t settle_axis(const QuickGrid& grid, int axis, float away) {
    const std::int32_t less = floor_of_product(away, grid.less[axis]);
    const std::int32_t more = floor_of_product(away, grid.more[axis]);
    const auto limit = static_cast<std::int32_t>(grid.shape[axis]);
    if (less == -1 || more == -1) {
        const float at = away / grid.size[axis];
        return is_within(at, 0.0F, static_cast<float>(limit)) ? static_cast<std::int32_t>(at) : dropped_point;
    }
    if (less < 0 || more < 0) return dropped_point;
    std::int32_t cell = less > more ? less : more;
    if (less != more && cell <= limit) {
        const auto whole = static_cast<float>(cell);
        const float before = __builtin_bit_cast(float, __builtin_bit_cast(std::int32_t, whole) - 1);
        const float half_step = (whole - before) * 0.5F;
        if (__builtin_fmaf(-whole, grid.size[axis], away) < -half_step * grid.size[axis]) --cell;
    }
    return cell < limit ? cell : dropped_point;
}

/// What index_quickly left unsettled; dropped_point outside.
ROBOCACHE_HD std::int32_t settle_index(const QuickGrid& grid, const float p[3]) {
    const std::int32_t x = settle_axis(grid, 0, p[0] - grid.origin[0]);
    const std::int32_t y = settle_axis(grid, 1, p[1] - grid.origin[1]);
    const std::int32_t z = settle_axis(grid, 2, p[2] - grid.origin[2]);
    const auto num_y = static_cast<std::int32_t>(grid.shape[1]);
    const auto num_z = static_cast<std::int32_t>(grid.shape[2]);
    return (x | y | z) < 0 ? dropped_point : (x * num_y + y) * num_z + z;
}

// ---- keys of an unbounded sparse grid -------------------------------------------------------------------------------

/// The smallest c with 2^c >= n, for n >= 1.
ROBOCACHE_HD int ceil_log2(std::uint64_t n) {
    if (n <= 1) return 0;
#ifdef __CUDA_ARCH__
    return 64 - __clzll(static_cast<long long>(n - 1));
#else
    return 64 - __builtin_clzll(n - 1);
#endif
}

/// cloud | x | y | z from the highest used bit to the lowest, coordinates with 2^(axis_bits - 1) added: keys in order
/// are cells in order of (cloud, x, y, z). cloud_bits + 3 axis_bits <= 63: one bit is left for "no cell".
struct KeyBits {
    int cloud_bits;
    int axis_bits;
};

ROBOCACHE_HD KeyBits key_bits(std::int64_t num_clouds) {
    const int cloud_bits = num_clouds <= 1 ? 0 : ceil_log2(static_cast<std::uint64_t>(num_clouds));
    const int axis_bits = (63 - cloud_bits) / 3;
    return {cloud_bits, axis_bits < 21 ? axis_bits : 21};
}

ROBOCACHE_HD std::uint64_t pack_key(KeyBits bits, std::int64_t cloud, const Cell& cell) {
    const std::int64_t bias = std::int64_t{1} << (bits.axis_bits - 1);
    std::uint64_t key = static_cast<std::uint64_t>(cloud);
    key = (key << bits.axis_bits) | static_cast<std::uint64_t>(cell.x + bias);
    key = (key << bits.axis_bits) | static_cast<std::uint64_t>(cell.y + bias);
    return (key << bits.axis_bits) | static_cast<std::uint64_t>(cell.z + bias);
}

ROBOCACHE_HD std::int64_t unpack_key(KeyBits bits, std::uint64_t key, Cell& cell) {
    const std::int64_t bias = std::int64_t{1} << (bits.axis_bits - 1);
    const std::uint64_t mask = (std::uint64_t{1} << bits.axis_bits) - 1;
    cell.z = static_cast<std::int64_t>(key & mask) - bias;
    cell.y = static_cast<std::int64_t>((key >> bits.axis_bits) & mask) - bias;
    cell.x = static_cast<std::int64_t>((key >> (2 * bits.axis_bits)) & mask) - bias;
    return bits.cloud_bits == 0 ? 0 : static_cast<std::int64_t>(key >> (3 * bits.axis_bits));
}

// ---- depth images ---------------------------------------------------------------------------------------------------

struct Camera {
    float fx;
    float fy;
    float cx;
    float cy;
    float pose[12];  // the upper three rows
    bool has_pose;
};

ROBOCACHE_HD float depth_of(float raw, float unit) {
    return raw * unit;
}

ROBOCACHE_HD float depth_of(std::uint16_t raw, float unit) {
    return static_cast<float>(raw) * unit;
}

/// Whether there is a point at all; max_depth is the largest float where there is no limit, which stops infinity.
ROBOCACHE_HD bool is_measured(float depth, float max_depth) {
    return static_cast<bool>(static_cast<int>(depth > 0.0F) & static_cast<int>(depth <= max_depth));
}

ROBOCACHE_HD void point_of_pixel(const Camera& camera, float u, float v, float depth, float p[3]) {
    const float x = (u - camera.cx) / camera.fx * depth;
    const float y = (v - camera.cy) / camera.fy * depth;
    if (!camera.has_pose) {
        p[0] = x;
        p[1] = y;
        p[2] = depth;
        return;
    }
    for (int r = 0; r < 3; ++r) {
        const float* row = camera.pose + 4 * r;
        p[r] = ((row[0] * x + row[1] * y) + row[2] * depth) + row[3];
    }
}

}  // namespace robocache::voxelize_detail
