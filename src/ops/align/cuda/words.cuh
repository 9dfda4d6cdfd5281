// Words: the widest pieces of rows that addresses allow, and how two of them are blended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/values.hpp"

namespace robocache::align_detail {

/// Elements and the widest access that every row allows: the simple kernel has one instance of its loop for each.
enum class Format : std::uint8_t {
    f32x4,
    f32x2,
    f32x1,  // 16, 8, 4 bytes
    f64x2,
    f64x1,  // 16, 8
    f16x8,
    f16x4,
    f16x2,
    f16x1,  // 16, 8, 4, 2
    bf16x8,
    bf16x4,
    bf16x2,
    bf16x1,
    raw16,
    raw8,
    raw4,
    raw2,
    raw1,  // rows that are only copied
};

template <int bytes>
struct Word;
template <>
struct Word<16> {
    using type = uint4;
};
template <>
struct Word<8> {
    using type = uint2;
};
template <>
struct Word<4> {
    using type = unsigned int;
};
template <>
struct Word<2> {
    using type = unsigned short;
};
template <>
struct Word<1> {
    using type = unsigned char;
};

// The hardware's conversions round like to_bfloat16 and to_half; only the payload of a NaN may differ.
__device__ inline void narrow_pair(float x, float y, BFloat16* to) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    to[0].bits = __bfloat16_as_ushort(pair.x);
    to[1].bits = __bfloat16_as_ushort(pair.y);
}

__device__ inline void narrow_pair(float x, float y, Half* to) {
    const __half2 pair = __floats2half2_rn(x, y);
    to[0].bits = __half_as_ushort(pair.x);
    to[1].bits = __half_as_ushort(pair.y);
}

__device__ inline void narrow_pair(float x, float y, float* to) {
    to[0] = x;
    to[1] = y;
}

__device__ inline float widen_fast(float x) {
    return x;
}

__device__ inline float widen_fast(BFloat16 x) {
    return to_float(x);
}

__device__ inline float widen_fast(Half x) {
    return __half2float(__ushort_as_half(x.bits));
}

__device__ __forceinline__ float load_element(const float* from) {
    return __ldg(from);
}

template <class T>
__device__ __forceinline__ T load_element(const T* from) {
    return {__ldg(&from->bits)};
}

template <class T, int bytes>
__device__ inline typename Word<bytes>::type blend_words(typename Word<bytes>::type a, typename Word<bytes>::type b,
                                                         typename ComputeOf<T>::type w) {
    constexpr int count = bytes / static_cast<int>(sizeof(T));
    T x[count];
    T y[count];
    T z[count];
    memcpy(x, &a, bytes);
    memcpy(y, &b, bytes);
    if constexpr (sizeof(T) == 2 && count > 1) {
#pragma unroll
        for (int i = 0; i < count; i += 2) {
            narrow_pair(blend_linear(widen_fast(x[i]), widen_fast(y[i]), w),
                        blend_linear(widen_fast(x[i + 1]), widen_fast(y[i + 1]), w), z + i);
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) z[i] = narrow<T>(blend_linear(widen(x[i]), widen(y[i]), w));
    }
    typename Word<bytes>::type result;
    memcpy(&result, z, bytes);
    return result;
}

template <class T, int bytes>
__device__ inline typename Word<bytes>::type fill_word(double value) {
    constexpr int count = bytes / static_cast<int>(sizeof(T));
    T z[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        if constexpr (is_float<T>) {
            z[i] = narrow<T>(value);
        } else {
            z[i] = T{};
        }
    }
    typename Word<bytes>::type result;
    memcpy(&result, z, bytes);
    return result;
}

template <class W>
__device__ inline void store_word(char* to, W word) {
    if constexpr (sizeof(W) >= 4) {
        __stcs(reinterpret_cast<W*>(to), word);  // written once, read by somebody else much later
    } else {
        *reinterpret_cast<W*>(to) = word;
    }
}

/// A warp's results from shared memory to where they belong, in the widest accesses that the address allows.
template <class T>
__device__ __forceinline__ void write_side_by_side(const char* results, std::int32_t size, int lane, char* out) {
    std::int32_t done = 0;
    if (reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
        done = size / 16 * 16;
        for (std::int32_t at = lane * 16; at < done; at += warp_size * 16) {
            store_word(out + at, *reinterpret_cast<const uint4*>(results + at));
        }
    } else if (reinterpret_cast<std::uintptr_t>(out) % 4 == 0) {
        done = size / 4 * 4;
        for (std::int32_t at = lane * 4; at < done; at += warp_size * 4) {
            store_word(out + at, *reinterpret_cast<const unsigned*>(results + at));
        }
    }
    constexpr auto element = static_cast<std::int32_t>(sizeof(T));
    for (std::int32_t at = done + lane * element; at < size; at += warp_size * element) {
        *reinterpret_cast<T*>(out + at) = *reinterpret_cast<const T*>(results + at);
    }
}

}  // namespace robocache::align_detail
