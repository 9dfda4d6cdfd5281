// The first kernel of decode: one thread per segment decodes its MCUs and writes their samples into planes.
#pragma once

#include <cstdint>

#include "ops/decode/contract/idct.hpp"
#include "ops/decode/contract/segment.hpp"
#include "ops/decode/cuda/bits.cuh"
#include "ops/decode/cuda/job.cuh"

namespace robocache::decode_detail {

/// natural_order where a kernel can read it with any index.
struct NaturalOrder {
    std::uint8_t at[num_coefficients];
};
constexpr NaturalOrder make_natural_order() {
    NaturalOrder order{};
    for (int i = 0; i < num_coefficients; ++i) order.at[i] = natural_order[i];
    return order;
}
static __constant__ const NaturalOrder device_natural_order = make_natural_order();

/// Tables in shared memory. Huffman tables that components share are there once.
struct BlockTables {
    std::uint32_t steps[max_components][num_coefficients];  // natural position << 16 | quantization step
    std::uint8_t counts[2 * max_components][max_code_bits];
    std::uint8_t table_of[2 * max_components];  // dc 0, 1, 2, ac 0, 1, 2
    HuffmanTable* huffman;

    [[nodiscard]] __device__ const HuffmanTable& dc(int c) const { return huffman[table_of[c]]; }
    [[nodiscard]] __device__ const HuffmanTable& ac(int c) const { return huffman[table_of[max_components + c]]; }
};

/// Loads the tables of a picture with all threads of a block. Positions are checked: the index is memory of the caller.
__device__ inline void load_tables(const IndexView& index, const PictureRecord& record, std::uint32_t num_tables,
                                   BlockTables& tables) {
    __shared__ std::uint32_t positions[2 * max_components];
    __shared__ std::uint32_t num_different;
    const TableSet& set = index.set(record.table_set);
    if (threadIdx.x == 0) {
        num_different = 0;
        for (int i = 0; i < 2 * max_components; ++i) {
            const int c = i % max_components;
            const std::uint32_t position = i < max_components ? set.dc[c] : set.ac[c];
            std::uint32_t j = 0;
            while (j < num_different && positions[j] != position) ++j;
            if (c >= record.num_components) j = 0;
            if (j == num_different && j < num_tables) positions[num_different++] = position;
            tables.table_of[i] = static_cast<std::uint8_t>(j < num_tables ? j : 0);
        }
    }
    for (int i = static_cast<int>(threadIdx.x); i < record.num_components * num_coefficients; i += segment_threads) {
        const int c = i / num_coefficients;
        const int k = i % num_coefficients;
        const std::uint32_t number = set.quantization[c] < index.num_quantization ? set.quantization[c] : 0;
        tables.steps[c][k] = static_cast<std::uint32_t>(device_natural_order.at[k]) << 16 | index.steps(number)[k];
    }
    __syncthreads();
    for (std::uint32_t t = 0; t < num_different; ++t) {
        const std::uint64_t begin = positions[t];
        for (int i = static_cast<int>(threadIdx.x); i < max_code_bits + 256; i += segment_threads) {
            const std::uint64_t at = begin + static_cast<std::uint64_t>(i);
            const std::uint8_t byte = at < index.num_huffman_bytes ? index.huffman_bytes()[at] : 0;
            if (i < max_code_bits) {
                tables.counts[t][i] = byte;
            } else {
                tables.huffman[t].symbols[i - max_code_bits] = byte;
            }
        }
    }
    __syncthreads();
    for (std::uint32_t t = 0; t < num_different; ++t) {
        const HuffmanCodes codes{tables.counts[t], tables.huffman[t].symbols};
        for (int i = static_cast<int>(threadIdx.x); i < lookup_size; i += segment_threads) {
            tables.huffman[t].lookup[i] = lookup_entry(codes, i);
        }
        if (threadIdx.x == t) fill_limits(codes, tables.huffman[t]);
    }
    __syncthreads();
}

/// The coefficients of the block that a thread decodes: word i has coefficients 2 i and 2 i + 1 in natural order. Words
/// of a thread are segment_threads apart, so that a warp never has bank conflicts.
struct ThreadBlock {
    std::uint32_t* words;

    __device__ std::uint32_t& word(int i) const { return words[i * segment_threads]; }
    __device__ void put(int at, int value) const {
        reinterpret_cast<std::int16_t*>(&word(at >> 1))[at & 1] = static_cast<std::int16_t>(value);
    }
    __device__ void clear() const {
#pragma unroll
        for (int i = 0; i < num_coefficients / 2; ++i) word(i) = 0;
    }
};

__device__ inline int low_half(std::uint32_t word) {
    return static_cast<std::int16_t>(word);
}
__device__ inline int high_half(std::uint32_t word) {
    return static_cast<std::int32_t>(word) >> 16;
}
__device__ inline std::uint32_t pack_halves(int low, int high) {
    return __byte_perm(static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high), 0x5410);
}

/// First pass of the inverse DCT: columns 2 p and 2 p + 1, in place. is_alone: see first_row_value.
__device__ inline void transform_columns(const ThreadBlock& block, int p, bool is_alone) {
    std::uint32_t words[8];
    std::uint32_t any = 0;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        words[r] = block.word(4 * r + p);
        if (r > 0) any |= words[r];
    }
    if (any == 0) {
        const std::uint32_t flat =
            pack_halves(first_row_value(low_half(words[0]), is_alone), first_row_value(high_half(words[0]), is_alone));
#pragma unroll
        for (int r = 0; r < 8; ++r) block.word(4 * r + p) = flat;
        return;
    }
    int x[8];
    std::int32_t low[8];
    std::int32_t high[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) x[r] = low_half(words[r]);
    inverse_dct_8(x, low);
#pragma unroll
    for (int r = 0; r < 8; ++r) x[r] = high_half(words[r]);
    inverse_dct_8(x, high);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        block.word(4 * r + p) = pack_halves(first_pass_value(low[r]), first_pass_value(high[r]));
    }
}

/// Second pass of row r: eight samples in two words. Clears the row for the next block.
__device__ inline uint2 transform_row(const ThreadBlock& block, int r) {
    int x[8];
    std::int32_t y[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = block.word(4 * r + i);
        block.word(4 * r + i) = 0;
        x[2 * i] = low_half(word);
        x[2 * i + 1] = high_half(word);
    }
    inverse_dct_8(x, y);
    std::uint32_t packed[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i / 4] |= static_cast<std::uint32_t>(sample_of(y[i])) << (8 * (i % 4));
    return {packed[0], packed[1]};
}

/// Writes the samples of a segment's blocks, where they belong to the region.
class DeviceVisitor {
public:
    static constexpr bool stops_at_faults = false;

    __device__ DeviceVisitor(const BlockTables& tables, const ThreadBlock& block, const Geometry& geometry,
                             const Box& region, std::uint32_t first_mcu)
        : tables_(tables), block_(block), region_(region), mcus_x_(geometry.mcus_x) {
        mcu_x_ = static_cast<int>(first_mcu % static_cast<std::uint32_t>(mcus_x_)) - 1;
        mcu_y_ = static_cast<int>(first_mcu / static_cast<std::uint32_t>(mcus_x_));
    }

    __device__ void set_planes(const DeviceCall& call, const DeviceJob& job) {
        num_stored_ = num_stored(call.style, job.record);
        planes_ = call.planes;
        const auto num_mcus = static_cast<std::uint32_t>((region_.x1 - region_.x0) * (region_.y1 - region_.y0));
        std::uint32_t block = job.first_block;
        for (int c = 0; c < max_components; ++c) {
            const std::uint32_t h = job.record.h[c];
            const std::uint32_t v = job.record.v[c];
            (c == 0 ? first_block_0_ : (c == 1 ? first_block_1_ : first_block_2_)) = block;
            sampling_ |= (h | v << 4) << (8 * c);
            block += num_mcus * h * v;
        }
    }

    __device__ void begin_mcu(std::uint32_t, const BitReader&, const PredictorState&) {
        if (++mcu_x_ == mcus_x_) {
            mcu_x_ = 0;
            ++mcu_y_;
        }
        is_inside_ = mcu_x_ >= region_.x0 && mcu_x_ < region_.x1 && mcu_y_ >= region_.y0 && mcu_y_ < region_.y1;
    }

    __device__ void begin_block(int c, int column, int row) {
        steps_ = tables_.steps[c];
        is_wanted_ = is_inside_ && c < num_stored_;
        is_flat_ = true;
        is_first_row_ = true;
        const int h = static_cast<int>(sampling_ >> (8 * c)) & 15;
        const int v = static_cast<int>(sampling_ >> (8 * c + 4)) & 15;
        const int blocks_x = (region_.x1 - region_.x0) * h;
        const int x = (mcu_x_ - region_.x0) * h + column;
        const int y = (mcu_y_ - region_.y0) * v + row;
        const std::uint32_t first = c == 0 ? first_block_0_ : (c == 1 ? first_block_1_ : first_block_2_);
        out_ = reinterpret_cast<uint4*>(planes_) +
               std::int64_t{4} * (std::int64_t{first} + std::int64_t{y} * blocks_x + x);
    }

    __device__ BlockFault decode(int c, BitReader& reader, int& predictor) {
        return decode_block(reader, tables_.dc(c), tables_.ac(c), predictor, [&](int k, int value) { put(k, value); });
    }

    __device__ void put(int k, int value) {
        if (k > 0) is_flat_ = false;
        const std::uint32_t step = steps_[k];
        if ((step >> 16) >= block_size) is_first_row_ = false;
        block_.put(static_cast<int>(step >> 16), value * static_cast<int>(step & 0xFFFF));
    }

    __device__ void end_block() {
        if (!is_wanted_) {
            block_.clear();
        } else if (is_flat_) {
            const std::uint32_t sample = flat_sample(low_half(block_.word(0)));
            const std::uint32_t word = sample * 0x01010101U;
            for (int i = 0; i < 4; ++i) out_[i] = make_uint4(word, word, word, word);
            block_.word(0) = 0;
        } else {
#pragma unroll 1
            for (int p = 0; p < 4; ++p) transform_columns(block_, p, is_first_row_);
#pragma unroll 1
            for (int r = 0; r < 8; r += 2) {
                const uint2 upper = transform_row(block_, r);
                const uint2 lower = transform_row(block_, r + 1);
                out_[r / 2] = make_uint4(upper.x, upper.y, lower.x, lower.y);
            }
        }
    }

private:
    const BlockTables& tables_;
    ThreadBlock block_;
    Box region_;
    int mcus_x_;
    int mcu_x_ = 0, mcu_y_ = 0;
    int num_stored_ = 0;
    bool is_inside_ = false, is_wanted_ = false;
    bool is_flat_ = true;       // no coefficient but the first
    bool is_first_row_ = true;  // none below the first row
    std::uint32_t sampling_ = 0;
    std::uint32_t first_block_0_ = 0, first_block_1_ = 0, first_block_2_ = 0;
    std::uint8_t* planes_ = nullptr;
    const std::uint32_t* steps_ = nullptr;
    uint4* out_ = nullptr;
};

__global__ void __launch_bounds__(segment_threads, segment_blocks_per_sm)
    decode_segments(const __grid_constant__ DeviceCall call, std::uint32_t num_tables) {
    extern __shared__ uint4 shared[];
    __shared__ BlockTables tables;
    auto* coefficients = reinterpret_cast<std::uint32_t*>(shared);
    if (threadIdx.x == 0) {
        tables.huffman = reinterpret_cast<HuffmanTable*>(coefficients + segment_threads * num_coefficients / 2);
    }
    const std::uint32_t first_slot = blockIdx.x * segment_threads;
    const std::uint32_t first_job = find_job<&DeviceJob::first_slot>(call.jobs, call.num_jpeg, first_slot);
    __syncthreads();
    load_tables(call.index, call.jobs[first_job].record, num_tables, tables);

    const std::uint32_t slot = first_slot + threadIdx.x;
    const DeviceJob& job = call.jobs[find_job<&DeviceJob::first_slot>(call.jobs, call.num_jpeg, slot)];
    const PictureRecord& record = job.record;
    const Geometry geometry = geometry_of(record);
    const Box region = region_of(geometry, job.crop());
    const Segments segments = segments_of(geometry, region, record.every);
    const std::uint32_t own_slot = slot - job.first_slot;
    if (own_slot >= segments.num_slots) return;
    const std::int64_t segment = segment_of_slot(segments, geometry, region, record.every, own_slot);
    if (segment < 0 || segment >= record.num_entries) return;

    const std::uint64_t entry = record.first_entry + static_cast<std::uint64_t>(segment);
    const std::uint32_t bits = call.index.bits(entry);
    const Predictors predictors = call.index.predictors(entry);
    const PictureBytes picture = picture_bytes(call, job);
    const std::uint32_t skipped = record.scan_begin < picture.size ? record.scan_begin : picture.size;
    BitReader reader(picture.data + skipped, picture.size - skipped, bits / 8, static_cast<int>(bits % 8));

    const std::uint64_t begin = static_cast<std::uint64_t>(segment) * record.every;
    const std::uint64_t needed = static_cast<std::uint64_t>(region.y1 - 1) * geometry.mcus_x + region.x1;
    const std::uint64_t end = begin + record.every < needed ? begin + record.every : needed;
    const SegmentRange range{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end),
                             record.restart_interval};
    const ThreadBlock block{coefficients + threadIdx.x};
    block.clear();
    DeviceVisitor visitor(tables, block, geometry, region, range.begin);
    visitor.set_planes(call, job);
    decode_segment(reader, pattern_of(record), {predictors.dc[0], predictors.dc[1], predictors.dc[2]}, range, visitor);
}

}  // namespace robocache::decode_detail
