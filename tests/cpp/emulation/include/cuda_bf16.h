// bfloat16 for the emulated GPU, by the conversions of core/numeric.hpp, which round in the same way.
#pragma once

#include "core/numeric.hpp"

struct __nv_bfloat16 {
    unsigned short bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
    return x.bits;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    return {robocache::to_bfloat16(x).bits};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
