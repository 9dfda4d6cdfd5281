// What the CUDA kernels of align are told: one table of streams, passed by value as a kernel parameter.
#pragma once

#include <cstdint>

#include "ops/align/kernel.hpp"
#include "ops/align/plan.hpp"

namespace robocache::align_detail {

constexpr int block_threads = 256;
constexpr int max_streams = 16;  // in one launch
constexpr int max_ranges = 16;   // of one stream
constexpr int max_outer = TensorView::max_rank;

/// Elements and the widest access that every row allows: the simple kernel has one instance of its loop for each.
enum class Format : std::uint8_t {
    f32x4,
    f32x2,
    f32x1,  // 16, 8, 4 bytes
    f64x2,
    f64x1,  // 16, 8
    f16x8,
    f16x4,
    f16x2,
    f16x1,  // 16, 8, 4, 2
    bf16x8,
    bf16x4,
    bf16x2,
    bf16x1,
    raw16,
    raw8,
    raw4,
    raw2,
    raw1,  // rows that are only copied
};

struct DeviceStream {
    const char* values;
    std::int64_t value_episode_stride;  // bytes
    std::int64_t value_row_stride;      // bytes
    const void* times;
    std::int64_t time_episode_stride;  // elements
    std::int64_t time_row_stride;
    const std::int64_t* offsets;  // null unless ragged
    std::int64_t offsets_stride;
    std::int64_t num_episodes;
    std::int64_t num_rows;
    Duration latency;
    Rules rules;
    char* out;
    std::int64_t out_row_stride;     // bytes
    std::int64_t out_target_stride;  // bytes
    Plane valid;
    Plane index;

    // How the targets are cut into blocks: rows_per_block > 1 only where a block takes whole rows.
    std::int64_t first_block;
    std::int64_t tiles_per_row;
    std::int32_t tile;  // targets of one row
    std::int32_t rows_per_block;
    std::int32_t parts;  // blocks that share the row width of one tile

    Method method;           // simple kernel: the only one
    Format format;           // simple kernel
    std::uint32_t num_vecs;  // simple kernel: accesses of one row
};

/// What only the general kernel reads.
struct DeviceChannels {
    RangePlan ranges[max_ranges];
    ChannelDim outer[max_outer];
    ChannelDim inner;
    std::int64_t outer_count;
    double period;
    std::int32_t num_ranges;
    std::int32_t num_outer;
    DType values_dtype;
    DType out_dtype;
};

struct DeviceQuery {
    std::int64_t num_rows;
    std::int64_t num_targets;
    const void* times;
    std::int64_t time_row_stride;
    std::int64_t time_target_stride;
    const void* deltas;
    std::int64_t delta_stride;
    const std::int64_t* episode;
    std::int64_t episode_stride;
};

template <int capacity>
struct DeviceTable {
    DeviceQuery query;
    std::int64_t num_blocks;
    std::int32_t num_streams;
    std::int32_t staged_bytes;  // shared memory for the times of one episode
    DeviceStream streams[capacity];
};

struct GeneralTable {
    DeviceTable<1> table;
    DeviceChannels channels;
};

}  // namespace robocache::align_detail
