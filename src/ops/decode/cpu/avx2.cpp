// The CPU kernels of decode for x86-64 with AVX2, FMA and F16C; CMake compiles this file with -mavx2 -mfma -mf16c.
// Those that a compiler does not turn into good vector code are written with intrinsics here; they give the same bits.
#include <immintrin.h>

#include "ops/decode/cpu/kernels_impl.hpp"

namespace robocache::decode_detail {
namespace {

// ---- inverse DCT ----------------------------------------------------------------------------------------------------
// Eight vectors of eight 16-bit values, two of them in one register: vector 2 i in the low, 2 i + 1 in the high halves
// of the two lanes. So a product with its sum is one instruction for eight values.

struct Vectors {
    __m256i v01, v23, v45, v67;
};
struct Sums {
    __m256i y[8];  // 32 bits
};

__attribute__((always_inline)) inline __m256i pair_of(int first, int second) {
    return _mm256_set1_epi32(
        static_cast<int>(static_cast<unsigned>(second) << 16 | (static_cast<unsigned>(first) & 0xFFFFU)));
}

/// As inverse_dct_8 for eight at a time, with the products of a value taken together.
__attribute__((always_inline)) inline Sums inverse_dct_8_of(const Vectors& x) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i x26 = _mm256_unpacklo_epi16(x.v23, x.v67);
    const __m256i even_2 = _mm256_madd_epi16(x26, pair_of(4433, 4433 - 15137));
    const __m256i even_3 = _mm256_madd_epi16(x26, pair_of(4433 + 6270, 4433));
    // In the upper half of 32 bits, then shifted: times 2^13.
    constexpr int shift = 16 - idct_constant_bits;
    const __m256i even_0 = _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, _mm256_add_epi16(x.v01, x.v45)), shift);
    const __m256i even_1 = _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, _mm256_sub_epi16(x.v01, x.v45)), shift);
    const __m256i a0 = _mm256_add_epi32(even_0, even_3);
    const __m256i a3 = _mm256_sub_epi32(even_0, even_3);
    const __m256i a1 = _mm256_add_epi32(even_1, even_2);
    const __m256i a2 = _mm256_sub_epi32(even_1, even_2);

    const __m256i z3 = _mm256_add_epi16(x.v67, x.v23);
    const __m256i z4 = _mm256_add_epi16(x.v45, x.v01);
    const __m256i z34 = _mm256_unpackhi_epi16(z3, z4);
    const __m256i p3 = _mm256_madd_epi16(z34, pair_of(9633 - 16069, 9633));
    const __m256i p4 = _mm256_madd_epi16(z34, pair_of(9633, 9633 - 3196));
    const __m256i x71 = _mm256_unpackhi_epi16(x.v67, x.v01);
    const __m256i x53 = _mm256_unpackhi_epi16(x.v45, x.v23);
    const __m256i b0 = _mm256_add_epi32(_mm256_madd_epi16(x71, pair_of(2446 - 7373, -7373)), p3);
    const __m256i b1 = _mm256_add_epi32(_mm256_madd_epi16(x53, pair_of(16819 - 20995, -20995)), p4);
    const __m256i b2 = _mm256_add_epi32(_mm256_madd_epi16(x53, pair_of(-20995, 25172 - 20995)), p3);
    const __m256i b3 = _mm256_add_epi32(_mm256_madd_epi16(x71, pair_of(-7373, 12299 - 7373)), p4);
    return {{_mm256_add_epi32(a0, b3), _mm256_add_epi32(a1, b2), _mm256_add_epi32(a2, b1), _mm256_add_epi32(a3, b0),
             _mm256_sub_epi32(a3, b0), _mm256_sub_epi32(a2, b1), _mm256_sub_epi32(a1, b2), _mm256_sub_epi32(a0, b3)}};
}

/// Rounds, shifts and saturates to 16 bits, two vectors in one register: 2 i in the low halves, 2 i + 1 in the high.
template <int shift>
__attribute__((always_inline)) inline Vectors narrowed(const Sums& sums) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const auto pair = [&](int i) __attribute__((always_inline)) {
        return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(sums.y[i], half), shift),
                                  _mm256_srai_epi32(_mm256_add_epi32(sums.y[i + 1], half), shift));
    };
    return {pair(0), pair(2), pair(4), pair(6)};
}

/// Vectors 0 to 3 in u, 4 to 7 in v: elements 0, 1 (u0, v0) and 2, 3 (u1, v1) of the first lane, 4 to 7 of the second.
struct Transposed {
    __m256i u0, u1, v0, v1;
};
__attribute__((always_inline)) inline Transposed transposed(const Vectors& x) {
    const __m256i t0 = _mm256_unpacklo_epi16(x.v01, x.v23);
    const __m256i t1 = _mm256_unpackhi_epi16(x.v01, x.v23);
    const __m256i t2 = _mm256_unpacklo_epi16(x.v45, x.v67);
    const __m256i t3 = _mm256_unpackhi_epi16(x.v45, x.v67);
    return {_mm256_unpacklo_epi16(t0, t1), _mm256_unpackhi_epi16(t0, t1), _mm256_unpacklo_epi16(t2, t3),
            _mm256_unpackhi_epi16(t2, t3)};
}

__attribute__((always_inline)) inline void store_rows(std::uint8_t* out, std::ptrdiff_t stride, __m256i rows,
                                                      int first) {
    const __m128i low = _mm256_castsi256_si128(rows);
    const __m128i high = _mm256_extracti128_si256(rows, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + first * stride), low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (first + 1) * stride), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (first + 4) * stride), high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + (first + 5) * stride), _mm_unpackhi_epi64(high, high));
}

void inverse_dct_avx2(const std::int16_t* block, bool is_first_row, std::uint8_t* out, int stride) {
    const auto* rows = reinterpret_cast<const __m256i*>(block);
    const auto load = [&](int i) __attribute__((always_inline)) {
        return _mm256_permute4x64_epi64(_mm256_load_si256(rows + i), 0xD8);
    };
    Vectors columns;
    if (is_first_row) {
        // Column c of the first pass is its first coefficient, shifted, in all rows: see first_row_value.
        const __m128i row = _mm_slli_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(block)), idct_pass_bits);
        const auto spread = [&](int low, int high) __attribute__((always_inline)) {
            const auto byte = [](int i) { return static_cast<char>(i); };
            const __m128i order = _mm_set_epi8(byte(2 * high + 1), byte(2 * high), byte(2 * high + 1), byte(2 * high),
                                               byte(2 * high + 1), byte(2 * high), byte(2 * high + 1), byte(2 * high),
                                               byte(2 * low + 1), byte(2 * low), byte(2 * low + 1), byte(2 * low),
                                               byte(2 * low + 1), byte(2 * low), byte(2 * low + 1), byte(2 * low));
            return _mm256_broadcastsi128_si256(_mm_shuffle_epi8(row, order));
        };
        columns = {spread(0, 1), spread(2, 3), spread(4, 5), spread(6, 7)};
    } else {
        const Sums sums = inverse_dct_8_of({load(0), load(1), load(2), load(3)});
        const Transposed t = transposed(narrowed<first_pass_shift>(sums));
        columns = {_mm256_permute2x128_si256(t.u0, t.v0, 0x20), _mm256_permute2x128_si256(t.u1, t.v1, 0x20),
                   _mm256_permute2x128_si256(t.u0, t.v0, 0x31), _mm256_permute2x128_si256(t.u1, t.v1, 0x31)};
    }
    const Transposed t = transposed(narrowed<second_pass_shift>(inverse_dct_8_of(columns)));
    // Bytes of two rows: columns 0 to 3 of both, then 4 to 7 of both.
    const __m256i middle = _mm256_set1_epi8(static_cast<char>(128));
    const auto bytes = [&](__m256i u, __m256i v) __attribute__((always_inline)) {
        return _mm256_shuffle_epi32(_mm256_add_epi8(_mm256_packs_epi16(u, v), middle), 0xD8);
    };
    store_rows(out, stride, bytes(t.u0, t.v0), 0);
    store_rows(out, stride, bytes(t.u1, t.v1), 2);
}

// ---- color ----------------------------------------------------------------------------------------------------------

/// (x * constant + 2^15) >> 16: the high half of 2 x * constant, halved and rounded.
__attribute__((always_inline)) inline __m256i scaled(__m256i x, int constant) {
    const __m256i doubled = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16(static_cast<short>(constant)));
    return _mm256_srai_epi16(_mm256_add_epi16(doubled, _mm256_set1_epi16(1)), 1);
}

/// 16 pixels to 48 bytes.
__attribute__((always_inline)) inline void store_rgb(__m128i r, __m128i g, __m128i b, std::uint8_t* out) {
    // Each register of the result takes bytes of all three; -1 is none.
    const auto part = [&](__m128i of_r, __m128i of_g, __m128i of_b) __attribute__((always_inline)) {
        return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, of_r), _mm_shuffle_epi8(g, of_g)),
                            _mm_shuffle_epi8(b, of_b));
    };
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to, part(_mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5),
                              _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1),
                              _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1)));
    _mm_storeu_si128(to + 1, part(_mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1),
                                  _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10),
                                  _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1)));
    _mm_storeu_si128(to + 2, part(_mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1),
                                  _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1),
                                  _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15)));
}

void color_row_avx2(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, int count,
                    std::uint8_t* out) {
    const auto load = [](const std::uint8_t* p) __attribute__((always_inline)) {
        return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    const auto bytes = [](__m256i x) __attribute__((always_inline)) {
        return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(x, x), 0xD8));
    };
    const __m256i middle = _mm256_set1_epi16(128);
    const __m256i half = _mm256_set1_epi32(1 << 15);
    const __m256i of_green = pair_of(-22554, 65536 - 46802);
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m256i light = load(y + i);
        const __m256i b = _mm256_sub_epi16(load(cb + i), middle);
        const __m256i r = _mm256_sub_epi16(load(cr + i), middle);
        // The constants of rgb_of_ycc without their whole parts: 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942.
        const __m256i red = _mm256_add_epi16(light, _mm256_add_epi16(r, scaled(r, 91881 - 65536)));
        const __m256i blue =
            _mm256_add_epi16(light, _mm256_add_epi16(_mm256_add_epi16(b, b), scaled(b, 116130 - 2 * 65536)));
        const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(b, r), of_green);
        const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(b, r), of_green);
        const __m256i mixed = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                                                 _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
        const __m256i green = _mm256_add_epi16(light, _mm256_sub_epi16(mixed, r));
        store_rgb(bytes(red), bytes(green), bytes(blue), out + 3 * static_cast<std::ptrdiff_t>(i));
    }
    color_row(y + i, cb + i, cr + i, count - i, out + 3 * static_cast<std::ptrdiff_t>(i));
}

// ---- upsampling -----------------------------------------------------------------------------------------------------

/// 16 sums at a time to 32 pixels: (3 * sum + neighbor + bias) >> shift, left and right interleaved.
template <int shift, int left_bias, int right_bias>
__attribute__((always_inline)) inline int spread_pairs(const std::int16_t* sums, int num_pairs, std::uint8_t* out) {
    const auto load = [](const std::int16_t* p) __attribute__((always_inline)) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    };
    int i = 0;
    for (; i + 16 <= num_pairs; i += 16) {
        const __m256i sum = load(sums + i);
        const __m256i tripled = _mm256_add_epi16(sum, _mm256_add_epi16(sum, sum));
        const auto value = [&](__m256i next, int bias) __attribute__((always_inline)) {
            const __m256i biased = _mm256_add_epi16(next, _mm256_set1_epi16(static_cast<short>(bias)));
            return _mm256_srli_epi16(_mm256_add_epi16(tripled, biased), shift);
        };
        const __m256i left = value(load(sums + i - 1), left_bias);
        const __m256i right = value(load(sums + i + 1), right_bias);
        const __m256i both = _mm256_or_si256(left, _mm256_slli_epi16(right, 8));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * static_cast<std::ptrdiff_t>(i)), both);
    }
    return i;
}

void spread_h2v1_avx2(const std::int16_t* sums, int num_pairs, std::uint8_t* out) {
    const int done = spread_pairs<2, 1, 2>(sums, num_pairs, out);
    spread_h2v1(sums + done, num_pairs - done, out + 2 * static_cast<std::ptrdiff_t>(done));
}

void spread_h2v2_avx2(const std::int16_t* sums, int num_pairs, std::uint8_t* out) {
    const int done = spread_pairs<4, 8, 7>(sums, num_pairs, out);
    spread_h2v2(sums + done, num_pairs - done, out + 2 * static_cast<std::ptrdiff_t>(done));
}

// ---- resize ---------------------------------------------------------------------------------------------------------

/// Four taps at a time: two in each lane, one instruction multiplies and adds both. The sums of high and low halves of
/// weights are put together at the end, modulo 2^32 as in the plain loop.
///
///   pixels   r0 g0 b0 r1 g1 b1 r2 g2 b2 r3 g3 b3 . . . .
///   words    r0 r1 g0 g1 b0 b1 0 0 | r2 r3 g2 g3 b2 b3 0 0
struct TapSums {
    __m256i high = _mm256_setzero_si256();
    __m256i low = _mm256_setzero_si256();

    __attribute__((always_inline)) void add(const std::uint8_t* pixels, __m256i high_weights, __m256i low_weights) {
        const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                               6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
        const __m256i words = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels))), order);
        high = _mm256_add_epi32(high, _mm256_madd_epi16(words, high_weights));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(words, low_weights));
    }
    [[nodiscard]] __attribute__((always_inline)) __m256i total() const {
        return _mm256_add_epi32(_mm256_slli_epi32(high, low_weight_bits), low);
    }
};

void resize_rows_3_avx2(const RowWeights& row, const RowPair& rows) {
    // Weights of taps 0, 1 | 2, 3 in all places of a lane.
    const __m256i high_order = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,  //
                                                4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    const __m256i low_order = _mm256_add_epi8(high_order, _mm256_set1_epi8(8));
    const __m256i start = _mm256_set1_epi32(resample_start);
    for (int x = 0; x < row.out_width; ++x) {
        const std::ptrdiff_t first = std::ptrdiff_t{3} * row.first[x];
        const TapGroup* group = row.groups + static_cast<std::ptrdiff_t>(x) * row.num_groups;
        const int count = row.count[x];
        TapSums a;
        TapSums b;
        for (int i = 0; i < count; i += taps_per_group, ++group) {
            const __m256i weights =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group)));
            const __m256i high = _mm256_shuffle_epi8(weights, high_order);
            const __m256i low = _mm256_shuffle_epi8(weights, low_order);
            a.add(rows.in[0] + first + 3 * i, high, low);
            b.add(rows.in[1] + first + 3 * i, high, low);
        }
        // Row a in the first lane, row b in the second.
        const __m256i of_a = a.total();
        const __m256i of_b = b.total();
        const __m256i sums =
            _mm256_add_epi32(_mm256_permute2x128_si256(of_a, of_b, 0x20), _mm256_permute2x128_si256(of_a, of_b, 0x31));
        const __m256i values = _mm256_srai_epi32(_mm256_add_epi32(sums, start), weight_bits);
        const __m256i words = _mm256_packs_epi32(values, values);
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const int pixels[2] = {_mm256_cvtsi256_si32(bytes), _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1))};
        // The fourth byte is overwritten by the next pixel.
        const bool is_last = x + 1 == row.out_width;
        for (int r = 0; r < 2; ++r) {
            std::uint8_t* out = rows.out[r] + std::ptrdiff_t{3} * x;
            if (is_last) {
                __builtin_memcpy(out, &pixels[r], 3);
            } else {
                __builtin_memcpy(out, &pixels[r], 4);
            }
        }
    }
}

// ---- finish ---------------------------------------------------------------------------------------------------------

void split_row_avx2(const std::uint8_t* in, int count, std::uint8_t* r, std::uint8_t* g, std::uint8_t* b) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const auto* from = reinterpret_cast<const __m128i*>(in + 3 * static_cast<std::ptrdiff_t>(i));
        const __m128i x = _mm_loadu_si128(from);
        const __m128i y = _mm_loadu_si128(from + 1);
        const __m128i z = _mm_loadu_si128(from + 2);
        const auto pick = [&](__m128i of_x, __m128i of_y, __m128i of_z) __attribute__((always_inline)) {
            return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, of_x), _mm_shuffle_epi8(y, of_y)),
                                _mm_shuffle_epi8(z, of_z));
        };
        _mm_storeu_si128(reinterpret_cast<__m128i*>(r + i),
                         pick(_mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(g + i),
                         pick(_mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(b + i),
                         pick(_mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1),
                              _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15)));
    }
    split_row(in + 3 * static_cast<std::ptrdiff_t>(i), count - i, r + i, g + i, b + i);
}

/// Eight bytes to values in float32, as fused_multiply_add computes them.
__attribute__((always_inline)) inline __m256 values_of(const std::uint8_t* in, const Finish& finish) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_set1_ps(finish.scale),
                           _mm256_set1_ps(finish.offset));
}

void finish_f32_avx2(const std::uint8_t* in, int count, const Finish& finish, float* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, values_of(in + i, finish));
    look_up(in + i, count - i, finish, out + i);
}

void finish_f16_avx2(const std::uint8_t* in, int count, const Finish& finish, std::uint16_t* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm256_cvtps_ph(values_of(in + i, finish), _MM_FROUND_TO_NEAREST_INT));
    }
    look_up(in + i, count - i, finish, out + i);
}

constexpr CpuKernels kernels_avx2{
    decode_block_of,    decode_two_blocks, skip_block,       skip_mcus,       skip_mcus_of_two, inverse_dct_avx2,
    sum_rows,           spread_h2v1_avx2,  spread_h2v2_avx2, color_row_avx2,  yuv_row,          resize_rows<1>,
    resize_rows_3_avx2, resize_column,     split_row_avx2,   finish_f32_avx2, finish_f16_avx2,  look_up<std::uint16_t>};

}  // namespace

const CpuKernels& kernels_x86_64_v3() {
    return kernels_avx2;
}

}  // namespace robocache::decode_detail
