// The inner loops of decode on the CPU: the part that is compiled once per instruction set.
#pragma once

#include <cstdint>

#include "ops/decode/contract/huffman.hpp"
#include "ops/decode/jpeg/reader.hpp"
#include "ops/decode/jpeg/tables.hpp"

namespace robocache::decode_detail {

struct YuvFactors;

/// Weights of four taps, split as high << 11 | low so that each half fits into 16 bits.
struct TapGroup {
    std::int16_t high[4];
    std::int16_t low[4];
};
inline constexpr int taps_per_group = 4;
inline constexpr int low_weight_bits = 11;
/// Bytes that a kernel may read behind a row of pixels. It does not use them.
inline constexpr int row_slack = 16;

/// A row of pixels along one axis to fewer or more of them: output x has taps from first[x] on, whose weights are
/// groups [x * num_groups, (x + 1) * num_groups). Weights behind the last tap are 0.
struct RowWeights {
    const int* first;
    const int* count;  // of taps
    const TapGroup* groups;
    int num_groups;
    int out_width;
};

/// Two rows of pixels, and where they go.
struct RowPair {
    const std::uint8_t* in[2];
    std::uint8_t* out[2];
};

/// How bytes become values: value * scale + offset, and its bits for every byte.
struct Finish {
    float scale, offset;
    const std::uint32_t* bits;
};

/// What the blocks of a component are decoded with.
struct BlockTables {
    const HuffmanTable& dc;
    const HuffmanTable& ac;
    const PairTable* pairs;      // may be null
    const std::uint32_t* steps;  // as in PictureTables
};

/// The block that a scan continues with, and where its coefficients go.
struct BlockLane {
    ScanBits& bits;
    int& predictor;
    std::int16_t* block;  // 64 in natural order, all 0 before
    int& positions;       // of coefficients that are not 0, by bitwise or
};

/// What one block of an MCU is skipped with.
struct SkipBlock {
    const HuffmanTable* dc;
    const HuffmanTable* ac;
    const SkipTable* skips;
    int component;
};

/// A scan of which only the bits behind each MCU, and the predictors there, are wanted.
struct SkipLane {
    ScanBits* bits;
    const std::uint8_t* end;  // of the data
    SkipBlock blocks[10];     // of an MCU
    int num_blocks;
    int block;               // the next one, or the one that k is in
    int k;                   // the next coefficient; 0: a block begins
    std::uint32_t num_mcus;  // that are left
    int predictors[max_components];
    bool has_fault;
};

struct CpuKernels {
    /// As decode_block in contract/huffman.hpp, without a check for the end of the data.
    BlockFault (*decode_block)(const BlockTables& tables, const BlockLane& lane);
    /// The same for a block of each of two segments, code by code in turns: a code can only be read when the one before
    /// it in its segment is known, so two segments take little more time than one. Needs pairs. Any fault of the two.
    BlockFault (*decode_two_blocks)(const BlockTables& tables, const BlockLane& first, const BlockLane& second);
    /// The same for one who needs only the bits behind the block, and the predictor.
    BlockFault (*skip_block)(ScanBits& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor);
    /// Skips MCUs until none is left or one has a fault, which includes the end of the data.
    void (*skip_mcus)(SkipLane& lane);
    /// The same for two scans, code by code in turns, until one of them has come so far.
    void (*skip_mcus_of_two)(SkipLane& first, SkipLane& second);
    /// The samples of a block of dequantized coefficients, in natural order and aligned to 32 bytes, to rows `stride`
    /// apart. `is_first_row`: no coefficient is below the first row.
    void (*inverse_dct)(const std::int16_t* block, bool is_first_row, std::uint8_t* out, int stride);
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
    void (*resize_rows_1)(const RowWeights& row, const RowPair& rows);
    void (*resize_rows_3)(const RowWeights& row, const RowPair& rows);
    /// Byte x of the result is the sum over i of rows[i * size + x] * weights[i]. sums: memory for `size` numbers.
    void (*resize_column)(const std::uint8_t* rows, const std::int32_t* weights, int num_rows, std::int64_t size,
                          std::int32_t* sums, std::uint8_t* out);
    /// Interleaved RGB to three rows.
    void (*split_row)(const std::uint8_t* in, int count, std::uint8_t* r, std::uint8_t* g, std::uint8_t* b);
    /// Bytes to values of 32 bits, of 16 bits as float16, and as bfloat16.
    void (*finish_f32)(const std::uint8_t* in, int count, const Finish& finish, float* out);
    void (*finish_f16)(const std::uint8_t* in, int count, const Finish& finish, std::uint16_t* out);
    void (*finish_bf16)(const std::uint8_t* in, int count, const Finish& finish, std::uint16_t* out);
};

[[nodiscard]] const CpuKernels& kernels_baseline();
#ifdef ROBOCACHE_X86_64_V3
[[nodiscard]] const CpuKernels& kernels_x86_64_v3();
#endif

/// Those of the best instruction set that is here.
[[nodiscard]] const CpuKernels& cpu_kernels();

}  // namespace robocache::decode_detail
