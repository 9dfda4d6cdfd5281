// The gradient of a dense grid of features on CUDA: every point reads that of its cell. min and max first find, for
// each cell and channel, the first point that has the value; std looks at the features twice, as Rounds describes.
#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {
namespace {

constexpr int backward_threads = 256;

using R = Rounds<Sums::deviation>;

/// std: the words and sums of each cell and channel; null for other reductions.
struct Found {
    std::uint32_t* words[R::num_words];
    std::int64_t* sums[R::num_sums];
};

template <class Source>
struct BackwardArguments {
    Places<Source> places;
    FeaturesPlan features;
    std::int64_t num_points;
    Reduction reduction;
    const void* out_gradient;
    DType out_gradient_dtype;
    const void* values;
    DType values_dtype;
    float* gradient;
    std::int64_t gradient_row_stride;
    std::int64_t gradient_channel_stride;
    std::uint32_t* counts;  // mean, std: of each cell
    std::uint32_t* first;   // min, max: of each cell and channel
    Found found;
    bool again;  // std: the second look
};

bool picks_one(Reduction reduction) {
    return traits_of(reduction).family == ReductionFamily::extreme;
}

struct BackwardSpace {
    std::uint32_t* counts = nullptr;
    std::uint32_t* first = nullptr;
    Found found{};
    std::int64_t bytes = 0;  // of those that are used, which lie side by side
};

BackwardSpace cut(const BackwardPlan& plan, Cutter& cutter) {
    BackwardSpace space;
    const std::int64_t before = cutter.used();
    const std::int64_t values = plan.total_cells() * plan.features.num_channels;
    const bool deviates = traits_of(plan.reduction).family == ReductionFamily::deviation;
    if (plan.reduction == Reduction::mean || deviates) space.counts = cutter.take<std::uint32_t>(plan.total_cells());
    if (picks_one(plan.reduction)) space.first = cutter.take<std::uint32_t>(values);
    for (int i = 0; deviates && i < R::num_words; ++i) space.found.words[i] = cutter.take<std::uint32_t>(values);
    for (int i = 0; deviates && i < R::num_sums; ++i) space.found.sums[i] = cutter.take<std::int64_t>(values);
    space.bytes = cutter.used() - before;
    return space;
}

__device__ __forceinline__ float value_at(const void* data, DType dtype, std::int64_t at) {
    switch (dtype) {
        case DType::f16: return widen(static_cast<const Half*>(data)[at]);
        case DType::bf16: return widen(static_cast<const BFloat16*>(data)[at]);
        case DType::f64: return widen(static_cast<const double*>(data)[at]);
        default: return static_cast<const float*>(data)[at];
    }
}

__device__ __forceinline__ float feature_at(const FeaturesPlan& features, std::int64_t i, std::int64_t c) {
    const char* at = features.data + i * features.strides[3] + c * features.channel_stride;
    if (features.dtype == DType::u8) return widen(*reinterpret_cast<const std::uint8_t*>(at));
    return value_at(at, features.dtype, 0);
}

/// std: a look at all channels of a point.
template <class Source>
__device__ __forceinline__ void look_at(const BackwardArguments<Source>& args, std::int64_t i, std::int64_t cell) {
    for (std::int64_t c = 0; c < args.features.num_channels; ++c) {
        const std::int64_t at = cell * args.features.num_channels + c;
        const float x = feature_at(args.features, i, c);
        if (!args.again) {
            R::look(x, false, [&](int k, std::uint32_t word) { atomicMax(args.found.words[k] + at, word); });
            continue;
        }
        const std::uint32_t words[] = {args.found.words[0][at], args.found.words[1][at]};
        R::add(x, R::unit(words, args.counts[cell]), [&](int k, std::int64_t number) {
            atomicAdd(reinterpret_cast<unsigned long long*>(args.found.sums[k] + at),
                      static_cast<unsigned long long>(number));
        });
    }
}

/// mean: counts the points of each cell; std: and looks at their features. min, max: notes the first point that has the
/// cell's value.
template <class Source>
__global__ __launch_bounds__(backward_threads) void look_at_points(
    const __grid_constant__ BackwardArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * backward_threads + threadIdx.x;
    if (i >= args.num_points) return;
    const std::int64_t cell = args.places.key(i);
    if (cell < 0) return;
    if (args.counts != nullptr) {
        if (!args.again) atomicAdd(args.counts + cell, 1U);
        if (args.found.words[0] != nullptr) look_at(args, i, cell);
        return;
    }
    const bool want_max = args.reduction == Reduction::max;
    for (std::int64_t c = 0; c < args.features.num_channels; ++c) {
        const std::int64_t at = cell * args.features.num_channels + c;
        const float value = value_at(args.values, args.values_dtype, at);
        if (extreme_key(feature_at(args.features, i, c), want_max) == extreme_key(value, want_max)) {
            atomicMin(args.first + at, static_cast<std::uint32_t>(i));
        }
    }
}

template <class Source>
__global__ __launch_bounds__(backward_threads) void share_gradient(
    const __grid_constant__ BackwardArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * backward_threads + threadIdx.x;
    if (i >= args.num_points) return;
    // Without clouds (offsets that nobody checked) there is no grid to read a gradient from.
    const std::int64_t cell = args.places.source.num_clouds == 0 ? no_point : args.places.key(i);
    for (std::int64_t c = 0; c < args.features.num_channels; ++c) {
        const std::int64_t at = cell * args.features.num_channels + c;
        float gradient = 0;
        if (cell >= 0 && (args.first == nullptr || args.first[at] == static_cast<std::uint32_t>(i))) {
            gradient = value_at(args.out_gradient, args.out_gradient_dtype, at);
            if (args.found.words[0] != nullptr) {
                const std::uint32_t words[] = {args.found.words[0][at], args.found.words[1][at]};
                const std::int64_t sums[] = {args.found.sums[0][at], args.found.sums[1][at]};
                gradient = gradient * R::slope(feature_at(args.features, i, c), words, sums, args.counts[cell]);
            } else if (args.counts != nullptr) {
                gradient = gradient / static_cast<float>(args.counts[cell]);
            }
        }
        args.gradient[i * args.gradient_row_stride + c * args.gradient_channel_stride] = gradient;
    }
}

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
    const BackwardSpace space = cut(plan, cutter);
    void* looked = space.counts != nullptr ? space.counts : space.first;
    if (looked != nullptr) {
        check_cuda(
            cudaMemsetAsync(looked, space.first != nullptr ? 0xff : 0, static_cast<std::size_t>(space.bytes), handle),
            "voxelize_backward: clearing");
    }
    with_points(plan, [&](const auto& source) {
        using Source = std::decay_t<decltype(source)>;
        BackwardArguments<Source> args{Places<Source>(source, plan.grid),
                                       plan.features,
                                       plan.num_points,
                                       plan.reduction,
                                       plan.out_gradient,
                                       plan.out_gradient_dtype,
                                       plan.values,
                                       plan.values_dtype,
                                       plan.gradient,
                                       plan.gradient_row_stride,
                                       plan.gradient_channel_stride,
                                       space.counts,
                                       space.first,
                                       space.found,
                                       false};
        const unsigned blocks = blocks_for(plan.num_points, backward_threads);
        for (const bool again : {false, true}) {
            args.again = again;
            if (looked == nullptr || (again && space.found.words[0] == nullptr)) continue;
            launch_overlapped(look_at_points<Source>, blocks, backward_threads, 0, handle, args,
                              "voxelize_backward: launching look_at_points");
        }
        launch_overlapped(share_gradient<Source>, blocks, backward_threads, 0, handle, args,
                          "voxelize_backward: launching share_gradient");
    });
}

}  // namespace robocache::voxelize_detail
