// Values between rows, one channel or one quaternion at a time. A part of kernel.hpp.
#pragma once

#include <cmath>

#include "core/numeric.hpp"

namespace robocache::align_detail {

template <class Compute>
ROBOCACHE_HD Compute blend_linear(Compute a, Compute b, Compute w) {
    return fused_multiply_add(w, b - a, a);
}

template <class Compute>
ROBOCACHE_HD Compute blend_cubic(Compute left, Compute right, Compute before, Compute after, Compute w_right,
                                 Compute w_before, Compute w_after) {
    Compute result = fused_multiply_add(w_before, before - left, left);
    result = fused_multiply_add(w_right, right - left, result);
    return fused_multiply_add(w_after, after - left, result);
}

ROBOCACHE_HD float round_even(float x) {
    return __builtin_rintf(x);
}

ROBOCACHE_HD double round_even(double x) {
    return __builtin_rint(x);
}

ROBOCACHE_HD float round_down(float x) {
    return __builtin_floorf(x);
}

ROBOCACHE_HD double round_down(double x) {
    return __builtin_floor(x);
}

template <class Compute>
ROBOCACHE_HD Compute cut(Compute x, Compute low, Compute high) {  // a NaN stays
    return x < low ? low : x > high ? high : x;
}

template <class Compute>
ROBOCACHE_HD Compute blend_angle(Compute a, Compute b, Compute w, Compute period) {
    const Compute raw = b - a;
    const Compute way = fused_multiply_add(-round_even(raw / period), period, raw);
    const Compute result = fused_multiply_add(w, way, a);
    const Compute low = a < b ? a : b;
    const Compute high = a < b ? b : a;
    const Compute half = period / 2;
    // The range both rows are in is the range of the result. Far outside, where the quotient has more digits than
    // Compute, what is left after the whole periods is cut to it.
    if (low >= -half && high <= half) {
        if (result >= -half && result <= half) return result;
        return cut(fused_multiply_add(-round_even(result / period), period, result), -half, half);
    }
    if (low >= 0 && high <= period && (result < 0 || result > period)) {
        return cut(fused_multiply_add(-round_down(result / period), period, result), Compute(0), period);
    }
    return result;
}

// Sine and arc tangent of our own, from operations that every machine rounds alike: the libraries of CPU and GPU differ
// in the last places, and slerp divides by the sine of a small angle. Taylor series on intervals where their rest is
// below 2^-58.

/// sin(x): exact to a few units in the last place for |x| up to some thousands.
ROBOCACHE_HD double sine(double x) {
    constexpr double pi_high = 3.141592653589793116;
    constexpr double pi_low = 1.2246467991473532e-16;
    const double turns = round_even(x / pi_high);
    const double y = fused_multiply_add(-turns, pi_low, fused_multiply_add(-turns, pi_high, x));  // |y| <= pi / 2
    const double z = y * y;
    double p = 1.0 / 51090942171709440000.0;  // 1 / 21!
    p = fused_multiply_add(p, z, -1.0 / 121645100408832000.0);
    p = fused_multiply_add(p, z, 1.0 / 355687428096000.0);
    p = fused_multiply_add(p, z, -1.0 / 1307674368000.0);
    p = fused_multiply_add(p, z, 1.0 / 6227020800.0);
    p = fused_multiply_add(p, z, -1.0 / 39916800.0);
    p = fused_multiply_add(p, z, 1.0 / 362880.0);
    p = fused_multiply_add(p, z, -1.0 / 5040.0);
    p = fused_multiply_add(p, z, 1.0 / 120.0);
    p = fused_multiply_add(p, z, -1.0 / 6.0);
    const double result = fused_multiply_add(y * z, p, y);
    const bool odd = round_down(turns * 0.5) != turns * 0.5;
    return odd ? -result : result;
}

/// The angle of the point (x, y), neither coordinate negative: 0 ... pi / 2.
ROBOCACHE_HD double angle_of(double x, double y) {
    const bool steep = y > x;
    const double tangent = steep ? x / y : y / x;
    const double half = tangent / (1.0 + sqrt(fused_multiply_add(tangent, tangent, 1.0)));
    const double quarter = half / (1.0 + sqrt(fused_multiply_add(half, half, 1.0)));  // <= tan(pi / 16)
    const double z = quarter * quarter;
    double p = -1.0 / 23.0;
    p = fused_multiply_add(p, z, 1.0 / 21.0);
    p = fused_multiply_add(p, z, -1.0 / 19.0);
    p = fused_multiply_add(p, z, 1.0 / 17.0);
    p = fused_multiply_add(p, z, -1.0 / 15.0);
    p = fused_multiply_add(p, z, 1.0 / 13.0);
    p = fused_multiply_add(p, z, -1.0 / 11.0);
    p = fused_multiply_add(p, z, 1.0 / 9.0);
    p = fused_multiply_add(p, z, -1.0 / 7.0);
    p = fused_multiply_add(p, z, 1.0 / 5.0);
    p = fused_multiply_add(p, z, -1.0 / 3.0);
    const double angle = 4.0 * fused_multiply_add(quarter * z, p, quarter);
    return steep ? 1.5707963267948966 - angle : angle;
}

/// Quaternions in any order of components, the short way round, normalized.
ROBOCACHE_HD void blend_slerp(const double a[4], const double b[4], double w, double result[4]) {
    double aa = 0;
    double bb = 0;
    double ab = 0;
    for (int i = 0; i < 4; ++i) {
        aa += a[i] * a[i];
        bb += b[i] * b[i];
        ab += a[i] * b[i];
    }
    const double scale_a = 1.0 / sqrt(aa);
    const double scale_b = (ab < 0 ? -1.0 : 1.0) / sqrt(bb);
    double difference = 0;
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
        const double d = b[i] * scale_b - a[i] * scale_a;
        const double s = b[i] * scale_b + a[i] * scale_a;
        difference += d * d;
        sum += s * s;
    }
    // Twice the half angle: accurate for near and for far quaternions, unlike acos of the dot product.
    const double angle = 2.0 * angle_of(sqrt(sum), sqrt(difference));
    double w_a = 1.0 - w;
    double w_b = w;
    if (angle > 1e-7) {
        const double whole = sine(angle);
        w_a = sine(w_a * angle) / whole;
        w_b = sine(w_b * angle) / whole;
    }
    double norm = 0;
    for (int i = 0; i < 4; ++i) {
        result[i] = w_a * scale_a * a[i] + w_b * scale_b * b[i];
        norm += result[i] * result[i];
    }
    norm = 1.0 / sqrt(norm);
    for (int i = 0; i < 4; ++i) result[i] *= norm;
}

}  // namespace robocache::align_detail
