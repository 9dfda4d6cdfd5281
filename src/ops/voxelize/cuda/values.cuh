// Values whose type is known at run time.
#pragma once

#include "ops/voxelize/contract/plan.hpp"

namespace robocache::voxelize_detail {

__device__ __forceinline__ float from_16_bits(std::uint16_t bits, DType dtype) {
    const float half = to_float(Half{bits});
    const float bfloat = to_float(BFloat16{bits});
    return dtype == DType::bf16 ? bfloat : half;
}

__device__ __forceinline__ std::uint16_t to_16_bits(float x, DType dtype) {
    return dtype == DType::bf16 ? to_bfloat16(x).bits : to_half(x).bits;
}

/// f32, f16, bf16 or u8. One load with a predicate for each size, so that loads of several values are in flight.
__device__ __forceinline__ float value_at(const void* at, DType dtype) {
    const bool two = dtype == DType::f16 || dtype == DType::bf16;
    std::uint32_t bits = 0;
    if (dtype == DType::f32) bits = *static_cast<const std::uint32_t*>(at);
    if (dtype == DType::u8) bits = *static_cast<const std::uint8_t*>(at);
    if (two) bits = *static_cast<const std::uint16_t*>(at);
    const float one = dtype == DType::u8 ? static_cast<float>(bits) : __uint_as_float(bits);
    return two ? from_16_bits(static_cast<std::uint16_t>(bits), dtype) : one;
}

/// Channel c of point i.
__device__ __forceinline__ float feature_at(const FeaturesPlan& features, std::int64_t i, std::int64_t c) {
    return value_at(features.data + i * features.strides[3] + c * features.channel_stride, features.dtype);
}

}  // namespace robocache::voxelize_detail
