// What window methods make of the rows of a window, one channel at a time. One definition for CPU and CUDA.
//
// A policy is the accumulator of one channel:
//   picks_row               the result is one of the values, not a number computed from them
//   add(x, is_first)        takes the value of the next row
//   result(count)           after `count` rows, at least one
//   slope(x, result, count) d result / d x; only where the gradient reads values (methods.hpp)
#pragma once

#include <cmath>

#include "ops/align/contract/methods.hpp"
#include "ops/align/contract/values.hpp"

namespace robocache::align_detail {

template <class T>
struct MeanOf {
    static constexpr bool picks_row = false;
    double sum = 0;

    ROBOCACHE_HD void add(T x, bool) { sum += static_cast<double>(widen(x)); }
    ROBOCACHE_HD double result(double count) const { return sum / count; }
};

template <class T, bool want_max>
struct ExtremeOf {
    static constexpr bool picks_row = true;
    T best{};

    ROBOCACHE_HD void add(T x, bool is_first) {
        if (is_first || is_beyond(x, best, want_max)) best = x;
    }
    ROBOCACHE_HD T result(double) const { return best; }
};

template <class T>
struct RmsOf {
    static constexpr bool picks_row = false;
    double squares = 0;

    ROBOCACHE_HD void add(T x, bool) {
        const auto wide = static_cast<double>(widen(x));
        squares += wide * wide;
    }
    ROBOCACHE_HD double result(double count) const { return sqrt(squares / count); }
    ROBOCACHE_HD static double slope(double x, double result, double count) {
        return result == 0 ? 0.0 : x / (count * result);
    }
};

/// Calls body with a new accumulator of a window method for values of T.
template <class T, class Body>
ROBOCACHE_HD void with_window(Method method, const Body& body) {
    if constexpr (is_float<T>) {
        if (method == Method::mean) return body(MeanOf<T>{});
        if (method == Method::rms) return body(RmsOf<T>{});
    }
    if (method == Method::max) return body(ExtremeOf<T, true>{});
    body(ExtremeOf<T, false>{});
}

}  // namespace robocache::align_detail
