// The CPU kernels for x86-64 with AVX2, FMA and F16C; CMake compiles this file with -mavx2 -mfma -mf16c.
#include "ops/align/cpu/kernels_impl.hpp"

namespace robocache::align_detail {

const CpuKernels& kernels_x86_64_v3() {
    return kernels;
}

}  // namespace robocache::align_detail
