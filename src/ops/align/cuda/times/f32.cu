#include "ops/align/cuda/launch.cuh"

namespace robocache::align_detail {

void align_cuda_f32(const CallPlan& plan, cudaStream_t stream) {
    launch_all<float>(plan, stream);
}

}  // namespace robocache::align_detail
