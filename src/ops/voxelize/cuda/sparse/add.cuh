// Points add their features to the rows of their cells.
#pragma once

#include "ops/voxelize/cuda/sparse/job.cuh"
#include "ops/voxelize/cuda/values.cuh"

namespace robocache::voxelize_detail {

/// Sums of floats: all channels of point i into the row that begins at `to`.
template <class In>
__device__ __forceinline__ void add_plain(const FeaturesPlan& features, std::int64_t i, float* to) {
    const char* from = features.data + i * features.strides[3];
    const auto feature = [&](std::int64_t c) {
        return widen(*reinterpret_cast<const In*>(from + c * features.channel_stride));
    };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (features.num_channels % 4 == 0) {
        for (std::int64_t c = 0; c < features.num_channels; c += 4) {
            const float4 four = make_float4(feature(c), feature(c + 1), feature(c + 2), feature(c + 3));
            atomicAdd(reinterpret_cast<float4*>(to + c), four);
        }
        return;
    }
#endif
    for (std::int64_t c = 0; c < features.num_channels; ++c) atomicAdd(to + c, feature(c));
}

struct AddPoints : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        const std::uint32_t row = space.rows[i];
        const bool fits = row < num_rows;
        if (plan.voxel != nullptr) plan.voxel[i] = fits ? static_cast<std::int64_t>(row) : -1;
        if (!fits) return;
        atomicAdd(space.counts + row, 1U);
        if (plan.out == nullptr) return;
        const FeaturesPlan& features = plan.features;
        const std::int64_t first = static_cast<std::int64_t>(row) * features.num_channels;
        if (sums == Sums::plain) {
            auto* to = reinterpret_cast<float*>(space.words[0]) + first;
            switch (features.dtype) {
                case DType::f16: return add_plain<Half>(features, i, to);
                case DType::bf16: return add_plain<BFloat16>(features, i, to);
                case DType::u8: return add_plain<std::uint8_t>(features, i, to);
                default: return add_plain<float>(features, i, to);
            }
        }
        for (std::int64_t c = 0; c < features.num_channels; ++c) {
            const float x = feature_at(features, i, c);
            with_sums(sums, [&](auto tag) { look<decltype(tag)::sums>(first + c, x); });
        }
    }

    template <Sums kind>
    __device__ __forceinline__ void look(std::int64_t at, float x) const {
        if constexpr (kind != Sums::plain) {
            Rounds<kind>::look(x, plan.reduction == Reduction::max, [&](int k, std::uint32_t word) {
                if (!Rounds<kind>::joins_bits(k)) {
                    atomicMax(space.words[k] + at, word);
                } else if (word != 0) {
                    atomicOr(space.words[k] + at, word);
                }
            });
        }
    }
};

/// One channel of one row, of all its points.
template <Sums sums>
struct RowChannel {
    std::uint32_t words[Rounds<sums>::num_words];
    std::int64_t numbers[Rounds<sums>::num_sums > 0 ? Rounds<sums>::num_sums : 1] = {};

    __device__ __forceinline__ RowChannel(const SparseSpace& space, std::int64_t at) {
#pragma unroll
        for (int k = 0; k < Rounds<sums>::num_words; ++k) words[k] = space.words[k][at];
#pragma unroll
        for (int k = 0; k < Rounds<sums>::num_sums; ++k) numbers[k] = space.numbers[k][at];
    }
};

/// The second pass over the features, for reductions that have one.
struct AddAgain : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        const std::uint32_t row = space.rows[i];
        if (row >= num_rows) return;
        const std::int64_t channels = plan.features.num_channels;
        for (std::int64_t c = 0; c < channels; ++c) {
            const std::int64_t at = static_cast<std::int64_t>(row) * channels + c;
            const float x = feature_at(plan.features, i, c);
            with_sums(sums, [&](auto tag) { add<decltype(tag)::sums>(at, x, space.counts[row]); });
        }
    }

    template <Sums kind>
    __device__ __forceinline__ void add(std::int64_t at, float x, std::uint32_t n) const {
        if constexpr (Rounds<kind>::num_sums > 0) {
            const RowChannel<kind> channel(space, at);
            Rounds<kind>::add(x, Rounds<kind>::unit(channel.words, n), [&](int k, std::int64_t number) {
                atomicAdd(reinterpret_cast<unsigned long long*>(space.numbers[k] + at),
                          static_cast<unsigned long long>(number));
            });
        }
    }
};

/// For each row and channel, or for each row where there are no features.
struct WriteRows : SparseJob {
    __device__ void operator()(std::int64_t at) const {
        const std::int64_t channels = plan.out == nullptr ? 1 : plan.features.num_channels;
        const std::int64_t row =
            at <= UINT32_MAX && channels <= UINT32_MAX
                ? static_cast<std::int64_t>(static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(channels))
                : at / channels;
        if (row >= plan.found[0]) return;
        const std::uint32_t n = space.counts[row];
        if (plan.counts != nullptr && at == row * channels) plan.counts[row] = static_cast<std::int32_t>(n);
        if (plan.out == nullptr) return;
        const float x = with_sums(sums, [&](auto tag) { return result<decltype(tag)::sums>(at, n); });
        if (plan.out_dtype == DType::f32) {
            static_cast<float*>(plan.out)[at] = x;
        } else {
            static_cast<std::uint16_t*>(plan.out)[at] = to_16_bits(x, plan.out_dtype);
        }
    }

    template <Sums kind>
    __device__ __forceinline__ float result(std::int64_t at, std::uint32_t n) const {
        if constexpr (kind == Sums::plain) {
            const float sum = reinterpret_cast<const float*>(space.words[0])[at];
            return plan.reduction == Reduction::mean ? sum / static_cast<float>(n) : sum;
        } else {
            const RowChannel<kind> channel(space, at);
            return Rounds<kind>::result(channel.words, channel.numbers, n, plan.reduction);
        }
    }
};

}  // namespace robocache::voxelize_detail
