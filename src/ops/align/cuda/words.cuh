// Words: the widest pieces of rows that addresses allow, and how two of them are blended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/values.hpp"

namespace robocache::align_detail {

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

__device__ inline double widen_fast(double x) {
    return x;
}

/// The elements of a word in the type they are computed in.
template <class T, int count, class Compute>
__device__ __forceinline__ void widen_all(const void* word, Compute* to) {
    if constexpr (std::is_same_v<T, BFloat16> && count % 2 == 0) {  // two in 32 bits are a shift and a mask
        std::uint32_t pairs[count / 2];
        memcpy(pairs, word, sizeof(pairs));
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            to[2 * i] = __uint_as_float(pairs[i] << 16);
            to[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000U);
        }
    } else {
        T x[count];
        memcpy(x, word, sizeof(x));
#pragma unroll
        for (int i = 0; i < count; ++i) {
            if constexpr (is_float<T>) {
                to[i] = widen_fast(x[i]);
            } else {
                to[i] = static_cast<Compute>(x[i]);
            }
        }
    }
}

/// The other way.
template <class T, int count, class Compute>
__device__ __forceinline__ void narrow_all(const Compute* x, void* word) {
    T z[count];
    if constexpr (sizeof(Compute) == 4 && sizeof(T) <= 4 && count % 2 == 0) {
#pragma unroll
        for (int i = 0; i < count; i += 2) narrow_pair(x[i], x[i + 1], z + i);
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) z[i] = narrow<T>(x[i]);
    }
    memcpy(word, z, sizeof(z));
}

template <class T, int bytes>
__device__ inline typename Word<bytes>::type blend_words(typename Word<bytes>::type a, typename Word<bytes>::type b,
                                                         typename ComputeOf<T>::type w) {
    constexpr int count = bytes / static_cast<int>(sizeof(T));
    typename ComputeOf<T>::type x[count];
    typename ComputeOf<T>::type y[count];
    widen_all<T, count>(&a, x);
    widen_all<T, count>(&b, y);
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = blend_linear(x[i], y[i], w);
    typename Word<bytes>::type result;
    narrow_all<T, count>(x, &result);
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
