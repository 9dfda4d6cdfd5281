// The inverse DCT of 8 x 8 blocks in integers: the accurate one of libjpeg ("islow", 13-bit constants, 2 extra bits
// after the first pass), with the 16-bit intermediate values of its vector code. The same bytes as libjpeg-turbo.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

namespace robocache::decode_detail {

inline constexpr int idct_constant_bits = 13;
inline constexpr int idct_pass_bits = 2;
inline constexpr int first_pass_shift = idct_constant_bits - idct_pass_bits;
inline constexpr int second_pass_shift = idct_constant_bits + idct_pass_bits + 3;

// Zigzag order to row * 8 + column.
inline constexpr std::uint8_t natural_order[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                                   12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                                   58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

ROBOCACHE_HD int wrap_16(int x) {
    return static_cast<std::int16_t>(x);
}

ROBOCACHE_HD int saturate_16(int x) {
    return x < -32768 ? -32768 : (x > 32767 ? 32767 : x);
}

/// A sample of the second pass: rounded, moved to 0 .. 255.
ROBOCACHE_HD std::uint8_t sample_of(std::int32_t sum) {
    const int x = ((sum + (1 << (second_pass_shift - 1))) >> second_pass_shift) + 128;
    return static_cast<std::uint8_t>(x < 0 ? 0 : (x > 255 ? 255 : x));
}

ROBOCACHE_HD int first_pass_value(std::int32_t sum) {
    return saturate_16((sum + (1 << (first_pass_shift - 1))) >> first_pass_shift);
}

/// The first pass of a column that has only its first coefficient x. Where no column has more (`is_alone`), the vector
/// code shifts without saturating; only corrupt pictures have values that large.
ROBOCACHE_HD int first_row_value(int x, bool is_alone) {
    const int shifted = x * (1 << idct_pass_bits);
    return is_alone ? wrap_16(shifted) : saturate_16(shifted);
}

/// Every sample of a block without AC coefficients.
ROBOCACHE_HD std::uint8_t flat_sample(int dc) {
    return sample_of(first_row_value(dc, true) * (1 << idct_constant_bits));
}

/// The one-dimensional transform of x; y is scaled by 2^13. Arithmetic is modulo 2^32, as in the vector code.
ROBOCACHE_HD void inverse_dct_8(const int (&x)[8], std::int32_t (&y)[8]) {
    using U = std::uint32_t;  // products of hostile coefficients wrap
    const auto u = [](int value) { return static_cast<U>(value); };
    const auto times = [](int value, int constant) { return static_cast<U>(value) * static_cast<U>(constant); };

    const U rotated = times(x[2] + x[6], 4433);
    const U even_2 = rotated - times(x[6], 15137);
    const U even_3 = rotated + times(x[2], 6270);
    const U even_0 = u(wrap_16(x[0] + x[4])) << idct_constant_bits;
    const U even_1 = u(wrap_16(x[0] - x[4])) << idct_constant_bits;
    const U a0 = even_0 + even_3;
    const U a3 = even_0 - even_3;
    const U a1 = even_1 + even_2;
    const U a2 = even_1 - even_2;

    const int z3 = wrap_16(x[7] + x[3]);
    const int z4 = wrap_16(x[5] + x[1]);
    const U z5 = times(z3 + z4, 9633);
    const U p3 = z5 - times(z3, 16069);
    const U p4 = z5 - times(z4, 3196);
    const U p1 = times(x[7] + x[1], 7373);
    const U p2 = times(x[5] + x[3], 20995);
    const U b0 = times(x[7], 2446) - p1 + p3;
    const U b1 = times(x[5], 16819) - p2 + p4;
    const U b2 = times(x[3], 25172) - p2 + p3;
    const U b3 = times(x[1], 12299) - p1 + p4;

    y[0] = static_cast<std::int32_t>(a0 + b3);
    y[7] = static_cast<std::int32_t>(a0 - b3);
    y[1] = static_cast<std::int32_t>(a1 + b2);
    y[6] = static_cast<std::int32_t>(a1 - b2);
    y[2] = static_cast<std::int32_t>(a2 + b1);
    y[5] = static_cast<std::int32_t>(a2 - b1);
    y[3] = static_cast<std::int32_t>(a3 + b0);
    y[4] = static_cast<std::int32_t>(a3 - b0);
}

}  // namespace robocache::decode_detail
