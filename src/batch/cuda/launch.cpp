// Batches on CUDA: one launch for all columns of a batch.
#include <algorithm>
#include <cstdint>
#include <span>

#include "batch/cuda/reader.hpp"
#include "core/cuda/check.hpp"
#include "core/cuda/launch.hpp"

namespace robocache::loader_detail {
namespace {

// The launch shape, for an H200 (docs/decisions/0009).
constexpr std::int64_t blocks_per_sm = 6;
constexpr std::int64_t least_items = 2 * batch_threads;  // of a block: below that finding costs more than moving
constexpr std::int64_t most_items = 64 * batch_threads;
constexpr std::int64_t many_samples = 16;  // of a warp, so that few lanes have nothing to find

// Of blocks that copy windows.
constexpr std::int64_t block_window_bytes = 5632;  // five windows of the benchmark's
constexpr std::int64_t least_window_bytes = 512;   // smaller ones are cheaper as words
constexpr std::int64_t most_window_bytes = std::int64_t{1} << 14;

/// Rows become the batch bit for bit.
bool is_copy(const DeviceColumn& column) {
    return column.format.in == column.format.out && !column.format.scaled &&
           column.value_row_bytes == column.out_row_bytes;
}

std::int64_t window_bytes(const DeviceColumn& column) {
    return column.num_targets * column.out_row_bytes;
}

/// Whether bulk copies can make the windows of a column.
bool has_wide_windows(const DeviceColumn& column) {
    const std::int64_t bytes = window_bytes(column);
    return is_copy(column) && column.run_step > 0 && column.format.in_bytes == 16 && bytes >= least_window_bytes &&
           bytes <= most_window_bytes;
}

/// Adds blocks that write the index, if the call has one, to the `blocks` of the columns. Returns their sum.
std::int64_t add_index_blocks(BatchTable& table, std::int64_t blocks, std::int64_t threads) {
    table.first_index_block = static_cast<std::uint32_t>(blocks);
    if (table.index.source != nullptr) blocks += (table.count + threads - 1) / threads;
    if (blocks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
    return blocks;
}

/// Launches a kernel that copies windows, with at least so much shared memory.
void read_windows(void (*kernel)(BatchTable), std::int64_t shared_bytes, BatchTable& table, cudaStream_t stream) {
    std::int64_t blocks = 0;
    for (DeviceColumn& column : std::span(table.columns, static_cast<std::size_t>(table.num_columns))) {
        const std::int64_t samples =
            std::clamp<std::int64_t>(block_window_bytes / window_bytes(column), 1, max_task_samples);
        const std::int64_t tasks = (table.count + samples - 1) / samples;
        column.first_block = static_cast<std::uint32_t>(blocks);
        blocks += tasks;
        if (blocks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
        column.num_tasks = static_cast<std::uint32_t>(tasks);
        column.samples = static_cast<std::uint32_t>(samples);
        column.cut_targets = column.num_targets;
        column.chunk_items = column.num_items;
        column.by_targets = Divisor(column.num_targets);
        column.by_items = Divisor(column.num_items);
        shared_bytes = std::max(shared_bytes, samples * window_bytes(column));
    }
    blocks = add_index_blocks(table, blocks, window_threads);
    launch_overlapped(kernel, {blocks, window_threads, shared_bytes}, stream, table,
                      "BatchReader: launching robocache_copy_windows");
}

/// Cuts a column of a batch that moves so many items in all into tasks: as many as there are warps at the same time
/// where that leaves each of them many samples, else for blocks.
void cut_into_tasks(DeviceColumn& column, std::int64_t num_samples, std::int64_t all_items,
                    std::int64_t resident_warps) {
    const auto divided = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t sample_items = static_cast<std::int64_t>(column.num_targets) * column.num_items;
    const auto samples_for = [&](std::int64_t items) {
        return std::clamp<std::int64_t>(divided(items, sample_items), 1, max_task_samples);
    };
    const std::int64_t warp_samples = samples_for(std::min(all_items / resident_warps, most_items));
    column.by_warps = warp_samples >= many_samples;
    const std::int64_t block_items = std::clamp(all_items / (blocks_per_sm * num_sms()), least_items, most_items);
    const std::int64_t samples = column.by_warps ? warp_samples : samples_for(block_items);
    std::int64_t targets = column.num_targets;
    std::int64_t items = column.num_items;
    if (samples == 1 && sample_items > 2 * block_items) {
        items = divided(items, divided(items, block_items));  // equal chunks
        targets = std::clamp<std::int64_t>(block_items / items, 1, targets);
    }
    const std::int64_t cuts = divided(column.num_targets, targets);
    const std::int64_t chunks = divided(column.num_items, items);
    const std::int64_t tasks = divided(num_samples, samples) * cuts * chunks;
    if (tasks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
    column.num_tasks = static_cast<std::uint32_t>(tasks);
    column.samples = static_cast<std::uint32_t>(samples);
    column.cut_targets = static_cast<std::uint32_t>(targets);
    column.chunk_items = static_cast<std::uint32_t>(items);
    column.by_cuts = Divisor(static_cast<std::uint32_t>(cuts));
    column.by_chunks = Divisor(static_cast<std::uint32_t>(chunks));
    column.by_targets = Divisor(column.num_targets);
    column.by_items = Divisor(column.num_items);
    // A few windows in a block are faster target by target: 1.0 against 2.9 us at 256 samples. Why is not known.
    if (cuts * chunks > 1 || !is_copy(column) || samples < many_samples) column.run_step = 0;
    if (column.run_step > 0) column.by_run_items = Divisor(static_cast<std::uint32_t>(sample_items));
}

}  // namespace

/// The column with its outputs.
DeviceColumn CudaBatch::bound(const ColumnPlan& plan, std::size_t c, const BatchCall& call) const {
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
        format.in_bytes = format.raw_bytes;
        column.num_items = static_cast<std::uint32_t>(column.out_row_bytes / format.raw_bytes);
    } else {
        const std::int64_t wide = 16 / std::max(in_size, out_size);
        format.wide = in_alignment >= static_cast<std::uint64_t>(wide * in_size) &&
                      out_alignment >= static_cast<std::uint64_t>(wide * out_size);
        format.in_bytes = static_cast<std::uint8_t>(in_size * (format.wide ? wide : 1));
        column.num_items = static_cast<std::uint32_t>(plan.num_channels / (format.wide ? wide : 1));
    }
    return column;
}

void CudaBatch::read_columns(const BatchPlan& plan, const BatchCall& call, std::size_t begin, std::size_t end,
                             CudaQueue stream) const {
    BatchTable table{};
    table.table = table_;
    table.tables = tables_;
    table.order = call.order;
    table.is_told_earlier = call.steps.step != nullptr || call.order.numbers != nullptr;
    table.has_rounds = call.order.num_tables == 1 && call.order.shuffle && !table.is_told_earlier &&
                       table_.slots == nullptr && table_.bits <= Rounds::most_bits;
    if (table.has_rounds) table.rounds = Rounds(call.order.key);
    table.first_position = call.first_position;
    table.count = call.count;
    table.steps = call.steps;
    if (begin == 0) {
        table.index = call.index;
        table.index.names = names_;
    }
    table.num_columns = static_cast<std::int32_t>(end - begin);
    const auto all = [&](DType dtype) {
        return std::all_of(table.columns, table.columns + table.num_columns, [&](const DeviceColumn& column) {
            return column.format.raw_bytes == 0 && column.format.in == dtype && column.format.out == dtype;
        });
    };
    std::int64_t items = 0;
    bool windows = compute_capability() >= 90;
    for (std::size_t c = begin; c < end; ++c) {
        const DeviceColumn& column = table.columns[c - begin] = bound(plan.columns[c], c, call);
        items += call.count * column.num_targets * column.num_items;
        windows = windows && mostly_runs_[c] && has_wide_windows(column);
    }
    const auto queue = static_cast<cudaStream_t>(stream.handle);
    const bool is_f32 = all(DType::f32);
    const bool is_bf16 = all(DType::bf16);
    const BatchKernels kernels = batch_kernels();
    if (windows && is_f32) return read_windows(kernels.windows_f32, kernels.window_bytes, table, queue);
    if (windows && is_bf16) return read_windows(kernels.windows_bf16, kernels.window_bytes, table, queue);
    const std::int64_t resident_warps =
        num_sms() * team_warps * (is_f32 || is_bf16 ? blocks_of_one_type : blocks_of_any_type);
    std::int64_t blocks = 0;
    for (DeviceColumn& column : std::span(table.columns, end - begin)) {
        cut_into_tasks(column, call.count, items, resident_warps);
        column.first_block = static_cast<std::uint32_t>(blocks);
        blocks += column.by_warps ? (column.num_tasks + team_warps - 1) / team_warps : column.num_tasks;
        if (blocks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
    }
    blocks = add_index_blocks(table, blocks, batch_threads);
    const auto kernel = is_f32 ? kernels.read_f32 : is_bf16 ? kernels.read_bf16 : kernels.read_any;
    launch_overlapped(kernel, {blocks, batch_threads}, queue, table, "BatchReader: launching robocache_read_batch");
}

}  // namespace robocache::loader_detail
