// Halves for the emulated GPU, by the conversions of core/numeric.hpp, which round in the same way.
#pragma once

#include "core/numeric.hpp"

struct __half {
    unsigned short bits;
};
struct __half2 {
    __half x, y;
};

inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
inline unsigned short __half_as_ushort(__half h) {
    return h.bits;
}
inline float __half2float(__half h) {
    return robocache::to_float(robocache::Half{h.bits});
}
inline __half __float2half_rn(float x) {
    return {robocache::to_half(x).bits};
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
