#include "ops/voxelize/cuda/features/launch.cuh"

namespace robocache::voxelize_detail {

void launch_features_f32(const FeatureArguments& args, bool deterministic, cudaStream_t stream) {
    launch_features_of<float>(args, deterministic, stream);
}

}  // namespace robocache::voxelize_detail
