// What happens to a pixel after the resize: color factors, normalization, one rounding to the output dtype.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

namespace robocache::decode_detail {

/// Factors of one picture; 1, 1, 1 changes nothing.
struct Factors {
    float brightness, contrast, saturation;
};

/// value * scale + offset, by channel.
struct Scaling {
    float scale[3];
    float offset[3];
};

ROBOCACHE_HD float clamp_255(float x) {
    return x < 0.0F ? 0.0F : (x > 255.0F ? 255.0F : x);
}

/// Brightness, then contrast, then saturation, each clamped to [0, 255]. No fused multiply-add.
template <int channels>
ROBOCACHE_HD void apply_factors(const Factors& factors, float (&x)[channels]) {
    for (float& value : x) {
        value = clamp_255(value * factors.brightness);
        value = clamp_255((value - 127.5F) * factors.contrast + 127.5F);
    }
    if constexpr (channels == 3) {
        const float gray = 0.299F * x[0] + 0.587F * x[1] + 0.114F * x[2];
        for (float& value : x) value = clamp_255(gray + (value - gray) * factors.saturation);
    }
}

template <class T>
ROBOCACHE_HD T finished(float x, float scale, float offset);
template <>
ROBOCACHE_HD std::uint8_t finished<std::uint8_t>(float x, float, float) {
    return static_cast<std::uint8_t>(x + 0.5F);  // x is in [0, 255]
}
template <>
ROBOCACHE_HD float finished<float>(float x, float scale, float offset) {
    return fused_multiply_add(x, scale, offset);
}
template <>
ROBOCACHE_HD Half finished<Half>(float x, float scale, float offset) {
    return to_half(fused_multiply_add(x, scale, offset));
}
template <>
ROBOCACHE_HD BFloat16 finished<BFloat16>(float x, float scale, float offset) {
    return to_bfloat16(fused_multiply_add(x, scale, offset));
}

}  // namespace robocache::decode_detail
