// The CPU kernels of align, included by one source file per instruction set.
//
// Every function lives in an unnamed namespace and is free of library templates: code compiled for a newer instruction
// set must never be merged by the linker with the baseline's. Numbers flow
//     row in memory -> load -> compute type (f32, or f64 for f64 values) -> blend -> store -> row in memory
// in pieces that stay in the first-level cache; `lerp_in_place` is the short cut for the case everybody has.
#pragma once

#include "ops/align/cpu_kernels.hpp"
#include "ops/align/values.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace robocache::align_detail {
namespace {

constexpr std::int64_t piece = 256;  // channels; a multiple of 4 for quaternions

// ---- load and store -------------------------------------------------------------------------------------------------

template <class T, class Compute>
void load(const T* __restrict from, std::int64_t stride, std::int64_t count, Compute* __restrict to) {
    if (stride != 1) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = widen(from[i * stride]);
        return;
    }
    std::int64_t i = 0;
#ifdef __F16C__
    if constexpr (__is_same(T, Half)) {
        for (; i + 8 <= count; i += 8) {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
        }
    }
#endif
    for (; i < count; ++i) to[i] = widen(from[i]);
}

/// load, for an output of `dtype`: integers that go to f64 are rounded to nearest here, since nothing rounds them
/// again.
template <class T, class Compute>
void load_for(DType dtype, const T* __restrict from, std::int64_t stride, std::int64_t count, Compute* __restrict to) {
    if constexpr (sizeof(T) == 8 && !is_float<T>) {
        if (dtype == DType::f64) {
            for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(from[i * stride]);
            return;
        }
    }
    load(from, stride, count, to);
}

template <class Out, class Compute>
void store(const Compute* __restrict from, std::int64_t count, Out* __restrict to, std::int64_t stride) {
    if (stride != 1) {
        for (std::int64_t i = 0; i < count; ++i) to[i * stride] = narrow<Out>(from[i]);
        return;
    }
    std::int64_t i = 0;
#ifdef __F16C__
    if constexpr (__is_same(Out, Half) && sizeof(Compute) == 4) {
        for (; i + 8 <= count; i += 8) {
            const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
        }
    }
#endif
    for (; i < count; ++i) to[i] = narrow<Out>(from[i]);
}

/// Stores to a floating output of any dtype.
template <class Compute>
void store_as(DType dtype, const Compute* from, std::int64_t count, char* to, std::int64_t first, std::int64_t stride) {
    const std::int64_t at = first * stride;
    switch (dtype) {
        case DType::f32: return store(from, count, reinterpret_cast<float*>(to) + at, stride);
        case DType::f64: return store(from, count, reinterpret_cast<double*>(to) + at, stride);
        case DType::f16: return store(from, count, reinterpret_cast<Half*>(to) + at, stride);
        case DType::bf16: return store(from, count, reinterpret_cast<BFloat16*>(to) + at, stride);
        default: return;  // the contract lets no other dtype through
    }
}

template <class T>
void copy(const T* __restrict from, std::int64_t from_stride, std::int64_t count, T* __restrict to,
          std::int64_t to_stride) {
    if (from_stride == 1 && to_stride == 1) {
        __builtin_memcpy(to, from, static_cast<unsigned long>(count) * sizeof(T));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
}

// ---- blends of a piece ----------------------------------------------------------------------------------------------

template <class Compute>
struct Piece {
    Compute rows[4][piece];
    Compute result[piece];
};

template <class Compute>
void blend_pieces(const RowJob& job, const Sample& sample, const OuterRows& outer, Piece<Compute>& p, std::int64_t n) {
    const auto w = static_cast<Compute>(sample.weight);
    if (sample.kind == Kind::cubic) {
        const auto w_before = static_cast<Compute>(outer.weight_before);
        const auto w_after = static_cast<Compute>(outer.weight_after);
        for (std::int64_t i = 0; i < n; ++i) {
            p.result[i] = blend_cubic(p.rows[0][i], p.rows[1][i], p.rows[2][i], p.rows[3][i], w, w_before, w_after);
        }
    } else if (job.method == Method::angle) {
        const auto period = static_cast<Compute>(job.period);
        for (std::int64_t i = 0; i < n; ++i) p.result[i] = blend_angle(p.rows[0][i], p.rows[1][i], w, period);
    } else {
        for (std::int64_t i = 0; i < n; ++i) p.result[i] = blend_linear(p.rows[0][i], p.rows[1][i], w);
    }
}

template <class T>
void write_slerp(const RowJob& job, const Sample& sample, const T* a, const T* b, char* out) {
    for (std::int64_t c = 0; c < job.width; c += 4) {
        double qa[4];
        double qb[4];
        double result[4];
        for (std::int64_t i = 0; i < 4; ++i) {
            qa[i] = static_cast<double>(widen(a[(c + i) * job.value_channel_stride]));
            qb[i] = static_cast<double>(widen(b[(c + i) * job.value_channel_stride]));
        }
        blend_slerp(qa, qb, sample.weight, result);
        store_as(job.out_dtype, result, 4, out, c, job.out_channel_stride);
    }
}

// ---- windows --------------------------------------------------------------------------------------------------------

template <class T>
void write_mean(const RowJob& job, const Sample& sample, std::int64_t c, std::int64_t n, char* out) {
    double sum[piece] = {};
    double count = 0;
    for (std::int64_t row = sample.rows[0]; row < sample.rows[1]; ++row) {
        if (job.is_replaced(job.times, row)) continue;
        const T* from = reinterpret_cast<const T*>(job.values + row * job.value_row_stride);
        count += 1;
        for (std::int64_t i = 0; i < n; ++i) {
            sum[i] += static_cast<double>(widen(from[(c + i) * job.value_channel_stride]));
        }
    }
    for (std::int64_t i = 0; i < n; ++i) sum[i] /= count;
    store_as(job.out_dtype, sum, n, out, c, job.out_channel_stride);
}

template <class T>
void write_extreme(const RowJob& job, const Sample& sample, std::int64_t c, std::int64_t n, char* out) {
    const bool want_max = job.method == Method::max;
    T best[piece];
    bool first = true;
    for (std::int64_t row = sample.rows[0]; row < sample.rows[1]; ++row) {
        if (job.is_replaced(job.times, row)) continue;
        const T* from = reinterpret_cast<const T*>(job.values + row * job.value_row_stride);
        for (std::int64_t i = 0; i < n; ++i) {
            const T x = from[(c + i) * job.value_channel_stride];
            if (first || is_beyond(x, best[i], want_max)) best[i] = x;
        }
        first = false;
    }
    if (job.out_dtype == job.values_dtype) {
        copy(best, 1, n, reinterpret_cast<T*>(out) + c * job.out_channel_stride, job.out_channel_stride);
    } else {
        typename ComputeOf<T>::type wide[piece];
        load_for(job.out_dtype, best, 1, n, wide);
        store_as(job.out_dtype, wide, n, out, c, job.out_channel_stride);
    }
}

// ---- one target -----------------------------------------------------------------------------------------------------

template <class T>
void write_row(const RowJob& job, const T* from, char* out) {
    if (job.out_dtype == job.values_dtype) {
        copy(from, job.value_channel_stride, job.width, reinterpret_cast<T*>(out), job.out_channel_stride);
        return;
    }
    typename ComputeOf<T>::type wide[piece];
    for (std::int64_t c = 0; c < job.width; c += piece) {
        const std::int64_t n = job.width - c < piece ? job.width - c : piece;
        load_for(job.out_dtype, from + c * job.value_channel_stride, job.value_channel_stride, n, wide);
        store_as(job.out_dtype, wide, n, out, c, job.out_channel_stride);
    }
}

template <class T>
void write_constant(const RowJob& job, double value, char* out) {
    double wide[piece];
    for (double& x : wide) x = value;
    for (std::int64_t c = 0; c < job.width; c += piece) {
        const std::int64_t n = job.width - c < piece ? job.width - c : piece;
        if (is_float<T> || job.out_dtype != job.values_dtype) {
            store_as(job.out_dtype, wide, n, out, c, job.out_channel_stride);
        } else {
            for (std::int64_t i = 0; i < n; ++i) reinterpret_cast<T*>(out)[(c + i) * job.out_channel_stride] = T{};
        }
    }
}

template <class T>
void write_blend(const RowJob& job, const Sample& sample, const OuterRows& outer, char* out) {
    using Compute = typename ComputeOf<T>::type;
    if constexpr (is_float<T>) {
        const int num_rows = sample.kind == Kind::cubic ? 4 : 2;
        const std::int64_t index[4] = {sample.rows[0], sample.rows[1], outer.before, outer.after};
        const T* rows[4];
        for (int k = 0; k < num_rows; ++k) {
            rows[k] = reinterpret_cast<const T*>(job.values + index[k] * job.value_row_stride);
        }
        if (job.method == Method::slerp_xyzw || job.method == Method::slerp_wxyz) {
            return write_slerp(job, sample, rows[0], rows[1], out);
        }
        Piece<Compute> p;
        for (std::int64_t c = 0; c < job.width; c += piece) {
            const std::int64_t n = job.width - c < piece ? job.width - c : piece;
            for (int k = 0; k < num_rows; ++k) {
                load(rows[k] + c * job.value_channel_stride, job.value_channel_stride, n, p.rows[k]);
            }
            blend_pieces(job, sample, outer, p, n);
            store_as(job.out_dtype, p.result, n, out, c, job.out_channel_stride);
        }
    }
}

#ifdef __AVX2__
/// to_bfloat16 of eight numbers; the result is the upper half of each.
ROBOCACHE_HD __m256i round_to_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, is_nan));
}

/// Sixteen bfloat16 at a time, those of even and of odd place each in its own vector: nothing is shuffled.
ROBOCACHE_HD std::int64_t lerp_sixteens(const BFloat16* a, const BFloat16* b, __m256 w, std::int64_t width,
                                        BFloat16* out) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    const auto blend = [w](__m256i left, __m256i right) {
        const __m256 from = _mm256_castsi256_ps(left);
        return round_to_bfloat16(_mm256_fmadd_ps(w, _mm256_sub_ps(_mm256_castsi256_ps(right), from), from));
    };
    std::int64_t i = 0;
    for (; i + 16 <= width; i += 16) {
        const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
        const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
        const __m256i even = blend(_mm256_slli_epi32(left, 16), _mm256_slli_epi32(right, 16));
        const __m256i odd = blend(_mm256_and_si256(left, upper), _mm256_and_si256(right, upper));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                            _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa));
    }
    return i;
}
#endif

/// linear, same dtype in and out, channels side by side: one pass, vectorised by the compiler.
template <class T>
void lerp_in_place(const T* __restrict a, const T* __restrict b, double weight, std::int64_t width, T* __restrict out) {
    using Compute = typename ComputeOf<T>::type;
    const auto w = static_cast<Compute>(weight);
    std::int64_t i = 0;
#ifdef __AVX2__
    if constexpr (__is_same(T, BFloat16)) i = lerp_sixteens(a, b, _mm256_set1_ps(w), width, out);
#endif
    for (; i < width; ++i) out[i] = narrow<T>(blend_linear(widen(a[i]), widen(b[i]), w));
}

#ifdef __AVX2__
/// The same past the caches: for rows of whole vectors of a large output, aligned to half a vector at least (NumPy's
/// memory is to no more).
ROBOCACHE_HD void lerp_past_caches(const float* a, const float* b, double weight, std::int64_t width, float* out) {
    const __m256 w = _mm256_set1_ps(static_cast<float>(weight));
    const bool whole = reinterpret_cast<std::uintptr_t>(out) % 32 == 0;
    for (std::int64_t i = 0; i < width; i += 8) {
        const __m256 left = _mm256_loadu_ps(a + i);
        const __m256 result = _mm256_fmadd_ps(w, _mm256_sub_ps(_mm256_loadu_ps(b + i), left), left);
        if (whole) {
            _mm256_stream_ps(out + i, result);
        } else {
            _mm_stream_ps(out + i, _mm256_castps256_ps128(result));
            _mm_stream_ps(out + i + 4, _mm256_extractf128_ps(result, 1));
        }
    }
}
#endif

template <class T>
void write_sample(const RowJob& job, std::int64_t k, char* out) {
    const Sample& sample = job.samples[k];
    switch (sample.kind) {
        case Kind::zero: return write_constant<T>(job, 0.0, out);
        case Kind::nan: return write_constant<T>(job, __builtin_nan(""), out);
        case Kind::row:
            return write_row(job, reinterpret_cast<const T*>(job.values + sample.rows[0] * job.value_row_stride), out);
        case Kind::blend:
        case Kind::cubic: return write_blend<T>(job, sample, job.outer[k], out);
        case Kind::window:
            for (std::int64_t c = 0; c < job.width; c += piece) {
                const std::int64_t n = job.width - c < piece ? job.width - c : piece;
                if constexpr (is_float<T>) {
                    if (job.method == Method::mean) {
                        write_mean<T>(job, sample, c, n, out);
                        continue;
                    }
                }
                write_extreme<T>(job, sample, c, n, out);
            }
    }
}

/// Asks for `bytes` from `row` on, into the cache of `level`. The hardware finds the rest of a longer row by itself.
template <int level>
ROBOCACHE_HD void fetch(const char* row, std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t most = 16 * line;
    const std::int64_t end = bytes < most ? bytes : most;
    for (std::int64_t at = 0; at < end; at += line) __builtin_prefetch(row + at, 0, level == 1 ? 3 : 2);
}

template <class T>
void write_typed(const RowJob& job) {
    const bool side_by_side = job.value_channel_stride == 1 && job.out_channel_stride == 1;
    const bool in_place = job.out_dtype == job.values_dtype && side_by_side && job.method == Method::linear;
    for (std::int64_t k = 0; k < job.count; ++k) {
        const Sample& sample = job.samples[k];
        char* out = job.out + k * job.out_target_stride;
        if constexpr (is_float<T> && !__is_same(T, Half)) {
            if (in_place && sample.kind == Kind::blend) {
                lerp_in_place(reinterpret_cast<const T*>(job.values + sample.rows[0] * job.value_row_stride),
                              reinterpret_cast<const T*>(job.values + sample.rows[1] * job.value_row_stride),
                              sample.weight, job.width, reinterpret_cast<T*>(out));
                continue;
            }
        }
        write_sample<T>(job, k, out);
    }
}

void write_by_dtype(const RowJob& job) {
    switch (job.values_dtype) {
        case DType::boolean:
        case DType::u8: return write_typed<std::uint8_t>(job);
        case DType::u16: return write_typed<std::uint16_t>(job);
        case DType::u32: return write_typed<std::uint32_t>(job);
        case DType::u64: return write_typed<std::uint64_t>(job);
        case DType::i8: return write_typed<std::int8_t>(job);
        case DType::i16: return write_typed<std::int16_t>(job);
        case DType::i32: return write_typed<std::int32_t>(job);
        case DType::i64: return write_typed<std::int64_t>(job);
        case DType::f16: return write_typed<Half>(job);
        case DType::bf16: return write_typed<BFloat16>(job);
        case DType::f32: return write_typed<float>(job);
        case DType::f64: return write_typed<double>(job);
    }
}

// ---- search ---------------------------------------------------------------------------------------------------------

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

/// Notes where target k lies, `left` being the last row at or before it, and what to write for it.
template <class Time>
ROBOCACHE_HD void place_one(const EpisodeTimes<Time>& times, Time t, std::int64_t left, Method method,
                            const Rules& rules, Neighbours& near, Sample& sample) {
    const Neighbours found = neighbours_of(times, t, left);
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

/// Each search begins where the one before ended. The rows found are on their way from memory while the search goes on,
/// into the second level of the caches: the rows of a tile would fill the first.
/// `times` and `method` come as arguments of their own so that the usual values of both are constants in here.
template <class Time>
ROBOCACHE_HD void place_each(const PlaceJob<Time>& job, const EpisodeTimes<Time> times, const Method method,
                             Neighbours* __restrict near, Sample* __restrict samples) {
    const Rules rules = job.rules;
    std::int64_t left = first_after(times, 0, times.count, job.t[0]) - 1;
    for (std::int64_t k = 0; k < job.count; ++k) {
        left = search_from(times, job.t[k], left);
        fetch<2>(job.values + (left < 0 ? 0 : left) * job.row_stride, job.row_bytes);
        place_one(times, job.t[k], left, method, rules, near[k], samples[k]);
    }
}

/// Both steps at once for float32 rows that go past the caches: target k is searched, and its
/// rows asked for, while an earlier one is written, so that the memory never waits for the search.
template <class Time>
void place_and_write(const PlaceJob<Time>& job, const RowJob& rows, Neighbours* near, Sample* samples) {
#ifdef __AVX2__
    constexpr std::int64_t ahead = 8;
    const Rules rules = job.rules;
    const EpisodeTimes<Time> times = job.times;
    std::int64_t left = first_after(times, 0, times.count, job.t[0]) - 1;
    for (std::int64_t k = 0; k < job.count + ahead; ++k) {
        if (k < job.count) {
            left = search_from(times, job.t[k], left);
            fetch<1>(job.values + (left < 0 ? 0 : left) * job.row_stride, job.row_bytes);
            place_one(times, job.t[k], left, Method::linear, rules, near[k], samples[k]);
        }
        if (k < ahead) continue;
        const Sample& sample = samples[k - ahead];
        char* out = rows.out + (k - ahead) * rows.out_target_stride;
        if (sample.kind == Kind::blend) {
            lerp_past_caches(reinterpret_cast<const float*>(rows.values + sample.rows[0] * rows.value_row_stride),
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
void place_all(const PlaceJob<Time>& job, Neighbours* near, Sample* samples) {
    const bool takes_one_row =
        job.method == Method::previous || job.method == Method::next || job.method == Method::nearest;
    if (job.times.stride != 1 || takes_one_row) return place_each(job, job.times, job.method, near, samples);
    place_each(job, {job.times.data, 1, job.times.count}, Method::linear, near, samples);
}

/// Copies past the caches: a large output does not push the input out of them, and is not read before it is written.
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
    _mm_sfence();
#endif
    copy(from + done, 1, count - done, to + done, 1);
}

constexpr CpuKernels kernels{&write_by_dtype,          &stream_out,
                             &place_all<float>,        &place_all<double>,
                             &place_all<std::int64_t>, &place_and_write<float>,
                             &place_and_write<double>, &place_and_write<std::int64_t>};

}  // namespace
}  // namespace robocache::align_detail
