// The methods of align: what each is, once. A window method also has a policy in windows.hpp.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "robocache/align.hpp"

namespace robocache::align_detail {

/// In the order of Method.
inline constexpr MethodTraits methods[] = {
    {Method::automatic, "automatic", MethodFamily::row, true, MethodGradient::none},
    {Method::linear, "linear", MethodFamily::blend, false, MethodGradient::times},
    {Method::previous, "previous", MethodFamily::row, true, MethodGradient::times},
    {Method::next, "next", MethodFamily::row, true, MethodGradient::times},
    {Method::nearest, "nearest", MethodFamily::row, true, MethodGradient::times},
    {Method::cubic, "cubic", MethodFamily::blend, false, MethodGradient::times},
    {Method::slerp_xyzw, "slerp_xyzw", MethodFamily::quaternion, false, MethodGradient::none},
    {Method::slerp_wxyz, "slerp_wxyz", MethodFamily::quaternion, false, MethodGradient::none},
    {Method::angle, "angle", MethodFamily::blend, false, MethodGradient::none},
    {Method::mean, "mean", MethodFamily::window, false, MethodGradient::times},
    {Method::min, "min", MethodFamily::window, true, MethodGradient::none},
    {Method::max, "max", MethodFamily::window, true, MethodGradient::none},
    {Method::rms, "rms", MethodFamily::window, false, MethodGradient::values},
};

/// One bit for each method that has a property: device code cannot index the table.
template <class Property>
consteval std::uint32_t methods_with(Property property) {
    std::uint32_t bits = 0;
    for (const MethodTraits& traits : methods) {
        if (property(traits)) bits |= 1U << static_cast<unsigned>(traits.method);
    }
    return bits;
}

consteval bool methods_are_in_order() {
    unsigned i = 0;
    for (const MethodTraits& traits : methods) {
        if (static_cast<unsigned>(traits.method) != i++) return false;
    }
    return i <= 32;
}
static_assert(methods_are_in_order());

ROBOCACHE_HD bool is_among(std::uint32_t bits, Method method) {
    return (bits >> static_cast<unsigned>(method) & 1U) != 0;
}

ROBOCACHE_HD bool is_window(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.family == MethodFamily::window; });
    return is_among(bits, method);
}

ROBOCACHE_HD bool is_slerp(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.family == MethodFamily::quaternion; });
    return is_among(bits, method);
}

/// One row as it is.
ROBOCACHE_HD bool takes_one_row(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.family == MethodFamily::row; });
    return is_among(bits, method);
}

/// Between rows: the methods that can also extrapolate.
ROBOCACHE_HD bool interpolates(Method method) {
    return !is_window(method) && !takes_one_row(method);
}

ROBOCACHE_HD bool takes_integers(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.takes_integers; });
    return is_among(bits, method);
}

ROBOCACHE_HD bool has_gradient(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.gradient != MethodGradient::none; });
    return is_among(bits, method);
}

/// Whether the gradient depends on the values of the rows.
ROBOCACHE_HD bool gradient_reads_values(Method method) {
    constexpr std::uint32_t bits = methods_with([](auto& traits) { return traits.gradient == MethodGradient::values; });
    return is_among(bits, method);
}

}  // namespace robocache::align_detail
