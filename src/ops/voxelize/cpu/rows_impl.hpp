// Features into the accumulators of a bucket, and from there to the output.
//
// Included by one source file per instruction set: everything is in an unnamed namespace, see kernels_impl.hpp.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "ops/voxelize/cpu/kernels.hpp"

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
        const std::int64_t ahead = k + points_ahead;
        if (features.pixels == nullptr && ahead < job.count + job.num_next) {
            const Entry<Word>& later = ahead < job.count ? entries[ahead] : job.next[ahead - job.count];
            const char* next = features.data + static_cast<std::int64_t>(later.index) * features.row_stride;
            __builtin_prefetch(next);
            if (row_bytes > 48) __builtin_prefetch(next + 63);
        }
        const char* row = features.row(static_cast<std::int64_t>(entries[k].index));
        const std::int64_t cell = static_cast<std::int64_t>(entries[k].local);
        const std::int64_t at = cell * channels;
        if (stride == std::int64_t{sizeof(T)}) {
            const T* values = reinterpret_cast<const T*>(row);
            ROBOCACHE_IVDEP
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
    switch (packed ? job.features.channels : 0) {
        case 3: return each_value_of<float, 3>(job, put);
        case 4: return each_value_of<float, 4>(job, put);
        case 8: return each_value_of<float, 8>(job, put);
        case 16: return each_value_of<float, 16>(job, put);
        default: return each_value_of<float, 0>(job, put);
    }
}

template <class Word>
void add_plain(const RowJob<Word>& job, Reduction, const Planes& planes) {
    float* sums = reinterpret_cast<float*>(planes.words[0]);
    each_value(job, [=](std::int64_t, std::int64_t at, float x) { sums[at] += x; });
}

template <Sums sums, bool want_max, class Word>
void look_for(const RowJob<Word>& job, Planes planes) {
    using R = Rounds<sums>;
    each_value(job, [=](std::int64_t, std::int64_t at, float x) {
        R::look(x, want_max, [=](int i, std::uint32_t word) {
            std::uint32_t& so_far = planes.words[i][at];
            so_far = R::joins_bits(i) ? so_far | word : (so_far < word ? word : so_far);
        });
    });
}

template <Sums sums, class Word>
void look(const RowJob<Word>& job, Reduction reduction, const Planes& planes) {
    if (reduction == Reduction::max) return look_for<sums, true>(job, planes);
    look_for<sums, false>(job, planes);
}

template <Sums sums, class Word>
void add_round(const RowJob<Word>& job, const Word* counts, const Planes& given) {
    using R = Rounds<sums>;
    const Planes planes = given;
    each_value(job, [=](std::int64_t cell, std::int64_t at, float x) {
        std::uint32_t words[R::num_words];
        for (int i = 0; i < R::num_words; ++i) words[i] = planes.words[i][at];
        const auto unit = R::unit(words, static_cast<std::int64_t>(counts[cell]));
        R::add(x, unit, [=](int i, std::int64_t number) { planes.sums[i][at] += number; });
    });
}

// Sums::fixed on the CPU: with one word instead of two. Specials take the place of sums in channels that are not
// finite.

template <class Word>
void keep_magnitudes(const RowJob<Word>& job, Reduction, const Planes& planes) {
    std::uint32_t* magnitudes = planes.words[0];
    each_value(job, [=](std::int64_t, std::int64_t at, float x) {
        const std::uint32_t magnitude = magnitude_of(x);
        magnitudes[at] = magnitudes[at] < magnitude ? magnitude : magnitudes[at];
    });
}

template <class Word>
void add_fixed(const RowJob<Word>& job, const Word* counts, const Planes& planes) {
    const std::uint32_t* magnitudes = planes.words[0];
    std::int64_t* sums = planes.sums[0];
    each_value(job, [=](std::int64_t cell, std::int64_t at, float x) {
        const std::uint32_t magnitude = magnitudes[at];
        if (magnitude >= not_finite) {
            sums[at] |= special_of(x);
        } else {
            sums[at] += to_fixed(x, power_of_two(fixed_shift(magnitude, static_cast<std::int64_t>(counts[cell]))));
        }
    });
}

// ---- to the output --------------------------------------------------------------------------------------------------

constexpr std::int64_t block_values = 2048;  // made in the first-level cache before they go to the output

/// Copies; with non-temporal stores if that is requested and possible.
template <class Out>
void put_block(const Out* __restrict from, std::int64_t count, Out* __restrict to, [[maybe_unused]] bool non_temporal) {
    std::int64_t done = 0;
#ifdef __AVX2__
    constexpr std::int64_t width = 32 / std::int64_t{sizeof(Out)};
    if (non_temporal) {
        const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) / sizeof(Out));
        for (; done < count && (at + done) % width != 0; ++done) to[done] = from[done];
        for (; done + width <= count; done += width) {
            const __m256i vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done));
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + done), vector);
        }
    }
#endif
    for (; done < count; ++done) to[done] = from[done];
}

/// out[i] = value(i) for every channel of every cell; prepare(first value, count) is called before a block of them.
template <class Out, class Word, class Prepare, class Value>
ROBOCACHE_HD void write_values(const FinishJob<Word>& job, const Prepare& prepare, const Value& value) {
    Out* out = static_cast<Out*>(job.out);
    alignas(64) Out block[block_values];
    const std::int64_t total = job.num_cells * job.channels;
    for (std::int64_t begin = 0; begin < total; begin += block_values) {
        const std::int64_t count = total - begin < block_values ? total - begin : block_values;
        prepare(begin, count);
        ROBOCACHE_IVDEP
        for (std::int64_t k = 0; k < count; ++k) block[k] = narrow<Out>(value(begin + k, k));
        put_block(block, count, out + begin, job.non_temporal);
    }
#ifdef __AVX2__
    if (job.non_temporal) _mm_sfence();
#endif
}

template <class Word, class Prepare, class Value>
ROBOCACHE_HD void write_by_dtype(const FinishJob<Word>& job, const Prepare& prepare, const Value& value) {
    switch (job.out_dtype) {
        case DType::f16: return write_values<Half>(job, prepare, value);
        case DType::bf16: return write_values<BFloat16>(job, prepare, value);
        default: return write_values<float>(job, prepare, value);
    }
}

/// Calls put(cell, first channel, last channel, where in the block the first goes) for the cells of a block of values.
/// `width` 0: known at run time.
template <int width, class Word, class Put>
ROBOCACHE_HD void each_cell(const FinishJob<Word>& job, std::int64_t begin, std::int64_t count, const Put& put) {
    const std::int64_t channels = width > 0 ? width : job.channels;
    std::int64_t cell = begin / channels;
    std::int64_t k = cell * channels - begin;  // of the cell's first channel; the first cell may begin before the block
    for (; k < count; k += channels, ++cell) {
        if (k >= 0 && k + channels <= count) {
            put(cell, 0, channels, k);
        } else {
            const std::int64_t first = k < 0 ? -k : 0;
            put(cell, first, k + channels <= count ? channels : count - k, k + first);
        }
    }
}

/// The number of points of the cell that each value of a block belongs to, at least 1: where there are none, sums are
/// 0.
template <class Word>
ROBOCACHE_HD void repeat_counts(const FinishJob<Word>& job, std::int64_t begin, std::int64_t count, float* counts) {
    const Word* points = job.counts;
    const auto put = [=](std::int64_t cell, std::int64_t first, std::int64_t last, std::int64_t k) {
        const auto n = static_cast<float>(points[cell] > 0 ? points[cell] : Word{1});
        for (std::int64_t c = first; c < last; ++c, ++k) counts[k] = n;
    };
    switch (job.channels) {
        case 1: return each_cell<1>(job, begin, count, put);
        case 3: return each_cell<3>(job, begin, count, put);
        case 4: return each_cell<4>(job, begin, count, put);
        case 8: return each_cell<8>(job, begin, count, put);
        case 16: return each_cell<16>(job, begin, count, put);
        default: return each_cell<0>(job, begin, count, put);
    }
}

template <class Word>
void finish_sums(const FinishJob<Word>& job, const Planes& planes) {
    const float* sums = reinterpret_cast<const float*>(planes.words[0]);
    if (job.reduction == Reduction::sum) {
        return write_by_dtype(
            job, [](std::int64_t, std::int64_t) {}, [=](std::int64_t i, std::int64_t) { return sums[i]; });
    }
    alignas(64) float counts[block_values];
    write_by_dtype(
        job, [&](std::int64_t begin, std::int64_t count) { repeat_counts(job, begin, count, counts); },
        [&](std::int64_t i, std::int64_t k) { return sums[i] / counts[k]; });
}

template <class Word>
void finish_extremes(const FinishJob<Word>& job, const Planes& planes) {
    const bool want_max = job.reduction == Reduction::max;
    const float fill = job.fill;
    const std::uint32_t* keys = planes.words[0];
    write_by_dtype(
        job, [](std::int64_t, std::int64_t) {},
        [=](std::int64_t i, std::int64_t) { return keys[i] == 0 ? fill : extreme_value(keys[i], want_max); });
}

/// value(at, n): of a channel of a cell with n > 0 points.
template <class Word, class Value>
ROBOCACHE_HD void finish_cells(const FinishJob<Word>& job, const Value& value) {
    alignas(64) float values[block_values];
    const auto put = [&](std::int64_t cell, std::int64_t first, std::int64_t last, std::int64_t k) {
        const auto n = static_cast<std::int64_t>(job.counts[cell]);
        const std::int64_t at = cell * job.channels;
        for (std::int64_t c = first; c < last; ++c, ++k) values[k] = n == 0 ? job.fill : value(at + c, n);
    };
    write_by_dtype(
        job, [&](std::int64_t begin, std::int64_t count) { each_cell<0>(job, begin, count, put); },
        [&](std::int64_t, std::int64_t k) { return values[k]; });
}

template <class Word>
void finish_fixed(const FinishJob<Word>& job, const Planes& planes) {
    finish_cells(job, [&](std::int64_t at, std::int64_t n) {
        const std::uint32_t magnitude = planes.words[0][at];
        const std::uint32_t specials =
            magnitude >= not_finite ? static_cast<std::uint32_t>(planes.sums[0][at]) : std::uint32_t{0};
        const std::uint32_t words[] = {magnitude, specials};
        return Rounds<Sums::fixed>::result(words, &planes.sums[0][at], n, job.reduction);
    });
}

template <Sums sums, class Word>
void finish(const FinishJob<Word>& job, const Planes& planes) {
    using R = Rounds<sums>;
    finish_cells(job, [&](std::int64_t at, std::int64_t n) {
        std::uint32_t words[R::num_words];
        std::int64_t numbers[R::num_sums];
        for (int i = 0; i < R::num_words; ++i) words[i] = planes.words[i][at];
        for (int i = 0; i < R::num_sums; ++i) numbers[i] = planes.sums[i][at];
        return R::result(words, numbers, n, job.reduction);
    });
}

/// Two looks, unless there is a better way below.
template <Sums sums, class Word>
constexpr CpuRounds<Word> rounds_of{Rounds<sums>::num_words, Rounds<sums>::num_sums, &look<sums, Word>,
                                    &add_round<sums, Word>, &finish<sums, Word>};
template <class Word>
constexpr CpuRounds<Word> rounds_of<Sums::plain, Word>{1, 0, &add_plain<Word>, nullptr, &finish_sums<Word>};
template <class Word>
constexpr CpuRounds<Word> rounds_of<Sums::extreme, Word>{1, 0, &look<Sums::extreme, Word>, nullptr,
                                                         &finish_extremes<Word>};
template <class Word>
constexpr CpuRounds<Word> rounds_of<Sums::fixed, Word>{1, 1, &keep_magnitudes<Word>, &add_fixed<Word>,
                                                       &finish_fixed<Word>};

}  // namespace
}  // namespace robocache::voxelize_detail
