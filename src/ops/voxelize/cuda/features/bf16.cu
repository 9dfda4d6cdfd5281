#include "ops/voxelize/cuda/features/launch.cuh"

namespace robocache::voxelize_detail {

void launch_features_bf16(const FeatureArguments& args, bool deterministic, cudaStream_t stream) {
    launch_features_of<BFloat16>(args, deterministic, stream);
}

}  // namespace robocache::voxelize_detail
