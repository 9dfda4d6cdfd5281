// Number formats: exhaustive where 16 bits allow it.
#include "core/numeric.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace robocache {
namespace {

/// IEEE half to double, from the definition.
double half_value(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    double magnitude = 0;
    if (exponent == 31) {
        magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    } else if (exponent == 0) {
        magnitude = std::ldexp(mantissa, -24);
    } else {
        magnitude = std::ldexp(1024 + mantissa, exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Numeric, EveryHalfWidensExactly) {
    for (int bits = 0; bits < 65536; ++bits) {
        const double expected = half_value(static_cast<std::uint16_t>(bits));
        const float got = to_float(Half{static_cast<std::uint16_t>(bits)});
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(got)) << bits;
        } else {
            ASSERT_EQ(static_cast<double>(got), expected) << bits;
            ASSERT_EQ(std::signbit(got), std::signbit(expected)) << bits;
        }
    }
}

TEST(Numeric, EveryHalfAndBFloat16SurvivesTheRoundTrip) {
    for (int i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        if (!std::isnan(to_float(Half{bits}))) {
            ASSERT_EQ(to_half(to_float(Half{bits})).bits, bits);
        }
        if (!std::isnan(to_float(BFloat16{bits}))) {
            ASSERT_EQ(to_bfloat16(to_float(BFloat16{bits})).bits, bits);
        }
    }
}

TEST(Numeric, HalvesRoundToNearestEven) {
    // Between any two neighboring halves: just below the middle, the middle, just above.
    for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
        const double low = half_value(bits);
        const double high = half_value(static_cast<std::uint16_t>(bits + 1));
        const auto middle = static_cast<float>((low + high) / 2);  // exact: halves have 11 bits
        const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
        ASSERT_EQ(to_half(middle).bits, even) << bits;
        ASSERT_EQ(to_half(std::nextafter(middle, 0.0F)).bits, bits) << bits;
        ASSERT_EQ(to_half(std::nextafter(middle, 1e9F)).bits, bits + 1) << bits;
    }
    EXPECT_EQ(to_half(65519.0F).bits, 0x7bff);
    EXPECT_EQ(to_half(65520.0F).bits, 0x7c00);
    EXPECT_EQ(to_half(-65520.0F).bits, 0xfc00);
}

TEST(Numeric, NansStayNans) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto low_payload = __builtin_bit_cast(float, 0x7f800001U);  // would round to infinity if it were a number
    for (const float x : {nan, -nan, low_payload}) {
        EXPECT_TRUE(std::isnan(to_float(to_half(x))));
        EXPECT_TRUE(std::isnan(to_float(to_bfloat16(x))));
    }
}

TEST(Numeric, DoublesRoundOnceOnTheWayTo16Bits) {
    // 1 + 2^-8 is the middle of two bfloat16; a little more must round up, though float32 cannot see how much more.
    const double x = 1.0 + std::ldexp(1, -8) + std::ldexp(1, -40);
    EXPECT_EQ(to_bfloat16(static_cast<float>(x)).bits, 0x3f80) << "rounding twice loses the little more";
    EXPECT_EQ(to_bfloat16(to_float_odd(x)).bits, 0x3f81);
    EXPECT_EQ(to_bfloat16(to_float_odd(-x)).bits, 0xbf81);
    const double y = 1.0 + std::ldexp(1, -8) - std::ldexp(1, -40);
    EXPECT_EQ(to_bfloat16(to_float_odd(y)).bits, 0x3f80);
    EXPECT_TRUE(std::isnan(to_float_odd(std::nan(""))));
    EXPECT_EQ(to_float_odd(0.5), 0.5F);
    EXPECT_EQ(to_half(to_float_odd(1e300)).bits, 0x7c00);
    EXPECT_EQ(to_half(to_float_odd(1e-300)).bits, 0);
}

TEST(Numeric, LargeIntegersRoundOnce) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 200000; ++i) {
        const auto x = static_cast<std::int64_t>(random());
        ASSERT_EQ(static_cast<float>(to_double_odd(x)), static_cast<float>(x)) << x;
        const std::uint64_t u = random();
        ASSERT_EQ(static_cast<float>(to_double_odd(u)), static_cast<float>(u)) << u;
    }
    const std::int64_t tricky = (std::int64_t{1} << 62) + (std::int64_t{1} << 38) + 1;  // just above a middle of floats
    EXPECT_EQ(static_cast<float>(to_double_odd(tricky)), static_cast<float>(tricky));
    EXPECT_EQ(to_double_odd(std::int64_t{9007199254740992}), 9007199254740992.0);
    EXPECT_EQ(to_double_odd(std::numeric_limits<std::int64_t>::min()), -9223372036854775808.0);
}

}  // namespace
}  // namespace robocache
