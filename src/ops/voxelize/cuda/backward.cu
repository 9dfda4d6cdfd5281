// The gradient of a dense grid of features on CUDA: every point reads that of its cell. min and max first find, for
// each cell and channel, the first point that has the value; std takes two passes over the features, as Rounds
// describes.
#include "core/cuda/for_each.cuh"
#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/places.cuh"
#include "ops/voxelize/cuda/values.cuh"

namespace robocache::voxelize_detail {
namespace {

using R = Rounds<Sums::deviation>;

/// Null where a reduction does not need it; the others are contiguous.
struct BackwardSpace {
    std::uint32_t* counts = nullptr;          // mean, std: of each cell
    std::uint32_t* first = nullptr;           // min, max: of each cell and channel
    std::uint32_t* words[R::num_words] = {};  // std: the same
    std::int64_t* sums[R::num_sums] = {};
    std::int64_t bytes = 0;
};

bool picks_one(Reduction reduction) {
    return traits_of(reduction).family == ReductionFamily::extreme;
}

BackwardSpace cut(const BackwardPlan& plan, Cutter& cutter) {
    BackwardSpace space;
    const std::int64_t values = plan.total_cells() * plan.features.num_channels;
    const bool deviates = traits_of(plan.reduction).family == ReductionFamily::deviation;
    if (plan.reduction == Reduction::mean || deviates) space.counts = cutter.take<std::uint32_t>(plan.total_cells());
    if (picks_one(plan.reduction)) space.first = cutter.take<std::uint32_t>(values);
    for (int i = 0; deviates && i < R::num_words; ++i) space.words[i] = cutter.take<std::uint32_t>(values);
    for (int i = 0; deviates && i < R::num_sums; ++i) space.sums[i] = cutter.take<std::int64_t>(values);
    space.bytes = cutter.used();
    return space;
}

__device__ __forceinline__ float grid_value(const void* data, DType dtype, std::int64_t at) {
    if (dtype == DType::f64) return widen(static_cast<const double*>(data)[at]);
    return value_at(static_cast<const char*>(data) + at * (dtype == DType::f32 ? 4 : 2), dtype);
}

struct BackwardJob {
    BackwardPlan plan;
    BackwardSpace space;
    Places places;
    bool again;  // std: the second pass
};

/// mean: counts the points of each cell; std: and reads their features. min, max: finds the first point that has the
/// cell's value.
struct ReadPoints : BackwardJob {
    __device__ void operator()(std::int64_t i) const {
        const std::int64_t cell = places.key<false>(i);
        if (cell < 0) return;
        if (space.counts != nullptr && !again) atomicAdd(space.counts + cell, 1U);
        if (space.counts != nullptr && space.words[0] == nullptr) return;
        const bool want_max = plan.reduction == Reduction::max;
        for (std::int64_t c = 0; c < plan.features.num_channels; ++c) {
            const std::int64_t at = cell * plan.features.num_channels + c;
            const float x = feature_at(plan.features, i, c);
            if (space.first != nullptr) {
                const float value = grid_value(plan.values, plan.values_dtype, at);
                if (extreme_key(x, want_max) == extreme_key(value, want_max)) {
                    atomicMin(space.first + at, static_cast<std::uint32_t>(i));
                }
            } else if (!again) {
                R::look(x, false, [&](int k, std::uint32_t word) { atomicMax(space.words[k] + at, word); });
            } else {
                const std::uint32_t words[] = {space.words[0][at], space.words[1][at]};
                R::add(x, R::unit(words, space.counts[cell]), [&](int k, std::int64_t number) {
                    atomicAdd(reinterpret_cast<unsigned long long*>(space.sums[k] + at),
                              static_cast<unsigned long long>(number));
                });
            }
        }
    }
};

struct ShareGradient : BackwardJob {
    __device__ void operator()(std::int64_t i) const {
        // Without clouds (unchecked offsets) there is no grid to read a gradient from.
        const std::int64_t cell = plan.num_clouds == 0 ? no_point : places.key<false>(i);
        for (std::int64_t c = 0; c < plan.features.num_channels; ++c) {
            const std::int64_t at = cell * plan.features.num_channels + c;
            float gradient = 0;
            if (cell >= 0 && (space.first == nullptr || space.first[at] == static_cast<std::uint32_t>(i))) {
                gradient = grid_value(plan.out_gradient, plan.out_gradient_dtype, at);
                if (space.words[0] != nullptr) {
                    const std::uint32_t words[] = {space.words[0][at], space.words[1][at]};
                    const std::int64_t sums[] = {space.sums[0][at], space.sums[1][at]};
                    gradient = gradient * R::slope(feature_at(plan.features, i, c), words, sums, space.counts[cell]);
                } else if (space.counts != nullptr) {
                    gradient = gradient / static_cast<float>(space.counts[cell]);
                }
            }
            plan.gradient[i * plan.gradient_row_stride + c * plan.gradient_channel_stride] = gradient;
        }
    }
};

}  // namespace

std::int64_t plan_voxelize_backward_cuda(const BackwardPlan& plan) {
    Cutter cutter(nullptr);
    (void)cut(plan, cutter);
    return cutter.used();
}

void voxelize_backward_cuda(const BackwardPlan& plan, CudaQueue stream) {
    if (plan.num_points == 0 || plan.features.num_channels == 0) return;
    if (picks_one(plan.reduction) && plan.num_points >= UINT32_MAX) {
        throw Unsupported("voxelize_backward: min and max of more than 2^32 - 2 points on CUDA");
    }
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    Cutter cutter(plan.workspace.data);
    BackwardJob job{plan, cut(plan, cutter), Places(plan), false};
    if (job.space.bytes > 0) {
        check_cuda(cudaMemsetAsync(plan.workspace.data, job.space.first != nullptr ? 0xff : 0,
                                   static_cast<std::size_t>(job.space.bytes), handle),
                   "voxelize_backward: clearing");
        for_each(plan.num_points, ReadPoints{job}, handle, "voxelize_backward: reading points");
    }
    if (job.space.words[0] != nullptr) {
        job.again = true;
        for_each(plan.num_points, ReadPoints{job}, handle, "voxelize_backward: reading points again");
    }
    for_each(plan.num_points, ShareGradient{job}, handle, "voxelize_backward: sharing the gradient");
}

}  // namespace robocache::voxelize_detail
