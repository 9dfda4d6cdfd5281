// The math of voxelize that decides a result: cells (cells.hpp) and reductions. One definition for CPU and CUDA.
#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include "core/numeric.hpp"
#include "ops/voxelize/contract/cells.hpp"

namespace robocache::voxelize_detail {

// ---- values ---------------------------------------------------------------------------------------------------------

ROBOCACHE_HD float widen(float x) {
    return x;
}
ROBOCACHE_HD float widen(Half x) {
    return to_float(x);
}
ROBOCACHE_HD float widen(BFloat16 x) {
    return to_float(x);
}
ROBOCACHE_HD float widen(std::uint8_t x) {
    return static_cast<float>(x);
}
ROBOCACHE_HD float widen(double x) {
    return static_cast<float>(x);
}

template <class Out>
ROBOCACHE_HD Out narrow(float x) {
    return static_cast<Out>(x);
}
template <>
ROBOCACHE_HD Half narrow<Half>(float x) {
    return to_half(x);
}
template <>
ROBOCACHE_HD BFloat16 narrow<BFloat16>(float x) {
    return to_bfloat16(x);
}

// ---- min and max ----------------------------------------------------------------------------------------------------

/// A number whose order is that of floats: -inf < ... < -0 < +0 < ... < +inf.
ROBOCACHE_HD std::uint32_t order_of(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

constexpr std::uint32_t extreme_nan = 0xffffffffU;

/// For min and max alike: the largest of these belongs to the result. A NaN has the largest of all, nothing has 0, so a
/// cell that begins with 0 and still has it is empty.
ROBOCACHE_HD std::uint32_t extreme_key(float x, bool want_max) {
    const std::uint32_t order = order_of(x);
    return x != x ? extreme_nan : (want_max ? order : ~order);
}

/// The value of a key that is not 0; the canonical quiet NaN for a NaN.
ROBOCACHE_HD float extreme_value(std::uint32_t key, bool want_max) {
    const std::uint32_t order = want_max ? key : ~key;
    const std::uint32_t bits = (order & 0x80000000U) != 0 ? order & 0x7fffffffU : ~order;
    return __builtin_bit_cast(float, key == extreme_nan ? 0x7fc00000U : bits);
}

// ---- sums that do not depend on the order ---------------------------------------------------------------------------
//
// Note [Fixed point]
// The values of a cell's channel become whole multiples of one unit, 2^-shift, so small that the largest still fits 62
// bits less those that n of them may carry into. Sums of integers do not depend on the order. Order-free as well are
// the two things the unit is made of: the number of points n, and `magnitude`, the largest of magnitude_of(x).

/// Orders |x| as integers. From not_finite on: x is not finite.
ROBOCACHE_HD std::uint32_t magnitude_of(float x) {
    return __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU;
}

constexpr std::uint32_t not_finite = 0x7f800000U;

/// The shift of a cell's channel; magnitude is finite, n >= 1.
ROBOCACHE_HD int fixed_shift(std::uint32_t magnitude, std::int64_t n) {
    // magnitude as a float is f * 2^e with 0.5 <= f < 1.
    const int e = magnitude >= 0x800000U ? static_cast<int>(magnitude >> 23) - 126
                                         : ceil_log2(std::uint64_t{magnitude} + 1) - 149;
    return 62 - e - ceil_log2(static_cast<std::uint64_t>(n));
}

/// 2^shift for the shifts there are: -97 to 210, and their opposites.
ROBOCACHE_HD double power_of_two(int shift) {
    return __builtin_bit_cast(double, static_cast<std::uint64_t>(shift + 1023) << 52);
}

/// To nearest even; |x| <= 2^62.
ROBOCACHE_HD std::int64_t to_integer(double x) {
#if defined(__CUDA_ARCH__)
    return __double2ll_rn(x);
#elif defined(__x86_64__)
    return _mm_cvtsd_si64(_mm_set_sd(x));  // llrint is a call into libm
#else
    return __builtin_llrint(x);
#endif
}

/// x in units of 2^-shift; `scale` is power_of_two(shift).
ROBOCACHE_HD std::int64_t to_fixed(float x, double scale) {
    return to_integer(static_cast<double>(x) * scale);
}

ROBOCACHE_HD float fixed_sum(std::int64_t sum, int shift) {
    return static_cast<float>(static_cast<double>(sum) * power_of_two(-shift));
}

ROBOCACHE_HD float fixed_mean(std::int64_t sum, int shift, std::int64_t n) {
    return static_cast<float>(static_cast<double>(sum) * power_of_two(-shift) / static_cast<double>(n));
}

/// What is in a channel that is not finite: bits to be joined by "or".
constexpr std::uint32_t has_plus_infinity = 1;
constexpr std::uint32_t has_minus_infinity = 2;
constexpr std::uint32_t has_nan = 4;

ROBOCACHE_HD std::uint32_t special_of(float x) {
    const std::uint32_t magnitude = magnitude_of(x);
    if (magnitude < not_finite) return 0;
    if (magnitude > not_finite) return has_nan;
    return x > 0 ? has_plus_infinity : has_minus_infinity;
}

/// The sum and the mean of a channel that has them.
ROBOCACHE_HD float special_sum(std::uint32_t specials) {
    const bool negative = specials == has_minus_infinity;
    const bool infinite = negative || specials == has_plus_infinity;
    return __builtin_bit_cast(float, infinite ? (negative ? 0xff800000U : 0x7f800000U) : 0x7fc00000U);
}

}  // namespace robocache::voxelize_detail
