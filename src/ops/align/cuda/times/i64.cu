#include "ops/align/cuda/launch.cuh"

namespace robocache::align_detail {

void align_cuda_i64(const CallPlan& plan, cudaStream_t stream) {
    launch_all<std::int64_t>(plan, stream);
}

}  // namespace robocache::align_detail
