// The CPU kernels of decode for x86-64 with AVX2, FMA and F16C; CMake compiles this file with -mavx2 -mfma -mf16c.
#include "ops/decode/cpu/kernels_impl.hpp"

namespace robocache::decode_detail {

const CpuKernels& kernels_x86_64_v3() {
    return kernels;
}

}  // namespace robocache::decode_detail
