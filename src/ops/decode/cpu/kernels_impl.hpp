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

/// A copy of ScanBits whose address nobody has: it stays in registers.
struct BlockReader {
    std::uint64_t acc;
    const std::uint8_t* next;
    std::uint64_t num_bits;

    /// At least 56 bits are there afterwards: a Huffman code and the bits that follow it have at most 31.
    __attribute__((always_inline)) void need() {
        std::uint64_t word = 0;
        __builtin_memcpy(&word, next, sizeof word);
        acc |= __builtin_bswap64(word) >> num_bits;
        next += (63 - num_bits) >> 3;
        num_bits |= 56;
    }
    [[nodiscard]] __attribute__((always_inline)) std::uint32_t peek_32() const {
        return static_cast<std::uint32_t>(acc >> 32);
    }
    __attribute__((always_inline)) void drop(int count) {
        acc <<= count;
        num_bits -= static_cast<std::uint64_t>(count);
    }
    [[nodiscard]] __attribute__((always_inline)) static bool overran() { return false; }
};

/// Decodes a block by pairs of coefficients, step by step. Two of these take all registers, so it keeps few numbers.
struct BlockDecoder {
    const BlockLane& lane;
    const BlockTables& tables;
    BlockReader reader;
    std::int16_t* block;
    const std::uint32_t* step;  // of the next coefficient
    const std::uint32_t* last;  // of coefficient 63
    std::uint32_t positions;
    BlockFault fault;

    __attribute__((always_inline)) BlockDecoder(const BlockTables& with, const BlockLane& of)
        : lane(of),
          tables(with),
          reader{of.bits.acc, of.bits.next, static_cast<std::uint64_t>(of.bits.num_bits)},
          block(of.block),
          step(with.steps),
          last(with.steps + num_coefficients - 1),
          positions(0),
          fault(BlockFault::none) {
        reader.need();
        const std::uint32_t next = reader.peek_32();
        const std::uint32_t entry = entry_of(next, tables.dc);
        int value = lane.predictor;
        if (value_size(entry) > 0) value = static_cast<std::int16_t>(value + value_of(next, entry));
        lane.predictor = value;
        put(*step++, value);
        reader.drop(total_bits(entry));
        if (entry == 0) fault = BlockFault::undefined_code;
    }

    __attribute__((always_inline)) void put(std::uint32_t to, int value) {
        block[to >> 16] = static_cast<std::int16_t>(value * static_cast<int>(to & 0xFFFF));
    }

    /// The next one or two coefficients; false at the end of the block. Takes lookup_bits of those that need() has made
    /// available, or calls need() at the end.
    __attribute__((always_inline)) bool advance(const PairTable& pairs) {
        const std::uint32_t next = reader.peek_32();
        const CoefficientPair pair = pairs.lookup[next >> (32 - lookup_bits)];
        // No code for the end of the block follows coefficient 63, so that one is read by itself.
        if (pair.advance != 0 && pair.advance <= last - step) [[likely]] {
            const std::uint32_t first = step[pair.offsets[0]];
            const std::uint32_t second = step[pair.offsets[1]];
            step += pair.advance;
            reader.drop(pair.end_bits & 127);
            positions |= first | second;
            put(first, pair.values[0]);
            put(second, pair.values[1]);
            return pair.end_bits < 128;
        }
        const std::uint32_t entry = entry_of(next, tables.ac);
        reader.drop(total_bits(entry));
        reader.need();
        const int run = zero_run(entry);
        const bool is_value = value_size(entry) > 0;
        if (entry == 0) fault = BlockFault::undefined_code;
        if (!is_value && run != 15) return false;
        if (run > last - step) {
            if (is_value) fault = BlockFault::too_many_coefficients;
            return false;
        }
        step += run;
        if (is_value) {
            positions |= *step;
            put(*step, value_of(next, entry));
        }
        return step++ < last;
    }

    /// The rest of the block, if there is more of it.
    __attribute__((always_inline)) BlockFault finish(bool more) {
        while (more) {
            reader.need();
            more = advance(*tables.pairs);
        }
        lane.bits = {reader.acc, reader.next, static_cast<int>(reader.num_bits)};
        lane.positions = static_cast<int>(positions >> 16);
        return fault;
    }
};

BlockFault decode_block_of(const BlockTables& tables, const BlockLane& lane) {
    if (tables.pairs != nullptr) {
        BlockDecoder decoder(tables, lane);
        return decoder.finish(decoder.fault == BlockFault::none);
    }
    BlockReader reader{lane.bits.acc, lane.bits.next, static_cast<std::uint64_t>(lane.bits.num_bits)};
    int value_of_dc = lane.predictor;
    int positions = 0;
    const BlockFault fault =
        decode_block(reader, tables.dc, tables.ac, value_of_dc, [&](int k, int value) __attribute__((always_inline)) {
            const std::uint32_t step = tables.steps[k];
            lane.block[step >> 16] = static_cast<std::int16_t>(value * static_cast<int>(step & 0xFFFF));
            positions |= static_cast<int>(step >> 16);
        });
    lane.bits = {reader.acc, reader.next, static_cast<int>(reader.num_bits)};
    lane.predictor = value_of_dc;
    lane.positions = positions;
    return fault;
}

BlockFault decode_two_blocks(const BlockTables& tables, const BlockLane& first, const BlockLane& second) {
    const PairTable& pairs = *tables.pairs;
    BlockDecoder a(tables, first);
    BlockDecoder b(tables, second);
    bool more_a = a.fault == BlockFault::none;
    bool more_b = b.fault == BlockFault::none;
    while (more_a && more_b) {
        a.reader.need();
        b.reader.need();
        more_a = a.advance(pairs);
        more_b = b.advance(pairs);
        if (!more_a || !more_b) break;
        more_a = a.advance(pairs);
        more_b = b.advance(pairs);
    }
    const BlockFault fault_a = a.finish(more_a);
    const BlockFault fault_b = b.finish(more_b);
    return fault_a != BlockFault::none ? fault_a : fault_b;
}

BlockFault skip_block(ScanBits& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor) {
    BlockReader reader{bits.acc, bits.next, static_cast<std::uint64_t>(bits.num_bits)};
    const BlockFault fault = decode_block(reader, dc, ac, predictor, [](int, int) __attribute__((always_inline)) {});
    bits = {reader.acc, reader.next, static_cast<int>(reader.num_bits)};
    return fault;
}

/// Skips the blocks of a lane, a few codes at a time. Two of these are interleaved.
struct LaneSkipper {
    SkipLane& lane;
    BlockReader reader;
    const std::uint16_t* skips = nullptr;
    int k;

    explicit __attribute__((always_inline)) LaneSkipper(SkipLane& of)
        : lane(of), reader{of.bits->acc, of.bits->next, static_cast<std::uint64_t>(of.bits->num_bits)}, k(of.k) {
        if (k == 0) {
            begin_block();
        } else {
            skips = lane.blocks[lane.block].skips->lookup;
        }
    }

    __attribute__((always_inline)) void begin_block() {
        const SkipBlock& block = lane.blocks[lane.block];
        skips = block.skips->lookup;
        reader.need();
        const std::uint32_t next = reader.peek_32();
        const std::uint32_t entry = entry_of(next, *block.dc);
        int& predictor = lane.predictors[block.component];
        if (value_size(entry) > 0) predictor = static_cast<std::int16_t>(predictor + value_of(next, entry));
        reader.drop(total_bits(entry));
        if (entry == 0) lane.has_fault = true;
        k = 1;
    }

    /// The next few codes; false where the last MCU, or a fault, is behind them.
    __attribute__((always_inline)) bool advance() {
        reader.need();  // enough for both: most_skipped_bits, twice
        std::uint32_t skip = skips[reader.peek_32() >> (32 - skip_bits)];
        int to = k + static_cast<int>(skip >> 5);
        if (to < num_coefficients) {
            reader.drop(static_cast<int>(skip & 31));
            k = to;
            skip = skips[reader.peek_32() >> (32 - skip_bits)];
            to = k + static_cast<int>(skip >> 5);
            if (to < num_coefficients) {
                reader.drop(static_cast<int>(skip & 31));
                k = to;
                return true;
            }
        }
        return end_block(skip, to);
    }

    /// `skip` ends the block, or goes on behind it, or skips nothing.
    __attribute__((always_inline)) bool end_block(std::uint32_t skip, int to) {
        const bool is_end = static_cast<int>(skip >> 5) > num_coefficients;
        if (is_end ? to <= 2 * num_coefficients : to == num_coefficients) {
            reader.drop(static_cast<int>(skip & 31));
        } else if (!skip_code()) {
            return !lane.has_fault;
        }
        if (8 * (reader.next - lane.end) > static_cast<std::int64_t>(reader.num_bits)) lane.has_fault = true;
        if (++lane.block == lane.num_blocks) {
            lane.block = 0;
            if (--lane.num_mcus == 0 || lane.has_fault) {
                k = 0;
                return false;
            }
        }
        if (!lane.has_fault) begin_block();
        return !lane.has_fault;
    }

    /// One code; true where the block ends with it.
    bool skip_code() {
        reader.need();
        const std::uint32_t entry = entry_of(reader.peek_32(), *lane.blocks[lane.block].ac);
        reader.drop(total_bits(entry));
        k += zero_run(entry);
        if (entry == 0) {
            lane.has_fault = true;
            return false;
        }
        if (value_size(entry) == 0) {
            if (zero_run(entry) != 15) return true;
        } else if (k >= num_coefficients) {
            lane.has_fault = true;
            return false;
        }
        return ++k >= num_coefficients;
    }

    __attribute__((always_inline)) void finish() {
        *lane.bits = {reader.acc, reader.next, static_cast<int>(reader.num_bits)};
        lane.k = k;
    }
};

void skip_mcus(SkipLane& lane) {
    LaneSkipper skipper(lane);
    while (skipper.advance()) {
    }
    skipper.finish();
}

void skip_mcus_of_two(SkipLane& first, SkipLane& second) {
    LaneSkipper a(first);
    LaneSkipper b(second);
    while (a.advance() && b.advance()) {
    }
    a.finish();
    b.finish();
}

void inverse_dct(const std::int16_t* block, bool is_first_row, std::uint8_t* out, int stride) {
    alignas(32) int passed[8][8];  // by column, then by row
    if (is_first_row) {
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

void yuv_row(const YuvFactors& factors, const std::uint8_t* __restrict y, const std::uint8_t* __restrict u,
             const std::uint8_t* __restrict v, int phase, int count, std::uint8_t* __restrict out) {
    const YuvFactors f = factors;
    if (phase == 1 && count > 0) {
        const Rgb pixel = rgb_of_yuv(f, *y++, *u++, *v++);
        *out++ = static_cast<std::uint8_t>(pixel.r);
        *out++ = static_cast<std::uint8_t>(pixel.g);
        *out++ = static_cast<std::uint8_t>(pixel.b);
        --count;
    }
    constexpr int most = 64;  // pixels at a time, by color, then interleaved: each loop is vector code
    alignas(32) std::int16_t chroma[3][most];
    alignas(32) std::uint8_t colors[3][most];
    for (int x = 0; x < count; x += most) {
        const int num_pixels = smaller(most, count - x);
        const int num_pairs = (num_pixels + 1) / 2;
        for (int i = 0; i < num_pairs; ++i) {
            const Chroma c = chroma_of(f, u[x / 2 + i], v[x / 2 + i]);
            chroma[0][2 * i] = chroma[0][2 * i + 1] = c.r;
            chroma[1][2 * i] = chroma[1][2 * i + 1] = c.g;
            chroma[2][2 * i] = chroma[2][2 * i + 1] = c.b;
        }
        for (int i = 0; i < num_pixels; ++i) {
            const std::int16_t luma = luma_of(f, y[x + i]);
            colors[0][i] = color_of(luma, chroma[0][i]);
            colors[1][i] = color_of(luma, chroma[1][i]);
            colors[2][i] = color_of(luma, chroma[2][i]);
        }
        std::uint8_t* to = out + 3 * static_cast<std::ptrdiff_t>(x);
        for (int i = 0; i < num_pixels; ++i) {
            to[3 * i] = colors[0][i];
            to[3 * i + 1] = colors[1][i];
            to[3 * i + 2] = colors[2][i];
        }
    }
}

template <int channels>
void resize_rows(const RowWeights& row, const RowPair& rows) {
    for (int r = 0; r < 2; ++r) {
        std::uint8_t* __restrict out = rows.out[r];
        for (int x = 0; x < row.out_width; ++x) {
            std::int32_t sums[channels];
            for (int c = 0; c < channels; ++c) sums[c] = resample_start;
            const std::uint8_t* pixel = rows.in[r] + static_cast<std::ptrdiff_t>(row.first[x]) * channels;
            const TapGroup* groups = row.groups + static_cast<std::ptrdiff_t>(x) * row.num_groups;
            const int count = row.count[x];
            for (int i = 0; i < count; ++i) {
                const TapGroup& group = groups[i / taps_per_group];
                const int j = i % taps_per_group;
                const std::int32_t weight = group.high[j] * (1 << low_weight_bits) + group.low[j];
                for (int c = 0; c < channels; ++c) sums[c] += pixel[i * channels + c] * weight;
            }
            for (int c = 0; c < channels; ++c) *out++ = resampled(sums[c]);
        }
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

void split_row(const std::uint8_t* __restrict in, int count, std::uint8_t* __restrict r, std::uint8_t* __restrict g,
               std::uint8_t* __restrict b) {
    for (int i = 0; i < count; ++i) {
        r[i] = in[3 * i];
        g[i] = in[3 * i + 1];
        b[i] = in[3 * i + 2];
    }
}

template <class T>
void look_up(const std::uint8_t* in, int count, const Finish& finish, T* out) {
    for (int i = 0; i < count; ++i) __builtin_memcpy(out + i, &finish.bits[in[i]], sizeof(T));
}

[[maybe_unused]] constexpr CpuKernels kernels{decode_block_of,
                                              decode_two_blocks,
                                              skip_block,
                                              skip_mcus,
                                              skip_mcus_of_two,
                                              inverse_dct,
                                              sum_rows,
                                              spread_h2v1,
                                              spread_h2v2,
                                              color_row,
                                              yuv_row,
                                              resize_rows<1>,
                                              resize_rows<3>,
                                              resize_column,
                                              split_row,
                                              look_up<float>,
                                              look_up<std::uint16_t>,
                                              look_up<std::uint16_t>};

}  // namespace
}  // namespace robocache::decode_detail
