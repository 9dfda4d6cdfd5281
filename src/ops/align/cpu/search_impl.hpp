// Searching the targets of a tile: part of kernels_impl.hpp, under the rules written there.
#pragma once

#include "ops/align/contract/kernel.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace robocache::align_detail {
namespace {

/// The number of leading times that are <= t, of eight sorted ones.
ROBOCACHE_HD int count_until(const float* times, float t) {
#ifdef __AVX2__
    const __m256 later = _mm256_cmp_ps(_mm256_loadu_ps(times), _mm256_set1_ps(t), _CMP_NLE_UQ);
    return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_ps(later)) | 0x100U);
#else
    int count = 0;
    while (count < 8 && times[count] <= t) ++count;
    return count;
#endif
}

ROBOCACHE_HD int count_until(const double* times, double t) {
#ifdef __AVX2__
    const __m256d target = _mm256_set1_pd(t);
    const int low = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(times), target, _CMP_NLE_UQ));
    const int high = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(times + 4), target, _CMP_NLE_UQ));
    return __builtin_ctz(static_cast<unsigned>(low | high << 4) | 0x100U);
#else
    int count = 0;
    while (count < 8 && times[count] <= t) ++count;
    return count;
#endif
}

ROBOCACHE_HD int count_until(const std::int64_t* times, std::int64_t t) {
#ifdef __AVX2__
    const __m256i target = _mm256_set1_epi64x(t);
    const auto* from = reinterpret_cast<const __m256i*>(times);
    const __m256i low = _mm256_cmpgt_epi64(_mm256_loadu_si256(from), target);
    const __m256i high = _mm256_cmpgt_epi64(_mm256_loadu_si256(from + 1), target);
    const int mask = _mm256_movemask_pd(_mm256_castsi256_pd(low)) | _mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4;
    return __builtin_ctz(static_cast<unsigned>(mask) | 0x100U);
#else
    int count = 0;
    while (count < 8 && times[count] <= t) ++count;
    return count;
#endif
}

/// last_at_or_before. Targets that follow each other within a few rows (the usual case) cost one wide comparison
/// instead of a chain of unpredictable branches.
template <class Time>
ROBOCACHE_HD std::int64_t search_from(const EpisodeTimes<Time>& times, Time t, std::int64_t hint) {
    const bool ahead = hint < 0 || times[hint] <= t;
    if (times.stride == 1 && ahead && hint + 9 <= times.count) {
        const int steps = count_until(times.data + hint + 1, t);
        if (steps < 8) return hint + steps;
        hint += 8;
    }
    return last_at_or_before(times, t, hint);
}

}  // namespace
}  // namespace robocache::align_detail
