// Offsets of clouds on a GPU, read for check=True.
#include <vector>

#include "core/cuda/check.hpp"
#include "ops/voxelize/contract/plan.hpp"

namespace robocache::voxelize_detail {

std::vector<std::int64_t> read_offsets_cuda(const PointsPlan& points, std::int64_t num_clouds, Device device,
                                            CudaQueue stream) {
    const DeviceGuard guard(device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(num_clouds + 1));
    for (std::size_t b = 0; b < offsets.size(); b += points.offsets_stride == 1 ? offsets.size() : 1) {
        const std::int64_t* from = points.offsets + static_cast<std::int64_t>(b) * points.offsets_stride;
        const std::size_t count = points.offsets_stride == 1 ? offsets.size() : 1;
        check_cuda(cudaMemcpyAsync(&offsets[b], from, 8 * count, cudaMemcpyDeviceToHost, handle),
                   "voxelize: reading offsets for check=True");
    }
    check_cuda(cudaStreamSynchronize(handle), "voxelize: reading offsets for check=True");
    return offsets;
}

}  // namespace robocache::voxelize_detail
