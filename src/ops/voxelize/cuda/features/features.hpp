// The launches of the feature kernels.
#pragma once

#include <cuda_runtime_api.h>

namespace robocache::voxelize_detail {

struct BinJob;

/// list_points and write_features, after sort_tiles.
void launch_features(const BinJob& job, cudaStream_t stream);

}  // namespace robocache::voxelize_detail
