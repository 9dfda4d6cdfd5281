// How the features of a cell become its value, one channel at a time. One definition for CPU and CUDA.
#pragma once

#include <cmath>

#include "ops/voxelize/contract/kernel.hpp"
#include "ops/voxelize/contract/reductions.hpp"

namespace robocache::voxelize_detail {

/// plain: floats in the order they come; the others do not depend on the order.
enum class Sums : std::uint8_t { plain, fixed, extreme, deviation };
constexpr int num_sums_kinds = 4;

/// The most words and sums that any of them has.
constexpr int max_words = 2;
constexpr int max_sums = 2;

constexpr Sums sums_of(Reduction reduction, bool deterministic) {
    switch (traits_of(reduction).family) {
        case ReductionFamily::extreme: return Sums::extreme;
        case ReductionFamily::deviation: return Sums::deviation;
        default: return deterministic ? Sums::fixed : Sums::plain;
    }
}

/// Rounds<sums> over the values x of one channel of a cell with n points:
///   num_words                          numbers of 32 bits from a first look at the values, 0 before it
///   look(x, want_max, into)            calls into(i, word), to be joined with word i
///   joins_bits(i)                      whether words i are joined by "or", else the larger one stays
///   num_sums                           integers of 64 bits from a second look, 0 before it; 0: there is no second look
///   unit(words, n)                     what the second look needs of the first
///   add(x, unit, into)                 calls into(i, number), to be added to sum i
///   result(words, sums, n, reduction)  the value of the cell
///   has_variants                       CUDA kernels for four channels at once are compiled
template <Sums sums>
struct Rounds;

/// One word: a float, which is added to.
template <>
struct Rounds<Sums::plain> {
    static constexpr int num_words = 1;
    static constexpr int num_sums = 0;
    static constexpr bool has_variants = true;
};

template <>
struct Rounds<Sums::extreme> {
    static constexpr int num_words = 1;
    static constexpr int num_sums = 0;
    static constexpr bool has_variants = true;

    ROBOCACHE_HD static constexpr bool joins_bits(int) { return false; }

    template <class Into>
    ROBOCACHE_HD static void look(float x, bool want_max, const Into& into) {
        into(0, extreme_key(x, want_max));
    }

    ROBOCACHE_HD static float result(const std::uint32_t* words, const std::int64_t*, std::int64_t,
                                     Reduction reduction) {
        return extreme_value(words[0], reduction == Reduction::max);
    }
};

/// Note [Fixed point]. Words: the largest magnitude, and what is not finite.
template <>
struct Rounds<Sums::fixed> {
    static constexpr int num_words = 2;
    static constexpr int num_sums = 1;
    static constexpr bool has_variants = true;

    ROBOCACHE_HD static constexpr bool joins_bits(int word) { return word == 1; }

    template <class Into>
    ROBOCACHE_HD static void look(float x, bool, const Into& into) {
        into(0, magnitude_of(x));
        into(1, special_of(x));
    }

    /// 0: nothing is added.
    ROBOCACHE_HD static double unit(const std::uint32_t* words, std::int64_t n) {
        return words[1] != 0 || words[0] == 0 ? 0.0 : power_of_two(fixed_shift(words[0], n));
    }

    template <class Into>
    ROBOCACHE_HD static void add(float x, double unit, const Into& into) {
        if (unit != 0.0) into(0, to_fixed(x, unit));
    }

    ROBOCACHE_HD static float result(const std::uint32_t* words, const std::int64_t* sums, std::int64_t n,
                                     Reduction reduction) {
        if (words[1] != 0) return special_sum(words[1]);
        if (words[0] == 0) return 0.0F;
        const int shift = fixed_shift(words[0], n);
        return reduction == Reduction::mean ? fixed_mean(sums[0], shift, n) : fixed_sum(sums[0], shift);
    }
};

// Note [Deviation]
// Squares of large values with a small deviation cancel. So values are first moved by the middle of their range and
// scaled into (-1, 1), which the smallest and the largest value decide; then they and their squares are added as in
// Note [Fixed point]. No step depends on the order of the points.

/// Words: extreme_key of the smallest and of the largest value. Sums: of the scaled values, and of their squares.
template <>
struct Rounds<Sums::deviation> {
    static constexpr int num_words = 2;
    static constexpr int num_sums = 2;
    static constexpr bool has_variants = false;

    struct Unit {
        double middle;
        double scale;  // (x - middle) * scale is in (-1, 1); 0: all values are the same
        double fixed;  // ... times this is a whole number, of which n can be added
        bool is_finite;

        [[nodiscard]] ROBOCACHE_HD double scaled(float x) const { return (static_cast<double>(x) - middle) * scale; }
    };

    ROBOCACHE_HD static constexpr bool joins_bits(int) { return false; }

    template <class Into>
    ROBOCACHE_HD static void look(float x, bool, const Into& into) {
        into(0, extreme_key(x, false));
        into(1, extreme_key(x, true));
    }

    ROBOCACHE_HD static Unit unit(const std::uint32_t* words, std::int64_t n) {
        const float low = extreme_value(words[0], false);
        const float high = extreme_value(words[1], true);
        if (magnitude_of(low) >= not_finite || magnitude_of(high) >= not_finite) return {0, 0, 0, false};
        const double middle = 0.5 * static_cast<double>(low) + 0.5 * static_cast<double>(high);
        const double above = static_cast<double>(high) - middle;
        const double below = middle - static_cast<double>(low);
        const double reach = above > below ? above : below;
        if (reach == 0) return {middle, 0, 0, true};
        // reach is f * 2^e with 0.5 <= f < 1.
        const int e = static_cast<int>(__builtin_bit_cast(std::uint64_t, reach) >> 52) - 1022;
        return {middle, power_of_two(-e), power_of_two(62 - ceil_log2(static_cast<std::uint64_t>(n))), true};
    }

    template <class Into>
    ROBOCACHE_HD static void add(float x, const Unit& unit, const Into& into) {
        if (unit.scale == 0) return;
        const double u = unit.scaled(x);
        into(0, to_integer(u * unit.fixed));
        into(1, to_integer(u * u * unit.fixed));
    }

    ROBOCACHE_HD static double mean(const Unit& unit, const std::int64_t* sums, std::int64_t n) {
        return static_cast<double>(sums[0]) / unit.fixed / static_cast<double>(n);
    }

    /// Of the scaled values.
    ROBOCACHE_HD static double deviation(const Unit& unit, const std::int64_t* sums, std::int64_t n) {
        const double center = mean(unit, sums, n);
        const double variance = static_cast<double>(sums[1]) / unit.fixed / static_cast<double>(n) - center * center;
        return variance > 0 ? sqrt(variance) : 0.0;
    }

    ROBOCACHE_HD static float result(const std::uint32_t* words, const std::int64_t* sums, std::int64_t n, Reduction) {
        const Unit found = unit(words, n);
        if (!found.is_finite) return special_sum(has_nan);
        return found.scale == 0 ? 0.0F : static_cast<float>(deviation(found, sums, n) / found.scale);
    }

    /// d result / d x: (x - mean) / (n std), 0 where std is 0.
    ROBOCACHE_HD static float slope(float x, const std::uint32_t* words, const std::int64_t* sums, std::int64_t n) {
        const Unit found = unit(words, n);
        if (!found.is_finite) return special_sum(has_nan);
        if (found.scale == 0) return 0.0F;
        const double all = static_cast<double>(n) * deviation(found, sums, n);
        return all == 0 ? 0.0F : static_cast<float>((found.scaled(x) - mean(found, sums, n)) / all);
    }
};

template <Sums value>
struct SumsTag {
    static constexpr Sums sums = value;
};

/// Calls body(SumsTag<sums>{}).
template <class Body>
ROBOCACHE_HD constexpr auto with_sums(Sums sums, const Body& body) {
    switch (sums) {
        case Sums::extreme: return body(SumsTag<Sums::extreme>{});
        case Sums::deviation: return body(SumsTag<Sums::deviation>{});
        case Sums::fixed: return body(SumsTag<Sums::fixed>{});
        default: return body(SumsTag<Sums::plain>{});
    }
}

}  // namespace robocache::voxelize_detail
