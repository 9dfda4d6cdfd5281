// Values in and out of the compute type: which type that is, how to get there and back. For CPU and CUDA.
#pragma once

#include <type_traits>

#include "core/numeric.hpp"

namespace robocache::align_detail {

template <class T>
inline constexpr bool is_float = false;
template <>
inline constexpr bool is_float<float> = true;
template <>
inline constexpr bool is_float<double> = true;
template <>
inline constexpr bool is_float<Half> = true;
template <>
inline constexpr bool is_float<BFloat16> = true;

/// f32 for everything up to 32 floating bits; f64 for f64, and for integers, which it holds exactly or to odd.
template <class T>
struct ComputeOf {
    using type = double;
};
template <>
struct ComputeOf<float> {
    using type = float;
};
template <>
struct ComputeOf<Half> {
    using type = float;
};
template <>
struct ComputeOf<BFloat16> {
    using type = float;
};

template <class T>
ROBOCACHE_HD typename ComputeOf<T>::type widen(T x) {
    if constexpr (sizeof(T) == 8 && !is_float<T>) {
        return to_double_odd(x);
    } else if constexpr (is_float<T> && sizeof(T) < 8) {
        return to_float(x);
    } else {
        return static_cast<double>(x);
    }
}

template <class Out, class Compute>
ROBOCACHE_HD Out narrow(Compute x) {
    constexpr bool from_double = sizeof(Compute) == 8;
    if constexpr (sizeof(Out) == 2) {
        float single;
        if constexpr (from_double) {
            single = to_float_odd(x);
        } else {
            single = x;
        }
        if constexpr (std::is_same_v<Out, Half>) {
            return to_half(single);
        } else {
            return to_bfloat16(single);
        }
    } else {
        return static_cast<Out>(x);
    }
}

/// Whether x replaces the extreme so far. A NaN does, and nothing replaces it.
template <class T>
ROBOCACHE_HD bool is_beyond(T x, T extreme, bool want_max) {
    if constexpr (is_float<T>) {
        const auto value = widen(x);
        const auto best = widen(extreme);
        return best == best && (value != value || (want_max ? value > best : value < best));
    } else {
        return want_max ? x > extreme : x < extreme;
    }
}

}  // namespace robocache::align_detail
