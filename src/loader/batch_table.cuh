// What the CUDA kernel of BatchReader is told, and the index it finds on the device.
#pragma once

#include <cstdint>

#include "loader/kernel.hpp"
#include "ops/align/cuda_table.cuh"

namespace robocache::loader_detail {

constexpr int batch_threads = 128;
constexpr int max_block_samples = 64;  // a thread each
constexpr int max_tile_targets = 256;  // of all samples that a block works on at a time
constexpr int max_batch_columns = 8;   // in one launch

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
    double period;  // above 0: row k has the time first_time + rint(k * period) exactly, every one of them
    float rows_per_ns;
    std::int32_t part;
    std::int64_t unused;  // so that every byte that a wide access reads was written
};

/// What an item of the write loop is: one element, or as many as fit into 16 bytes on both sides; or plain memory.
struct ItemFormat {
    DType in;
    DType out;
    bool wide;
    std::uint8_t raw_bytes;  // above 0: rows are only copied, in words of this size
    bool scaled;
};

struct DeviceColumn {
    PartRows rows;          // where there is one part
    const PartRows* parts;  // where there are more: of this column
    std::int64_t parts_step;
    const EpisodeIndex* episodes;
    const std::int64_t* deltas;
    std::int64_t latency;
    char* out;
    bool* padding;  // null: not asked for
    std::int64_t value_row_bytes;
    std::int64_t out_row_bytes;
    align_detail::Rules rules;
    Method method;
    ItemFormat format;
    bool on_host;                // values in pinned memory: nothing is fetched ahead
    std::uint32_t num_channels;  // pairs in `scales`
    std::uint32_t num_items;     // of a row
    std::uint32_t num_targets;   // of a sample

    // Where anchors are the rows of this stream: how many rows from there to each moment, at a steady rate. Else null.
    const std::int32_t* row_steps;
    // What is fetched into L2 for a sample before its rows are found: this many rows. 0: each target's when it is
    // placed.
    std::int64_t first_delta;  // the earliest, with the latency
    std::int32_t fetched_rows;
    std::uint32_t value_lines;  // lines of memory that they are in, at most; those of the times come after them
    align_detail::Divisor by_fetched_lines;

    // Blocks of this column: blocks of samples x cuts of the targets x chunks of rows.
    std::uint32_t first_block;
    std::uint32_t samples;       // of a block; 1 where targets are cut
    std::uint32_t tile_samples;  // of them at a time
    std::uint32_t tile_targets;  // of a sample
    std::uint32_t chunk_items;
    align_detail::Divisor by_target_cuts;
    align_detail::Divisor by_chunks;
    align_detail::Divisor by_tile_targets;
    align_detail::Divisor by_chunk_items;
};

struct BatchTable {
    TablePlan table;          // where there is one
    const TablePlan* tables;  // where there are more
    OrderPlan order;
    std::uint64_t first_position;
    std::int64_t count;
    StepPlan steps;
    std::int32_t num_columns;
    DeviceColumn columns[max_batch_columns];
};

}  // namespace robocache::loader_detail
