// The CPU kernels of decode, included by one source file per instruction set.
//
// Every function lives in an unnamed namespace or is always inlined, and is free of library templates: code compiled
// for a newer instruction set must never be merged by the linker with the baseline's. Loops have no branches and
// constant strides, so that a compiler turns them into vector code.
#pragma once

#include <cstdint>

#include "ops/decode/contract/color.hpp"
#include "ops/decode/contract/idct.hpp"
#include "ops/decode/contract/resample.hpp"
#include "ops/decode/contract/yuv.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {
namespace {

void inverse_dct(const std::int16_t* block, unsigned columns, std::uint8_t* out, int stride) {
    alignas(32) int passed[8][8];  // by column, then by row
    if (columns == 0) {
        for (int c = 0; c < 8; ++c) {
            const int value = first_row_value(block[c], true);
            for (int r = 0; r < 8; ++r) passed[c][r] = value;
        }
    } else {
        for (int c = 0; c < 8; ++c) {
            const int x[8] = {block[c],      block[8 + c],  block[16 + c], block[24 + c],
                              block[32 + c], block[40 + c], block[48 + c], block[56 + c]};
            std::int32_t y[8];
            inverse_dct_8(x, y);
            for (int r = 0; r < 8; ++r) passed[c][r] = first_pass_value(y[r]);
        }
    }
    alignas(32) std::uint8_t samples[8][8];
    for (int r = 0; r < 8; ++r) {
        const int x[8] = {passed[0][r], passed[1][r], passed[2][r], passed[3][r],
                          passed[4][r], passed[5][r], passed[6][r], passed[7][r]};
        std::int32_t y[8];
        inverse_dct_8(x, y);
        for (int c = 0; c < 8; ++c) samples[r][c] = sample_of(y[c]);
    }
    for (int r = 0; r < 8; ++r) __builtin_memcpy(out + static_cast<std::ptrdiff_t>(r) * stride, samples[r], 8);
}

void sum_rows(const std::uint8_t* __restrict nearer, const std::uint8_t* __restrict next, int count,
              std::int16_t* __restrict sums) {
    for (int i = 0; i < count; ++i) sums[i] = static_cast<std::int16_t>(3 * nearer[i] + next[i]);
}

void spread_h2v1(const std::int16_t* __restrict sums, int num_pairs, std::uint8_t* __restrict out) {
    for (int i = 0; i < num_pairs; ++i) {
        out[2 * i] = static_cast<std::uint8_t>(h2v1_value(sums[i], sums[i - 1], false));
        out[2 * i + 1] = static_cast<std::uint8_t>(h2v1_value(sums[i], sums[i + 1], true));
    }
}

void spread_h2v2(const std::int16_t* __restrict sums, int num_pairs, std::uint8_t* __restrict out) {
    for (int i = 0; i < num_pairs; ++i) {
        out[2 * i] = static_cast<std::uint8_t>(h2v2_value(sums[i], sums[i - 1], false));
        out[2 * i + 1] = static_cast<std::uint8_t>(h2v2_value(sums[i], sums[i + 1], true));
    }
}

void color_row(const std::uint8_t* __restrict y, const std::uint8_t* __restrict cb, const std::uint8_t* __restrict cr,
               int count, std::uint8_t* __restrict out) {
    for (int i = 0; i < count; ++i) {
        const Rgb pixel = rgb_of_ycc(y[i], cb[i], cr[i]);
        out[3 * i] = static_cast<std::uint8_t>(pixel.r);
        out[3 * i + 1] = static_cast<std::uint8_t>(pixel.g);
        out[3 * i + 2] = static_cast<std::uint8_t>(pixel.b);
    }
}

void put_pixel(const Rgb& pixel, std::uint8_t* out) {
    out[0] = static_cast<std::uint8_t>(pixel.r);
    out[1] = static_cast<std::uint8_t>(pixel.g);
    out[2] = static_cast<std::uint8_t>(pixel.b);
}

void yuv_row(const YuvFactors& factors, const std::uint8_t* __restrict y, const std::uint8_t* __restrict u,
             const std::uint8_t* __restrict v, int phase, int count, std::uint8_t* __restrict out) {
    const YuvFactors f = factors;
    int x = 0;
    if (phase == 1 && count > 0) {
        put_pixel(rgb_of_yuv(f, y[0], u[0], v[0]), out);
        ++u, ++v, ++x;
    }
    const int num_pairs = (count - x) / 2;
    for (int i = 0; i < num_pairs; ++i) {
        put_pixel(rgb_of_yuv(f, y[x + 2 * i], u[i], v[i]), out + 3 * (x + 2 * i));
        put_pixel(rgb_of_yuv(f, y[x + 2 * i + 1], u[i], v[i]), out + 3 * (x + 2 * i + 1));
    }
    x += 2 * num_pairs;
    if (x < count) put_pixel(rgb_of_yuv(f, y[x], u[num_pairs], v[num_pairs]), out + 3 * x);
}

template <int channels>
void resize_row(const RowWeights& row, const std::uint8_t* __restrict in, std::uint8_t* __restrict out) {
    for (int x = 0; x < row.out_width; ++x) {
        std::int32_t sums[channels];
        for (int c = 0; c < channels; ++c) sums[c] = resample_start;
        const std::uint8_t* pixel = in + static_cast<std::ptrdiff_t>(row.first[x]) * channels;
        const std::int32_t* weights = row.weights + static_cast<std::ptrdiff_t>(x) * row.stride;
        const int count = row.count[x];
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < channels; ++c) sums[c] += pixel[i * channels + c] * weights[i];
        }
        for (int c = 0; c < channels; ++c) *out++ = resampled(sums[c]);
    }
}

void resize_column(const std::uint8_t* __restrict rows, const std::int32_t* __restrict weights, int num_rows,
                   std::int64_t size, std::int32_t* __restrict sums, std::uint8_t* __restrict out) {
    for (std::int64_t x = 0; x < size; ++x) sums[x] = resample_start;
    for (int i = 0; i < num_rows; ++i, rows += size) {
        const std::int32_t weight = weights[i];
        for (std::int64_t x = 0; x < size; ++x) sums[x] += rows[x] * weight;
    }
    for (std::int64_t x = 0; x < size; ++x) out[x] = resampled(sums[x]);
}

constexpr CpuKernels kernels{inverse_dct, sum_rows,      spread_h2v1,   spread_h2v2,  color_row,
                             yuv_row,     resize_row<1>, resize_row<3>, resize_column};

}  // namespace
}  // namespace robocache::decode_detail
