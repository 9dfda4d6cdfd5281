// Points add their features to the rows of their cells, and the first points of each row.
#pragma once

#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/sparse/rows.cuh"

namespace robocache::voxelize_detail {

struct AddArguments {
    FeaturesPlan features;
    Reduction reduction;
    Sums sums;
    std::int64_t num_points;
    std::int64_t num_rows;  // that may be written
    const std::uint32_t* rows;
    std::uint32_t* counts;
    std::uint32_t* words[max_words];  // of each row and channel
    std::int64_t* numbers[max_sums];  // ... sums of a second look
    std::int64_t* voxel;
    const std::int64_t* found;
    void* out;
    DType out_dtype;
    std::int32_t* out_counts;
    std::int64_t* first_points;
    std::int64_t max_points;
    std::uint32_t* points;
    const std::uint32_t* sorted_points;
    std::uint32_t* sorted_rows;
    const std::uint32_t* starts;
};

template <class In>
__device__ __forceinline__ float feature(const AddArguments& args, std::int64_t i, std::int64_t c) {
    return widen(*reinterpret_cast<const In*>(args.features.data + i * args.features.strides[3] +
                                              c * args.features.channel_stride));
}

/// One channel of one row, of all its points.
template <Sums sums>
struct Found {
    using R = Rounds<sums>;
    std::uint32_t words[R::num_words];
    std::int64_t numbers[R::num_sums > 0 ? R::num_sums : 1] = {};

    __device__ __forceinline__ Found(const AddArguments& args, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < R::num_words; ++k) words[k] = args.words[k][at];
#pragma unroll
        for (int k = 0; k < R::num_sums; ++k) numbers[k] = args.numbers[k][at];
    }
};

template <class In>
__device__ __forceinline__ void add_plain(const AddArguments& args, std::int64_t i, std::int64_t first) {
    const std::int64_t channels = args.features.num_channels;
    auto* sums = reinterpret_cast<float*>(args.words[0]);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (channels % 4 == 0) {
        for (std::int64_t c = 0; c < channels; c += 4) {
            const float4 four = make_float4(feature<In>(args, i, c), feature<In>(args, i, c + 1),
                                            feature<In>(args, i, c + 2), feature<In>(args, i, c + 3));
            atomicAdd(reinterpret_cast<float4*>(sums + first + c), four);
        }
        return;
    }
#endif
    for (std::int64_t c = 0; c < channels; ++c) atomicAdd(sums + first + c, feature<In>(args, i, c));
}

template <Sums sums>
__device__ __forceinline__ void look_at(const AddArguments& args, std::int64_t at, float x) {
    if constexpr (sums != Sums::plain) {
        using R = Rounds<sums>;
        R::look(x, args.reduction == Reduction::max, [&](int k, std::uint32_t word) {
            if (!R::joins_bits(k)) {
                atomicMax(args.words[k] + at, word);
            } else if (word != 0) {
                atomicOr(args.words[k] + at, word);
            }
        });
    }
}

template <Sums sums>
__device__ __forceinline__ void add_number(const AddArguments& args, std::int64_t at, float x, std::uint32_t n) {
    if constexpr (Rounds<sums>::num_sums > 0) {
        const Found<sums> found(args, at);
        Rounds<sums>::add(x, Rounds<sums>::unit(found.words, n), [&](int k, std::int64_t number) {
            atomicAdd(reinterpret_cast<unsigned long long*>(args.numbers[k] + at),
                      static_cast<unsigned long long>(number));
        });
    }
}

template <class In>
__global__ __launch_bounds__(sparse_threads) void add_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const std::uint32_t row = args.rows[i];
    const bool fits = row < args.num_rows;
    if (args.voxel != nullptr) args.voxel[i] = fits ? static_cast<std::int64_t>(row) : -1;
    if (!fits) return;
    atomicAdd(args.counts + row, 1U);
    if (args.out == nullptr) return;
    const std::int64_t channels = args.features.num_channels;
    const std::int64_t first = static_cast<std::int64_t>(row) * channels;
    if (args.sums == Sums::plain) return add_plain<In>(args, i, first);
    for (std::int64_t c = 0; c < channels; ++c) {
        const float x = feature<In>(args, i, c);
        with_sums(args.sums, [&](auto tag) { look_at<decltype(tag)::sums>(args, first + c, x); });
    }
}

/// The second look, where there is one.
template <class In>
__global__ __launch_bounds__(sparse_threads) void add_again(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const std::uint32_t row = args.rows[i];
    if (row >= args.num_rows) return;
    const std::int64_t channels = args.features.num_channels;
    const std::uint32_t n = args.counts[row];
    for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t at = static_cast<std::int64_t>(row) * channels + c;
        const float x = feature<In>(args, i, c);
        with_sums(args.sums, [&](auto tag) { add_number<decltype(tag)::sums>(args, at, x, n); });
    }
}

__device__ __forceinline__ float row_result(const AddArguments& args, std::int64_t at, std::uint32_t n) {
    return with_sums(args.sums, [&](auto tag) -> float {
        using R = Rounds<decltype(tag)::sums>;
        if constexpr (decltype(tag)::sums == Sums::plain) {
            const float sum = reinterpret_cast<const float*>(args.words[0])[at];
            return args.reduction == Reduction::mean ? sum / static_cast<float>(n) : sum;
        } else {
            const Found<decltype(tag)::sums> found(args, at);
            return R::result(found.words, found.numbers, n, args.reduction);
        }
    });
}

/// A thread for each row and channel, or for each row where there are no features.
static __global__ __launch_bounds__(sparse_threads) void write_rows(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t channels = args.out == nullptr ? 1 : args.features.num_channels;
    const std::int64_t at = this_thread();
    const std::int64_t row =
        at <= UINT32_MAX && channels <= UINT32_MAX
            ? static_cast<std::int64_t>(static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(channels))
            : at / channels;
    if (row >= args.num_rows || row >= args.found[0]) return;
    const std::uint32_t n = args.counts[row];
    if (args.out_counts != nullptr && at == row * channels) args.out_counts[row] = static_cast<std::int32_t>(n);
    if (args.out == nullptr) return;
    const float x = row_result(args, at, n);
    switch (args.out_dtype) {
        case DType::f16: static_cast<Half*>(args.out)[at] = narrow<Half>(x); break;
        case DType::bf16: static_cast<BFloat16*>(args.out)[at] = narrow<BFloat16>(x); break;
        default: static_cast<float*>(args.out)[at] = x; break;
    }
}

// ---- the first points of each row -----------------------------------------------------------------------------------

static __global__ __launch_bounds__(sparse_threads) void number_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i < args.num_points) args.points[i] = static_cast<std::uint32_t>(i);
}

static __global__ __launch_bounds__(sparse_threads) void clear_first_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    const std::int64_t row = at / args.max_points;
    if (row < args.num_rows && row < args.found[0]) args.first_points[at] = -1;
}

static __global__ __launch_bounds__(sparse_threads) void take_first_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    if (at >= args.num_points) return;
    const std::uint32_t row = args.sorted_rows[at];
    if (row >= args.num_rows) return;
    const std::int64_t k = at - args.starts[row];
    if (k < args.max_points) args.first_points[row * args.max_points + k] = args.sorted_points[at];
}

}  // namespace robocache::voxelize_detail
