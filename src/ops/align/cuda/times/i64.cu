#include "ops/align/cuda/times/kernels.cuh"

namespace robocache::align_detail {

AlignKernels align_kernels_i64() {
    return kernels_of<std::int64_t>();
}

}  // namespace robocache::align_detail
