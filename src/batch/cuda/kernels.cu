// The kernels of batches.
#include "batch/cuda/windows.cuh"

namespace robocache::loader_detail {

BatchKernels batch_kernels() {
    return {robocache_read_batch<ItemsOf<float>>,
            robocache_read_batch<ItemsOf<BFloat16>>,
            robocache_read_batch<AnyItems>,
            robocache_copy_windows<ItemsOf<float>>,
            robocache_copy_windows<ItemsOf<BFloat16>>,
            sizeof(OtherSamples)};
}

}  // namespace robocache::loader_detail
