// Writing the rows of a tile: part of kernels_impl.hpp, under the rules written there.
//     row in memory -> load -> compute type (f32, or f64 for f64 values) -> blend -> store -> row in memory
// in pieces that stay in the first-level cache; `lerp_in_place` is the short cut for the case everybody has.
#pragma once

#include "ops/align/contract/windows.hpp"
#include "ops/align/cpu/kernels.hpp"

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

/// Channels [c, c + n) of a window: the rows are read once, in order.
template <class T>
void write_window(const RowJob& job, const Sample& sample, std::int64_t c, std::int64_t n, char* out) {
    with_window<T>(job.method, [&]<class Window>(Window) {
        Window windows[piece] = {};
        double count = 0;
        for (std::int64_t row = sample.rows[0]; row < sample.rows[1]; ++row) {
            if (job.is_replaced(job.times, row)) continue;
            const T* from = reinterpret_cast<const T*>(job.values + row * job.value_row_stride);
            for (std::int64_t i = 0; i < n; ++i) {
                windows[i].add(from[(c + i) * job.value_channel_stride], count == 0);
            }
            count += 1;
        }
        if constexpr (Window::picks_row) {
            T picked[piece];
            for (std::int64_t i = 0; i < n; ++i) picked[i] = windows[i].result(count);
            if (job.out_dtype == job.values_dtype) {
                copy(picked, 1, n, reinterpret_cast<T*>(out) + c * job.out_channel_stride, job.out_channel_stride);
            } else {
                typename ComputeOf<T>::type wide[piece];
                load_for(job.out_dtype, picked, 1, n, wide);
                store_as(job.out_dtype, wide, n, out, c, job.out_channel_stride);
            }
        } else {
            double computed[piece];
            for (std::int64_t i = 0; i < n; ++i) computed[i] = windows[i].result(count);
            store_as(job.out_dtype, computed, n, out, c, job.out_channel_stride);
        }
    });
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
        if (is_slerp(job.method)) return write_slerp(job, sample, rows[0], rows[1], out);
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
/// The same with non-temporal stores: for rows of whole vectors of a large output, aligned to half a vector at least
/// (NumPy's memory is to no more).
ROBOCACHE_HD void lerp_non_temporal(const float* a, const float* b, double weight, std::int64_t width, float* out) {
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
                write_window<T>(job, sample, c, n, out);
            }
    }
}

template <class T>
void write_typed(const RowJob& job) {
    const bool side_by_side = job.value_channel_stride == 1 && job.out_channel_stride == 1;
    const bool in_place = job.out_dtype == job.values_dtype && side_by_side && job.method == Method::linear;
    const auto row_bytes = job.width * static_cast<std::int64_t>(sizeof(T));
    const bool gapless = job.out_dtype == job.values_dtype && side_by_side && job.out_target_stride == row_bytes &&
                         job.value_row_stride == row_bytes;
    for (std::int64_t k = 0; k < job.count; ++k) {
        const Sample& sample = job.samples[k];
        char* out = job.out + k * job.out_target_stride;
        if (gapless && sample.kind == Kind::row) {
            // Targets at the times of the rows, as in the window of a policy: one copy for all of them.
            std::int64_t run = 1;
            while (k + run < job.count && sample.rows[0] + run == job.samples[k + run].rows[0] &&
                   job.samples[k + run].kind == Kind::row) {
                ++run;
            }
            __builtin_memcpy(out, job.values + sample.rows[0] * row_bytes, static_cast<std::size_t>(run * row_bytes));
            k += run - 1;
            continue;
        }
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

}  // namespace
}  // namespace robocache::align_detail
