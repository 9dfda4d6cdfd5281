// Batches on CUDA: one launch for all columns of a batch.
#include <algorithm>
#include <cstdint>

#include "core/cuda_check.hpp"
#include "loader/batch_cuda.cuh"
#include "loader/batch_kernel.cuh"

namespace robocache::loader_detail {
namespace {

using align_detail::Divisor;

// The launch shape, for an H200 (docs/decisions/0009).
constexpr std::int64_t multiprocessors = 132;
constexpr std::int64_t enough_blocks = 4 * multiprocessors;  // so that a small batch is found by all of them
constexpr std::int64_t resident_blocks = 7 * multiprocessors;
constexpr std::int64_t usual_samples = 32;  // of a block of a large batch: a warp finds as many in the time of one

/// How many samples a block takes, of so many in all columns. A small batch: as many targets as threads. A large one:
/// so many that its blocks are whole rounds of those that run at the same time.
std::int64_t block_samples(std::int64_t all, std::int64_t num_targets) {
    const std::int64_t few = std::max<std::int64_t>(batch_threads / num_targets, 1);
    const std::int64_t small = std::clamp<std::int64_t>(all / enough_blocks, 1, few);
    if ((all + small - 1) / small <= resident_blocks) return small;
    const std::int64_t round = resident_blocks * usual_samples;
    const std::int64_t rounds = std::max<std::int64_t>((all + round / 2) / round, 1);
    const std::int64_t blocks = rounds * resident_blocks;
    return std::min<std::int64_t>((all + blocks - 1) / blocks, max_block_samples);
}

}  // namespace

/// The column with its outputs, cut into blocks.
DeviceColumn CudaBatch::bound(const ColumnPlan& plan, std::size_t c, const BatchCall& call,
                              std::size_t num_columns) const {
    DeviceColumn column = columns_[c];
    const BatchOutput& output = call.outputs[c];
    column.out = static_cast<char*>(output.values.data);
    column.padding = output.padding ? static_cast<bool*>(output.padding->data) : nullptr;
    ItemFormat& format = column.format;
    format.out = plan.dtype;
    format.scaled = plan.scaled;
    const std::int64_t in_size = size_bytes(format.in);
    const std::int64_t out_size = size_bytes(format.out);
    column.out_row_bytes = plan.num_channels * out_size;
    const std::uint64_t in_alignment =
        std::min(in_alignments_[c], common_alignment({static_cast<std::uint64_t>(plan.num_channels * in_size)}));
    const std::uint64_t out_alignment = common_alignment(
        {reinterpret_cast<std::uintptr_t>(column.out), static_cast<std::uint64_t>(column.out_row_bytes)});
    if (!format.scaled && format.in == format.out && !is_floating(format.in)) {
        format.raw_bytes = static_cast<std::uint8_t>(std::min(in_alignment, out_alignment));
        column.num_items = static_cast<std::uint32_t>(column.out_row_bytes / format.raw_bytes);
    } else {
        const std::int64_t wide = 16 / std::max(in_size, out_size);
        format.wide = in_alignment >= static_cast<std::uint64_t>(wide * in_size) &&
                      out_alignment >= static_cast<std::uint64_t>(wide * out_size);
        column.num_items = static_cast<std::uint32_t>(plan.num_channels / (format.wide ? wide : 1));
    }
    column.chunk_items = std::min<std::uint32_t>(column.num_items, batch_threads);
    column.tile_targets = std::min<std::uint32_t>(column.num_targets, max_tile_targets);
    const std::int64_t cuts = (column.num_targets + column.tile_targets - 1) / column.tile_targets;
    const std::int64_t samples =
        cuts > 1 ? 1 : block_samples(call.count * static_cast<std::int64_t>(num_columns), column.tile_targets);
    const std::int64_t at_once = std::min<std::int64_t>(max_tile_targets / column.tile_targets, samples);
    const std::int64_t tiles = (samples + at_once - 1) / at_once;
    column.samples = static_cast<std::uint32_t>(samples);
    column.tile_samples = static_cast<std::uint32_t>((samples + tiles - 1) / tiles);  // equal tiles
    column.by_target_cuts = Divisor(static_cast<std::uint32_t>(cuts));
    column.by_chunks = Divisor((column.num_items + column.chunk_items - 1) / column.chunk_items);
    column.by_tile_targets = Divisor(column.tile_targets);
    column.by_chunk_items = Divisor(column.chunk_items);
    return column;
}

void CudaBatch::read_columns(const BatchPlan& plan, const BatchCall& call, std::size_t begin, std::size_t end,
                             Stream stream) const {
    BatchTable table{};
    table.table = table_;
    table.tables = tables_;
    table.order = call.order;
    table.first_position = call.first_position;
    table.count = call.count;
    table.steps = call.steps;
    table.num_columns = static_cast<std::int32_t>(end - begin);
    std::int64_t blocks = 0;
    const auto all = [&](DType dtype) {
        return std::all_of(table.columns, table.columns + table.num_columns, [&](const DeviceColumn& column) {
            return column.format.raw_bytes == 0 && column.format.in == dtype && column.format.out == dtype;
        });
    };
    for (std::size_t c = begin; c < end; ++c) {
        DeviceColumn& column = table.columns[c - begin] = bound(plan.columns[c], c, call, end - begin);
        column.first_block = static_cast<std::uint32_t>(blocks);
        const std::int64_t tiles = (call.count + column.samples - 1) / column.samples;
        blocks += tiles * column.by_target_cuts.divisor * column.by_chunks.divisor;
        if (blocks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
    }
    const auto kernel = all(DType::f32)    ? robocache_read_batch<ItemsOf<float>>
                        : all(DType::bf16) ? robocache_read_batch<ItemsOf<BFloat16>>
                                           : robocache_read_batch<AnyItems>;
    launch_overlapped(kernel, static_cast<unsigned>(blocks), batch_threads, 0, static_cast<cudaStream_t>(stream.handle),
                      table, "BatchReader: launching robocache_read_batch");
}

}  // namespace robocache::loader_detail
