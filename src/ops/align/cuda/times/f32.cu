#include "ops/align/cuda/times/kernels.cuh"

namespace robocache::align_detail {

AlignKernels align_kernels_f32() {
    return kernels_of<float>();
}

}  // namespace robocache::align_detail
