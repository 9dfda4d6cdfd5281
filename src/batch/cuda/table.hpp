// Parameters of the CUDA kernels of BatchReader, the index on the device, and the kernels themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch/rounds.hpp"
#include "core/cuda/divisor.hpp"
#include "ops/align/cuda/device_stream.hpp"

namespace robocache::loader_detail {

constexpr int batch_threads = 128;
constexpr int team_warps = batch_threads / align_detail::warp_size;
constexpr int max_task_samples = align_detail::warp_size;  // a lane each
constexpr int thread_targets = 2;                          // that a team places at a time, for each of its threads
constexpr int max_batch_columns = 8;                       // in one launch
constexpr int window_threads = align_detail::warp_size;    // of a block that copies windows
constexpr int window_blocks = 28;                          // of these, of an SM
constexpr int blocks_of_one_type = 6;                      // of robocache_read_batch, of an SM
constexpr int blocks_of_any_type = 4;

/// One column in one part.
struct PartRows {
    const char* values;
    const std::int64_t* times;
    const void* scales;    // pairs of (offset, scale), in the type they are used in
    std::int64_t max_gap;  // ns
};

/// What the index is made from.
struct PartOffsets {
    const std::int64_t* times;
    const std::int64_t* offsets;
    std::int64_t num_episodes;
    std::int64_t num_rows;
};

/// One episode of one column: where its rows begin, and where among them a moment is, or would be if they were evenly
/// spaced.
struct alignas(16) EpisodeIndex {
    std::int64_t first_row;  // of its part
    std::int64_t first_time;
    std::int64_t num_rows;
    double period;      // above 0: row k has the time first_time + rint(k * period) exactly, every one of them
    double rate;        // 1 / period
    float rows_per_ns;  // without dropouts
    std::int32_t part;
};

/// What an item of the write loop is: one element, or as many as fit into 16 bytes on both sides; or plain memory.
struct ItemFormat {
    DType in;
    DType out;
    bool wide;
    std::uint8_t in_bytes;
    std::uint8_t raw_bytes;  // above 0: rows are only copied, in words of this size
    bool scaled;
};

struct DeviceColumn {
    PartRows rows;          // where there is one part
    const PartRows* parts;  // where there are more: of this column
    std::int64_t parts_step;
    const EpisodeIndex* episodes;
    const std::int64_t* deltas;
    const double* near_deltas;  // the same; NaN where float64 does not count that far
    std::int64_t latency;
    std::uint64_t tolerance;  // ns
    double near_tolerance;    // the same
    char* out;
    bool* padding;  // null: not asked for
    std::int64_t value_row_bytes;
    std::int64_t out_row_bytes;
    align_detail::Rules rules;
    Method method;
    ItemFormat format;
    Divisor by_channels;        // pairs in `scales`: each channel's, again and again up to whole items
    std::uint32_t num_items;    // of a row
    std::uint32_t num_targets;  // of a sample

    bool anchors_are_rows;  // of this stream, in the same order
    // Moments this many ns apart, whose rows, where they are as far apart, are copied in one piece. 0: they are not.
    double run_step;
    std::int64_t run_first;  // ns from the anchor to the first of them, with latency

    // Tasks of this column: samples x cuts of the targets x chunks of rows.
    std::uint32_t first_block;
    bool by_warps;  // a warp for each, or a block
    std::uint32_t num_tasks;
    std::uint32_t samples;      // of a task; 1 where targets are cut
    std::uint32_t cut_targets;  // of a sample
    std::uint32_t chunk_items;
    Divisor by_cuts;
    Divisor by_chunks;
    Divisor by_targets;
    Divisor by_items;      // of a whole row
    Divisor by_run_items;  // of all rows of a sample
};

struct BatchTable {
    TablePlan table;          // where there is one
    const TablePlan* tables;  // where there are more
    OrderPlan order;
    Rounds rounds;         // of order.key
    bool has_rounds;       // false: the order has none, or a step changes them
    bool is_told_earlier;  // the step or the numbers: by work that comes before, which is waited for first
    std::uint64_t first_position;
    std::int64_t count;
    StepPlan steps;
    IndexPlan index;                  // source is null if the call has no index
    std::uint32_t first_index_block;  // blocks from here on write it
    std::int32_t num_columns;
    DeviceColumn columns[max_batch_columns];
};

/// Kernels of a batch: for columns of one type, and for any.
struct BatchKernels {
    void (*read_f32)(BatchTable);
    void (*read_bf16)(BatchTable);
    void (*read_any)(BatchTable);
    // Copies of whole windows, of columns whose windows mostly lie on the rows.
    void (*windows_f32)(BatchTable);
    void (*windows_bf16)(BatchTable);
    std::int64_t window_bytes;  // of shared memory that these need at least
};

[[nodiscard]] BatchKernels batch_kernels();

/// For index_episodes: a column, whose parts are parts_step apart.
struct IndexJob {
    const PartOffsets* parts;
    std::int64_t parts_step;
    const std::int64_t* part;
    const std::int64_t* local;
    EpisodeIndex* episodes;
};

void index_episodes(const IndexJob& job, std::int64_t num_episodes, cudaStream_t stream);
void index_anchors(const TablePlan& table, Bucket* buckets, cudaStream_t stream);

}  // namespace robocache::loader_detail
