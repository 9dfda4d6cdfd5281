// Features into the accumulators of a bucket, and from there to the output.
//
// Included by one source file per instruction set: everything is in an unnamed namespace, see cpu_kernels_impl.hpp.
#pragma once

#include "ops/voxelize/cpu_kernels.hpp"

namespace robocache::voxelize_detail {
namespace {

constexpr std::int64_t points_ahead = 16;  // whose features are on their way from memory

/// Calls put(cell's first accumulator, channel, value) for every channel of every point. `width` 0: known at run time.
template <class T, int width, class Word, class Put>
ROBOCACHE_HD void each_value_of(const RowJob<Word>& job, const Put& put) {
    const FeatureRows features = job.features;
    const std::int64_t channels = width > 0 ? width : features.channels;
    const std::int64_t stride = width > 0 ? std::int64_t{sizeof(T)} : features.channel_stride;
    const std::int64_t row_bytes = channels * stride;
    const Entry<Word>* entries = job.entries;
    for (std::int64_t k = 0; k < job.count; ++k) {
        if (features.pixels == nullptr && k + points_ahead < job.count) {
            const char* next =
                features.data + static_cast<std::int64_t>(entries[k + points_ahead].index) * features.row_stride;
            __builtin_prefetch(next);
            if (row_bytes > 64) __builtin_prefetch(next + 64);
        }
        const char* row = features.row(static_cast<std::int64_t>(entries[k].index));
        const std::int64_t cell = static_cast<std::int64_t>(entries[k].local);
        const std::int64_t at = cell * channels;
        if (stride == std::int64_t{sizeof(T)}) {
            const T* values = reinterpret_cast<const T*>(row);
#pragma GCC ivdep
            for (std::int64_t c = 0; c < channels; ++c) put(cell, at + c, widen(values[c]));
        } else {
            for (std::int64_t c = 0; c < channels; ++c) {
                put(cell, at + c, widen(*reinterpret_cast<const T*>(row + c * stride)));
            }
        }
    }
}

template <class Word, class Put>
ROBOCACHE_HD void each_value(const RowJob<Word>& job, const Put& put) {
    switch (job.features.dtype) {
        case DType::f16: return each_value_of<Half, 0>(job, put);
        case DType::bf16: return each_value_of<BFloat16, 0>(job, put);
        case DType::u8: return each_value_of<std::uint8_t, 0>(job, put);
        default: break;
    }
    const bool packed = job.features.channel_stride == std::int64_t{sizeof(float)};
    if (packed && job.features.channels == 3) return each_value_of<float, 3>(job, put);
    if (packed && job.features.channels == 4) return each_value_of<float, 4>(job, put);
    each_value_of<float, 0>(job, put);
}

template <class Word>
void add(const RowJob<Word>& job, float* __restrict sums) {
    each_value(job, [=](std::int64_t, std::int64_t at, float x) { sums[at] += x; });
}

template <class Word>
void keep_extremes(const RowJob<Word>& job, bool want_max, std::uint32_t* __restrict keys) {
    const auto keep = [=](std::int64_t at, std::uint32_t key) { keys[at] = keys[at] < key ? key : keys[at]; };
    if (want_max)
        return each_value(job, [=](std::int64_t, std::int64_t at, float x) { keep(at, extreme_key(x, true)); });
    each_value(job, [=](std::int64_t, std::int64_t at, float x) { keep(at, extreme_key(x, false)); });
}

template <class Word>
void keep_magnitudes(const RowJob<Word>& job, std::uint32_t* __restrict magnitudes) {
    each_value(job, [=](std::int64_t, std::int64_t at, float x) {
        const std::uint32_t magnitude = magnitude_of(x);
        magnitudes[at] = magnitudes[at] < magnitude ? magnitude : magnitudes[at];
    });
}

template <class Word>
void add_fixed(const RowJob<Word>& job, const Word* counts, const std::uint32_t* __restrict magnitudes,
               std::int64_t* __restrict sums) {
    each_value(job, [=](std::int64_t cell, std::int64_t at, float x) {
        const std::uint32_t magnitude = magnitudes[at];
        if (magnitude >= not_finite) {
            sums[at] |= special_of(x);
        } else if (magnitude > 0) {
            const int shift = fixed_shift(magnitude, static_cast<std::int64_t>(counts[cell]));
            sums[at] += to_fixed(x, power_of_two(shift));
        }
    });
}

// ---- to the output --------------------------------------------------------------------------------------------------

/// out[i] = value(cell, i) for every channel of every cell that has points, and `empty` for the others.
template <class Out, class Word, class Value>
ROBOCACHE_HD void write_cells(const FinishJob<Word>& job, float empty, const Value& value) {
    Out* __restrict out = static_cast<Out*>(job.out);
    const Out nothing_there = narrow<Out>(empty);
    for (std::int64_t cell = 0; cell < job.num_cells; ++cell) {
        const std::int64_t begin = cell * job.channels;
        const std::int64_t end = begin + job.channels;
        if (job.counts[cell] == 0) {
            for (std::int64_t i = begin; i < end; ++i) out[i] = nothing_there;
        } else {
            for (std::int64_t i = begin; i < end; ++i) out[i] = narrow<Out>(value(cell, i));
        }
    }
}

template <class Word, class Value>
ROBOCACHE_HD void write_by_dtype(const FinishJob<Word>& job, float empty, const Value& value) {
    switch (job.out_dtype) {
        case DType::f16: return write_cells<Half>(job, empty, value);
        case DType::bf16: return write_cells<BFloat16>(job, empty, value);
        default: return write_cells<float>(job, empty, value);
    }
}

template <class Word>
void finish_sums(const FinishJob<Word>& job, const float* __restrict sums) {
    if (job.reduction == Reduction::sum) {
        return write_by_dtype(job, 0.0F, [=](std::int64_t, std::int64_t i) { return sums[i]; });
    }
    const Word* __restrict counts = job.counts;
    write_by_dtype(job, 0.0F,
                   [=](std::int64_t cell, std::int64_t i) { return sums[i] / static_cast<float>(counts[cell]); });
}

template <class Word>
void finish_extremes(const FinishJob<Word>& job, const std::uint32_t* __restrict keys) {
    const bool want_max = job.reduction == Reduction::max;
    write_by_dtype(job, job.fill, [=](std::int64_t, std::int64_t i) { return extreme_value(keys[i], want_max); });
}

template <class Word>
void finish_fixed(const FinishJob<Word>& job, const std::uint32_t* __restrict magnitudes,
                  const std::int64_t* __restrict sums) {
    const bool mean = job.reduction == Reduction::mean;
    const Word* counts = job.counts;
    write_by_dtype(job, 0.0F, [=](std::int64_t cell, std::int64_t i) {
        if (magnitudes[i] == 0) return 0.0F;
        if (magnitudes[i] >= not_finite) return special_sum(static_cast<std::uint32_t>(sums[i]));
        const auto n = static_cast<std::int64_t>(counts[cell]);
        const int shift = fixed_shift(magnitudes[i], n);
        return mean ? fixed_mean(sums[i], shift, n) : fixed_sum(sums[i], shift);
    });
}

}  // namespace
}  // namespace robocache::voxelize_detail
