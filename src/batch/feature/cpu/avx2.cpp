// The loops of features for x86-64 with AVX2; CMake compiles this file with -mavx2 -mfma -mf16c.
#include "batch/feature/cpu/kernels_impl.hpp"

namespace robocache::loader_detail {

const FeatureKernels& feature_kernels_x86_64_v3() {
    return kernels;
}

}  // namespace robocache::loader_detail
