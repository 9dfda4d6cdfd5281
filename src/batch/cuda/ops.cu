// The loader's operations on CUDA: one small launch each.
#include "batch/order.hpp"
#include "core/cuda/check.hpp"
#include "core/cuda/for_each.cuh"

namespace robocache::loader_detail {
namespace {

struct SampleAnchors {
    SamplePlan plan;

    __device__ void operator()(std::int64_t i) const { sample_one(plan, i); }
};

/// One element. Types are branches, not instances: this runs once for a whole batch at most.
struct Normalize {
    NormalizePlan plan;
    DType in;
    DType out;

    __device__ void operator()(std::int64_t i) const {
        with_type(in, [&]<class In>() {
            using Compute = typename ScaledIn<In>::type;
            const std::int64_t c = i % plan.num_channels;
            const auto x = static_cast<const In*>(plan.values)[i];
            const auto offset = static_cast<Compute>(plan.offset[c]);
            const auto scale = static_cast<Compute>(plan.scale[c]);
            with_floating_type(out,
                               [&]<class Out>() { static_cast<Out*>(plan.out)[i] = scaled<Out>(x, offset, scale); });
        });
    }
};

}  // namespace

void sample_anchors_cuda(const SamplePlan& plan, int device, CudaQueue stream) {
    const DeviceGuard guard(device);
    for_each(plan.count, SampleAnchors{plan}, static_cast<cudaStream_t>(stream.handle), "sample_anchors");
}

void normalize_cuda(const NormalizePlan& plan, DType values, DType out, int device, CudaQueue stream) {
    const DeviceGuard guard(device);
    for_each(plan.num_rows * plan.num_channels, Normalize{plan, values, out}, static_cast<cudaStream_t>(stream.handle),
             "normalize");
}

}  // namespace robocache::loader_detail
