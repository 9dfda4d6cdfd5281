#include "ops/align/cuda/times/kernels.cuh"

namespace robocache::align_detail {

AlignKernels align_kernels_f64() {
    return kernels_of<double>();
}

}  // namespace robocache::align_detail
