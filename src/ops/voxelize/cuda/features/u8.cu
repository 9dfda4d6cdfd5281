#include "ops/voxelize/cuda/features/launch.cuh"

namespace robocache::voxelize_detail {

void launch_features_u8(const FeatureArguments& args, bool deterministic, cudaStream_t stream) {
    launch_features_of<std::uint8_t>(args, deterministic, stream);
}

}  // namespace robocache::voxelize_detail
