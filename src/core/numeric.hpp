// Number formats and rounding, once for the CPU and for CUDA. No fast-math anywhere: results are bit-exact.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#define ROBOCACHE_HD_RARE inline __host__ __device__ __noinline__  // its registers and code would be everybody's
#else
// always_inline also keeps code compiled for one instruction set from being merged with another's by the linker.
#define ROBOCACHE_HD inline __attribute__((always_inline))
#define ROBOCACHE_HD_RARE ROBOCACHE_HD
#endif

namespace robocache {

struct Half {
    std::uint16_t bits;
};

struct BFloat16 {
    std::uint16_t bits;
};

ROBOCACHE_HD float fused_multiply_add(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}

ROBOCACHE_HD double fused_multiply_add(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}

// ---- widening: exact ------------------------------------------------------------------------------------------------

ROBOCACHE_HD float to_float(float x) {
    return x;
}

ROBOCACHE_HD float to_float(BFloat16 x) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

ROBOCACHE_HD float to_float(Half x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
    const std::uint32_t magnitude = x.bits & 0x7fffU;
    const std::uint32_t normal = (magnitude << 13) + (112U << 23);
    const std::uint32_t special = (magnitude << 13) | 0x7f800000U | (magnitude > 0x7c00U ? 0x400000U : 0U);
    const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * 0x1p-24F);
    const std::uint32_t bits = magnitude >= 0x7c00U ? special : (magnitude >= 0x400U ? normal : subnormal);
    return __builtin_bit_cast(float, sign | bits);
}

// ---- narrowing: one rounding, to nearest even -----------------------------------------------------------------------

ROBOCACHE_HD BFloat16 to_bfloat16(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    return {static_cast<std::uint16_t>((is_nan ? (bits | 0x400000U) : rounded) >> 16)};
}

ROBOCACHE_HD Half to_half(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    // Adding 0.5 puts the last place of a subnormal half (2^-24) at the last place of the sum, which rounds it.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
    const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000U;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t not_a_number = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    std::uint32_t result = magnitude < 0x38800000U ? subnormal : normal;
    if (magnitude >= 0x477ff000U) result = 0x7c00U;
    if (magnitude > 0x7f800000U) result = not_a_number;
    return {static_cast<std::uint16_t>(sign | result)};
}

/// float64 to float32 so that a further rounding to 16 bits rounds the float64 correctly: an inexact result is cut
/// towards zero and its last bit set ("round to odd").
ROBOCACHE_HD float to_float_odd(double x) {
    const auto nearest = static_cast<float>(x);
    const double back = nearest;
    if (back == x || x != x) return nearest;
    auto bits = __builtin_bit_cast(std::uint32_t, nearest);
    const bool away_from_zero = (back > x) == (x > 0);
    if (away_from_zero) --bits;
    return __builtin_bit_cast(float, bits | 1U);
}

/// int64 and uint64 to float64, to odd where inexact, so that a further rounding is the only one.
template <class Integer>
ROBOCACHE_HD double to_double_odd(Integer x) {
    constexpr bool is_signed = Integer(-1) < Integer(1);
    const bool negative = is_signed && static_cast<std::int64_t>(x) < 0;
    const std::uint64_t magnitude = negative ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
    // Up to 2^53 the conversion is exact. Above, 11 bits are too many: cut them and remember that they were there.
    const std::uint64_t cut = magnitude & ~std::uint64_t{0x7ff};
    const bool large = magnitude > (std::uint64_t{1} << 53);
    const std::uint64_t kept = large ? (cut | (cut != magnitude ? 0x800U : 0U)) : magnitude;
    const auto result = static_cast<double>(kept);
    return negative ? -result : result;
}

}  // namespace robocache
