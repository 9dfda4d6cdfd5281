// The CPU kernels of align, included by one source file per instruction set.
//
// Every function, here and in the two files included below, lives in an unnamed namespace and is free of library
// templates: code compiled for a newer instruction set must never be merged by the linker with the baseline's.
#pragma once

#include "ops/align/cpu/search_impl.hpp"
#include "ops/align/cpu/write_impl.hpp"

namespace robocache::align_detail {
namespace {

/// Asks for `bytes` from `row` on, into the cache of `level`. The hardware finds the rest of a longer row by itself.
template <int level>
ROBOCACHE_HD void fetch(const char* row, std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t most = 16 * line;
    const std::int64_t end = bytes < most ? bytes : most;
    for (std::int64_t at = 0; at < end; at += line) __builtin_prefetch(row + at, 0, level == 1 ? 3 : 2);
}

/// Notes where target k lies, `left` being the last row at or before it, and what to write for it.
template <class Time>
ROBOCACHE_HD void place_one(const EpisodeTimes<Time>& times, Time t, std::int64_t left, Method method,
                            const Rules& rules, Gap<Time> tolerance, Neighbors& near, Sample& sample) {
    const Neighbors found = neighbors_of(times, t, left, tolerance);
    const Sample result = sample_at(times, t, found, method, rules);
    // Field by field: copying a struct whole reads it wider than it was just written, which stalls.
    near.left = found.left;
    near.right = found.right;
    near.exact = found.exact;
    sample.rows[0] = result.rows[0];
    sample.rows[1] = result.rows[1];
    sample.weight = result.weight;
    sample.kind = result.kind;
    sample.valid = result.valid;
}

/// Where the search of the first target begins.
template <class Time>
ROBOCACHE_HD std::int64_t first_left(const EpisodeTimes<Time>& times, Time t, std::int64_t hint) {
    return hint == no_hint ? first_after(times, 0, times.count, t) - 1 : hint;
}

/// Each search begins where the one before ended. The rows found are on their way from memory while the search goes on,
/// into the second level of the caches: the rows of a tile would fill the first.
/// `times` and `method` come as arguments of their own so that the usual values of both are constants in here.
template <class Time>
ROBOCACHE_HD void place_each(const PlaceJob<Time>& job, const EpisodeTimes<Time> times, const Method method,
                             Neighbors* __restrict near, Sample* __restrict samples) {
    const Rules rules = job.rules;
    const Gap<Time> tolerance = job.tolerance;
    std::int64_t left = first_left(times, job.t[0], job.hint);
    for (std::int64_t k = 0; k < job.count; ++k) {
        left = search_from(times, job.t[k], left);
        fetch<2>(job.values + (left < 0 ? 0 : left) * job.row_stride, job.row_bytes);
        place_one(times, job.t[k], left, method, rules, tolerance, near[k], samples[k]);
    }
}

/// Both steps at once for float32 rows that are written with non-temporal stores: target k is searched, and its
/// rows asked for, while an earlier one is written, so that the memory never waits for the search.
template <class Time>
void place_and_write(const PlaceJob<Time>& job, const RowJob& rows, Neighbors* near, Sample* samples) {
#ifdef __AVX2__
    constexpr std::int64_t ahead = 8;
    const Rules rules = job.rules;
    const Gap<Time> tolerance = job.tolerance;
    const EpisodeTimes<Time> times = job.times;
    std::int64_t left = first_left(times, job.t[0], job.hint);
    for (std::int64_t k = 0; k < job.count + ahead; ++k) {
        if (k < job.count) {
            left = search_from(times, job.t[k], left);
            fetch<1>(job.values + (left < 0 ? 0 : left) * job.row_stride, job.row_bytes);
            place_one(times, job.t[k], left, Method::linear, rules, tolerance, near[k], samples[k]);
        }
        if (k < ahead) continue;
        const Sample& sample = samples[k - ahead];
        char* out = rows.out + (k - ahead) * rows.out_target_stride;
        if (sample.kind == Kind::blend) {
            lerp_non_temporal(reinterpret_cast<const float*>(rows.values + sample.rows[0] * rows.value_row_stride),
                              reinterpret_cast<const float*>(rows.values + sample.rows[1] * rows.value_row_stride),
                              sample.weight, rows.width, reinterpret_cast<float*>(out));
        } else {
            write_sample<float>(rows, k - ahead, out);
        }
    }
    _mm_sfence();
#else
    place_each(job, job.times, Method::linear, near, samples);
    write_typed<float>(rows);
#endif
}

template <class Time>
void place_all(const PlaceJob<Time>& job, Neighbors* near, Sample* samples) {
    const bool takes_one_row =
        job.method == Method::previous || job.method == Method::next || job.method == Method::nearest;
    if (job.times.stride != 1 || takes_one_row) return place_each(job, job.times, job.method, near, samples);
    place_each(job, {job.times.data, 1, job.times.count}, Method::linear, near, samples);
}

/// Copies with non-temporal stores: a large output does not push the input out of them, and is not read before it is
/// written. stream_fence() comes after the last of them.
void stream_out(const char* __restrict from, std::int64_t count, char* __restrict to) {
    std::int64_t done = 0;
#ifdef __AVX2__
    constexpr std::int64_t width = 32;
    const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % width);
    done = misaligned == 0 ? 0 : (width - misaligned < count ? width - misaligned : count);
    copy(from, 1, done, to, 1);
    for (; done + width <= count; done += width) {
        const __m256i block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done));
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + done), block);
    }
#endif
    copy(from + done, 1, count - done, to + done, 1);
}

constexpr CpuKernels kernels{&write_by_dtype,          &stream_out,
                             &place_all<float>,        &place_all<double>,
                             &place_all<std::int64_t>, &place_and_write<float>,
                             &place_and_write<double>, &place_and_write<std::int64_t>};

}  // namespace
}  // namespace robocache::align_detail
