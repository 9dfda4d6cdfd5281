// How the features of a cell become its value, one channel at a time. One definition for CPU and CUDA.
#pragma once

#include "ops/voxelize/contract/kernel.hpp"
#include "ops/voxelize/contract/reductions.hpp"

namespace robocache::voxelize_detail {

/// plain: floats in the order they come; the others do not depend on the order.
enum class Sums : std::uint8_t { plain, fixed, extreme };
constexpr int num_sums_kinds = 3;

/// The most words and sums that any of them has.
constexpr int max_words = 2;
constexpr int max_sums = 1;

constexpr Sums sums_of(Reduction reduction, bool deterministic) {
    switch (traits_of(reduction).family) {
        case ReductionFamily::extreme: return Sums::extreme;
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

template <Sums value>
struct SumsTag {
    static constexpr Sums sums = value;
};

/// Calls body(SumsTag<sums>{}).
template <class Body>
ROBOCACHE_HD constexpr auto with_sums(Sums sums, const Body& body) {
    switch (sums) {
        case Sums::extreme: return body(SumsTag<Sums::extreme>{});
        case Sums::fixed: return body(SumsTag<Sums::fixed>{});
        default: return body(SumsTag<Sums::plain>{});
    }
}

}  // namespace robocache::voxelize_detail
