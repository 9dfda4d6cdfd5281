// Kernel parameters of align_rows and align_narrow, and how targets are divided among warps.
#pragma once

#include "ops/align/cuda/device_stream.cuh"
#include "ops/align/cuda/tuning.hpp"
#include "ops/align/cuda/words.cuh"

namespace robocache::align_detail {

/// One target in shared memory. b null: row a as it is; a null too: the weight itself, 0 or NaN.
struct PlacedRow {
    const char* a;
    const char* b;
    union {  // converted once here, not once per word
        double weight_f64;
        float weight_f32;
    };

    template <class Compute>
    __device__ Compute weight() const {
        if constexpr (sizeof(Compute) == 8) {
            return weight_f64;
        } else {
            return weight_f32;
        }
    }
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
    std::uint32_t num_tiles;
    std::int32_t num_streams;
    Divisor by_tiles_per_row;  // of all streams
    RowsStream streams[capacity];
};

/// The targets of a warp, all of one query row and one stream.
struct RowsTile {
    std::int64_t row;           // b
    std::int64_t first_target;  // j
    std::int32_t count;
    std::int32_t part;
    std::int32_t stream;
};

/// Tiles are numbered query row by query row, and there stream by stream, so that the columns of an output row are
/// written at about the same time.
template <int capacity>
__device__ __forceinline__ RowsTile rows_tile(const RowsTable<capacity>& table, std::uint32_t number) {
    RowsTile tile{0, 0, 0, 0, 0};
    const std::uint32_t row = table.by_tiles_per_row.divide(number);
    number -= row * table.by_tiles_per_row.divisor;
    if constexpr (capacity > 1) {
        while (tile.stream + 1 < table.num_streams && number >= table.streams[tile.stream + 1].first_tile) {
            ++tile.stream;
        }
        number -= table.streams[tile.stream].first_tile;
    }
    const RowsStream& s = table.streams[tile.stream];
    if (s.parts > 1) {
        const std::uint32_t index = number / s.parts;
        tile.part = static_cast<std::int32_t>(number - index * s.parts);
        number = index;
    }
    tile.row = row;
    tile.first_target = static_cast<std::int64_t>(number) * s.tile;
    const std::int64_t left = table.query.num_targets - tile.first_target;
    tile.count = left < s.tile ? static_cast<std::int32_t>(left) : s.tile;
    return tile;
}

template <class Compute>
__device__ __forceinline__ PlacedRow placed_row(const RowsStream& s, const Sample& sample, const char* values) {
    PlacedRow placed{nullptr, nullptr, {}};
    double weight = 0.0;
    if (sample.kind == Kind::nan) {
        weight = __longlong_as_double(0x7ff8000000000000LL);
    } else if (sample.kind != Kind::zero) {
        placed.a = values + sample.rows[0] * s.stream.value_row_stride;
        if (sample.kind == Kind::blend) {
            placed.b = values + sample.rows[1] * s.stream.value_row_stride;
            weight = sample.weight;
        }
    }
    if constexpr (sizeof(Compute) == 8) {
        placed.weight_f64 = weight;
    } else {
        placed.weight_f32 = static_cast<float>(weight);
    }
    return placed;
}

}  // namespace robocache::align_detail
