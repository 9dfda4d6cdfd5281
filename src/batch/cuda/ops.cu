// The loader's operations on CUDA: one small launch each.
#include <algorithm>

#include "batch/order.hpp"
#include "core/cuda/check.hpp"

namespace robocache::loader_detail {
namespace {

constexpr int threads = 256;
constexpr std::int64_t max_blocks = 8192;

int blocks_for(std::int64_t count) {
    return static_cast<int>(std::min<std::int64_t>((count + threads - 1) / threads, max_blocks));
}

__global__ void robocache_sample_anchors(const __grid_constant__ SamplePlan plan) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < plan.count; i += step) {
        sample_one(plan, i);
    }
}

template <class In, class Out>
__global__ void robocache_normalize(const NormalizePlan plan) {
    using Compute = typename ScaledIn<In>::type;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    const std::int64_t total = plan.num_rows * plan.num_channels;
    const auto* in = static_cast<const In*>(plan.values);
    auto* out = static_cast<Out*>(plan.out);
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
        const std::int64_t c = i % plan.num_channels;
        out[i] = scaled<Out>(in[i], static_cast<Compute>(plan.offset[c]), static_cast<Compute>(plan.scale[c]));
    }
}

}  // namespace

void sample_anchors_cuda(const SamplePlan& plan, int device, CudaQueue stream) {
    if (plan.count == 0) return;
    const DeviceGuard guard(device);
    robocache_sample_anchors<<<blocks_for(plan.count), threads, 0, static_cast<cudaStream_t>(stream.handle)>>>(plan);
    check_cuda(cudaGetLastError(), "sample_anchors");
}

void normalize_cuda(const NormalizePlan& plan, DType values, DType out, int device, CudaQueue stream) {
    const std::int64_t total = plan.num_rows * plan.num_channels;
    if (total == 0) return;
    const DeviceGuard guard(device);
    with_type(values, [&]<class In>() {
        with_floating_type(out, [&]<class Out>() {
            robocache_normalize<In, Out>
                <<<blocks_for(total), threads, 0, static_cast<cudaStream_t>(stream.handle)>>>(plan);
        });
    });
    check_cuda(cudaGetLastError(), "normalize");
}

}  // namespace robocache::loader_detail
