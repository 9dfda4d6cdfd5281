// What the CUDA kernels of align are told: one table of streams, passed by value as a kernel parameter.
#pragma once

#include <cstdint>

#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::align_detail {

constexpr int block_threads = 256;
constexpr int warp_size = 32;
constexpr int warps_per_block = block_threads / warp_size;
constexpr int staged_times = 256;     // at most, of one warp, in shared memory
constexpr int narrow_row_bytes = 64;  // at most, of rows that one lane moves alone
constexpr int max_streams = 16;       // in one launch
constexpr int max_ranges = 16;        // of one stream
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

/// n / divisor for n < 2^31 by one multiplication, with constants from the host.
struct Divisor {
    std::uint32_t divisor = 1;
    std::uint32_t magic = 0;
    std::uint32_t shift = 0;

    Divisor() = default;
    explicit Divisor(std::uint32_t d) : divisor(d) {
        while ((std::uint64_t{1} << shift) < d) ++shift;
        // ceil(2^(31 + shift) / d) < 2^32, and exact for every n < 2^31 (Granlund and Montgomery).
        magic = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + d - 1) / d);
    }

#ifdef __CUDACC__
    __device__ std::uint32_t divide(std::uint32_t n) const {
        return divisor == 1 ? n : __umulhi(2 * n, magic) >> shift;
    }
#endif
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
    Duration tolerance;
    Rules rules;
    char* out;
    std::int64_t out_row_stride;     // bytes
    std::int64_t out_target_stride;  // bytes
    Plane valid;
    Plane index;

    // How the targets are cut into tiles: num_rows > 1 only where a tile takes whole rows.
    std::int64_t first_tile;
    std::int64_t tiles_per_row;
    std::int32_t tile;  // targets of one row
    std::int32_t rows_per_tile;
    Divisor by_tiles_per_row;
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
    std::int64_t num_tiles;
    std::int32_t num_streams;
    DeviceStream streams[capacity];
};

struct GeneralTable {
    DeviceTable<1> table;
    DeviceChannels channels;
};

}  // namespace robocache::align_detail
