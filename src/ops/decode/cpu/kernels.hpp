// The inner loops of decode on the CPU: the part that is compiled once per instruction set.
#pragma once

#include <cstdint>

namespace robocache::decode_detail {

struct YuvFactors;

/// A row of pixels along one axis to fewer or more of them: output x has count[x] taps from first[x] on, with weights
/// from x * stride on.
struct RowWeights {
    const int* first;
    const int* count;
    const std::int32_t* weights;
    int stride;
    int out_width;
};

struct CpuKernels {
    /// The samples of a block of dequantized coefficients, in natural order, to rows `stride` apart. Bit c of `columns`
    /// is set where column c has more than its first coefficient.
    void (*inverse_dct)(const std::int16_t* block, unsigned columns, std::uint8_t* out, int stride);
    /// 3 * nearer + next, by sample.
    void (*sum_rows)(const std::uint8_t* nearer, const std::uint8_t* next, int count, std::int16_t* sums);
    /// Pairs of pixels 2 i and 2 i + 1 from sums[i - 1], sums[i] and sums[i + 1].
    void (*spread_h2v1)(const std::int16_t* sums, int num_pairs, std::uint8_t* out);
    void (*spread_h2v2)(const std::int16_t* sums, int num_pairs, std::uint8_t* out);
    /// Rows of Y, Cb, Cr to interleaved RGB.
    void (*color_row)(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, int count,
                      std::uint8_t* out);
    /// A row of a frame of video to interleaved RGB. A pair of pixels shares a chroma sample; `phase` 1: the first
    /// pixel is the second of its pair.
    void (*yuv_row)(const YuvFactors& factors, const std::uint8_t* y, const std::uint8_t* u, const std::uint8_t* v,
                    int phase, int count, std::uint8_t* out);
    void (*resize_row_1)(const RowWeights& row, const std::uint8_t* in, std::uint8_t* out);
    void (*resize_row_3)(const RowWeights& row, const std::uint8_t* in, std::uint8_t* out);
    /// Byte x of the result is the sum over i of rows[i * size + x] * weights[i]. sums: memory for `size` numbers.
    void (*resize_column)(const std::uint8_t* rows, const std::int32_t* weights, int num_rows, std::int64_t size,
                          std::int32_t* sums, std::uint8_t* out);
};

[[nodiscard]] const CpuKernels& kernels_baseline();
#ifdef ROBOCACHE_X86_64_V3
[[nodiscard]] const CpuKernels& kernels_x86_64_v3();
#endif

/// Those of the best instruction set that is here.
[[nodiscard]] const CpuKernels& cpu_kernels();

}  // namespace robocache::decode_detail
