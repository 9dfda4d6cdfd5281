// Kernel parameters of align on CUDA, made from a plan, with the launches they belong to.
#pragma once

#include <span>

#include "core/cuda/divisor.hpp"
#include "core/cuda/launch.hpp"
#include "ops/align/cuda/device_stream.hpp"
#include "ops/align/cuda/tuning.hpp"

namespace robocache::align_detail {

// ---- rows of plain memory, moved in words ---------------------------------------------------------------------------

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

/// One stream whose rows are moved in words: times of an episode are contiguous, rows of values too.
struct RowsStream {
    DeviceStream stream;
    char* out;
    std::int64_t out_row_stride;     // bytes
    std::int64_t out_target_stride;  // bytes
    std::uint32_t first_tile;        // of a query row
    std::int32_t tile;               // targets
    std::int32_t parts;              // tiles that share the width of one target
    std::uint32_t num_words;         // of a row
    Divisor by_num_words;
    std::int32_t window_margin;  // rows
    std::int32_t row_bytes;
    Method method;
    Format format;
};

template <int capacity>
struct RowsTable {
    DeviceQuery query;
    std::int64_t first_row;  // query row of the first tile
    std::uint32_t num_tiles;
    std::int32_t num_streams;
    Divisor by_tiles_per_row;  // of all streams

    /// Query rows from first_row on that this launch computes.
    std::int64_t num_rows() const { return num_tiles / by_tiles_per_row.divisor; }
    RowsStream streams[capacity];
};

/// The parameters of align_short.
struct ShortTable {
    RowsTable<1> rows;
    const char* times_end;  // of all episodes
    const char* values_end;
    std::int32_t most_rows;      // of an episode that there is room for
    std::int32_t results_bytes;  // shared memory of a warp: times, later results; then rows
    std::int32_t warp_bytes;
};

// ---- any rows, element by element -----------------------------------------------------------------------------------

/// The channels of a row in memory, and the method of each.
struct DeviceChannels {
    RangePlan ranges[max_ranges];
    ChannelDim outer[TensorView::max_rank];
    ChannelDim inner;
    std::int64_t outer_count;
    std::int32_t num_ranges;
    std::int32_t num_outer;
};

/// How targets are cut into tiles, one for each block: targets of one row of the query, or whole rows.
struct Tiling {
    std::int64_t tiles_per_row;
    std::int32_t targets;  // of one row in a tile
    std::int32_t rows;     // of the query in a tile; above 1 only if a tile takes all targets of a row
};

struct GeneralTable {
    DeviceQuery query;
    DeviceStream stream;
    DeviceChannels channels;
    char* out;
    std::int64_t out_row_stride;     // bytes
    std::int64_t out_target_stride;  // bytes
    Tiling tiling;
    double period;
    DType values_dtype;
    DType out_dtype;
    std::int32_t out_bytes;  // of an element
};

/// The stream whose gradient is added to, and the gradient of its output.
struct BackwardTable {
    DeviceQuery query;
    DeviceStream stream;  // `values` is the gradient that is added to
    DeviceChannels channels;
    std::int64_t num_all;  // targets of all rows
    const char* grad;
    std::int64_t grad_row_stride;     // bytes
    std::int64_t grad_target_stride;  // bytes
    DType grad_dtype;
    const char* inputs;                 // as in StreamPlan
    std::int64_t input_episode_stride;  // bytes
    std::int64_t input_row_stride;      // bytes
    DType inputs_dtype;
    std::int32_t input_bytes;  // of an element
    std::int64_t part_width;   // channels of one part of a row
    std::int32_t parts;
    std::int32_t tile;  // targets
};

// ---- from a plan ----------------------------------------------------------------------------------------------------

/// Linear, previous, next and nearest, the same dtype in and out, rows of plain memory: align_rows takes it.
[[nodiscard]] bool is_simple(const StreamPlan& s);

/// Of simple streams, many narrow rows, contiguous in source and output, whose episodes fit into the shared memory of a
/// warp and are not read for a few targets only; linear, one target per query time: align_short takes it.
[[nodiscard]] bool is_short(const CallPlan& plan, const StreamPlan& s, std::int64_t time_bytes);

// The tables of align_rows and align_short are for query rows from `first_row` on, as many as a grid can number.

template <int capacity>
[[nodiscard]] Launch make_table(const CallPlan& plan, std::span<const StreamPlan* const> streams,
                                RowsTable<capacity>& table);
[[nodiscard]] Launch make_table(const CallPlan& plan, const StreamPlan& s, std::int64_t time_bytes, ShortTable& table);
[[nodiscard]] Launch make_table(const CallPlan& plan, const StreamPlan& s, GeneralTable& table);
[[nodiscard]] Launch make_table(const CallPlan& plan, const StreamPlan& s, BackwardTable& table);

// ---- kernels --------------------------------------------------------------------------------------------------------

/// The kernels for one type of time.
struct AlignKernels {
    void (*few_rows)(RowsTable<few_streams>);
    void (*many_rows)(RowsTable<max_streams>);
    void (*general)(GeneralTable);
    // Narrow rows of short episodes, of any width and of seven elements, the joints of an arm.
    void (*short_f32)(ShortTable);
    void (*short_f16)(ShortTable);
    void (*short_f16x7)(ShortTable);
    void (*short_bf16)(ShortTable);
    void (*short_bf16x7)(ShortTable);
};

struct BackwardKernels {
    void (*f32)(BackwardTable);
    void (*f64)(BackwardTable);
};

// One source file each, since they take long to compile.
[[nodiscard]] AlignKernels align_kernels_f32();
[[nodiscard]] AlignKernels align_kernels_f64();
[[nodiscard]] AlignKernels align_kernels_i64();

[[nodiscard]] BackwardKernels backward_kernels(DType times);

}  // namespace robocache::align_detail
