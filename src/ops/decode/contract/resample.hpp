// Resizing of 8-bit pictures as Pillow computes it: a separable filter, weights in float64, then in 22-bit fixed point.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

namespace robocache::decode_detail {

inline constexpr int weight_bits = 22;

/// One axis of a resize: `in` pixels become `out`.
struct ResampleAxis {
    int in = 1;
    int out = 1;
    bool is_area = false;     // box filter; else the triangle, which is bilinear with antialiasing
    double scale = 1;         // in / out
    double filter_scale = 1;  // max(scale, 1)
    double support = 1;       // half the width of the filter, in input pixels
};

ROBOCACHE_HD ResampleAxis resample_axis(int in, int out, bool is_area) {
    ResampleAxis axis;
    axis.in = in;
    axis.out = out;
    axis.is_area = is_area;
    axis.scale = static_cast<double>(in) / out;
    axis.filter_scale = axis.scale < 1 ? 1 : axis.scale;
    axis.support = (is_area ? 0.5 : 1.0) * axis.filter_scale;
    return axis;
}

/// No output pixel has more taps than this.
ROBOCACHE_HD int max_taps(const ResampleAxis& axis) {
    const int whole = static_cast<int>(axis.support);
    return 2 * (whole + (static_cast<double>(whole) < axis.support ? 1 : 0)) + 1;
}

/// Input pixels [first, first + count) of one output pixel.
struct Taps {
    int first, count;
    double center;
};

ROBOCACHE_HD Taps taps_of(const ResampleAxis& axis, int out) {
    Taps taps;
    taps.center = (out + 0.5) * axis.scale;
    const int first = static_cast<int>(taps.center - axis.support + 0.5);
    const int end = static_cast<int>(taps.center + axis.support + 0.5);
    taps.first = first < 0 ? 0 : first;
    taps.count = (end > axis.in ? axis.in : end) - taps.first;
    return taps;
}

ROBOCACHE_HD double tap_weight(const ResampleAxis& axis, const Taps& taps, int i) {
    double x = (i + taps.first - taps.center + 0.5) * (1.0 / axis.filter_scale);
    if (axis.is_area) return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    if (x < 0) x = -x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

ROBOCACHE_HD double total_weight(const ResampleAxis& axis, const Taps& taps) {
    double total = 0;
    for (int i = 0; i < taps.count; ++i) total += tap_weight(axis, taps, i);
    return total;
}

ROBOCACHE_HD std::int32_t fixed_weight(double weight, double total) {
    if (total != 0) weight /= total;
    return static_cast<std::int32_t>(0.5 + weight * (1 << weight_bits));
}

/// A sum of pixels times fixed weights that began at half of 2^22.
inline constexpr std::int32_t resample_start = 1 << (weight_bits - 1);
ROBOCACHE_HD std::uint8_t resampled(std::int32_t sum) {
    const int x = sum >> weight_bits;
    return static_cast<std::uint8_t>(x < 0 ? 0 : (x > 255 ? 255 : x));
}

}  // namespace robocache::decode_detail
