// Samples to pixels: upsampling and YCbCr to RGB, as libjpeg-turbo computes them.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/decode/contract/geometry.hpp"

namespace robocache::decode_detail {

// ---- upsampling -----------------------------------------------------------------------------------------------------
// The triangle filter gives 3/4 to the nearer sample and 1/4 to the next one. Roundings alternate, so that they do not
// add up. At the edges of a picture the next sample is the nearer one.

ROBOCACHE_HD int h2v1_value(int nearer, int next, bool is_right) {
    return (3 * nearer + next + (is_right ? 2 : 1)) >> 2;
}
ROBOCACHE_HD int h1v2_value(int nearer, int next, bool is_lower) {
    return (3 * nearer + next + (is_lower ? 2 : 1)) >> 2;
}
/// Of sums 3 * nearer row + next row.
ROBOCACHE_HD int h2v2_value(int nearer, int next, bool is_right) {
    return (3 * nearer + next + (is_right ? 7 : 8)) >> 4;
}

/// The value of a component at pixel (x, y). plane(column, row) reads a sample that belongs to the picture.
template <class Plane>
ROBOCACHE_HD int upsampled(const Component& component, const Plane& plane, int x, int y) {
    const int column = x / component.scale_x;
    const int row = y / component.scale_y;
    const bool is_right = (x & 1) != 0;
    const bool is_lower = (y & 1) != 0;
    const int next_column = clamped(is_right ? column + 1 : column - 1, 0, component.width - 1);
    const int next_row = clamped(is_lower ? row + 1 : row - 1, 0, component.height - 1);
    switch (component.upsampling) {
        case Upsampling::h2v1: return h2v1_value(plane(column, row), plane(next_column, row), is_right);
        case Upsampling::h1v2: return h1v2_value(plane(column, row), plane(column, next_row), is_lower);
        case Upsampling::h2v2:
            return h2v2_value(3 * plane(column, row) + plane(column, next_row),
                              3 * plane(next_column, row) + plane(next_column, next_row), is_right);
        default: return plane(column, row);
    }
}

// ---- color ----------------------------------------------------------------------------------------------------------

struct Rgb {
    int r, g, b;
};

ROBOCACHE_HD int clamp_8(int x) {
    return clamped(x, 0, 255);
}

/// 16-bit fixed point.
ROBOCACHE_HD Rgb rgb_of_ycc(int y, int cb, int cr) {
    constexpr int half = 1 << 15;
    const int b = cb - 128;
    const int r = cr - 128;
    return {clamp_8(y + ((91881 * r + half) >> 16)), clamp_8(y + ((-22554 * b - 46802 * r + half) >> 16)),
            clamp_8(y + ((116130 * b + half) >> 16))};
}

ROBOCACHE_HD int gray_of_rgb(int r, int g, int b) {
    return (19595 * r + 38470 * g + 7471 * b + (1 << 15)) >> 16;
}

}  // namespace robocache::decode_detail
