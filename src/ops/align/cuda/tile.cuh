// How the targets of align_rows and align_short are divided among warps, and what a warp moves.
#pragma once

#include "ops/align/cuda/tables.hpp"
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

    __device__ __forceinline__ void set_weight(double weight, bool in_double) {
        if (in_double) {
            weight_f64 = weight;
        } else {
            weight_f32 = static_cast<float>(weight);
        }
    }
    template <class Compute>
    __device__ __forceinline__ Compute weight() const {
        if constexpr (sizeof(Compute) == 8) {
            return weight_f64;
        } else {
            return weight_f32;
        }
    }

    /// From a sample of one row or of two blended ones.
    __device__ __forceinline__ void set(const Sample& sample, const char* values, std::int64_t row_stride,
                                        bool in_double) {
        if (sample.kind == Kind::nan) return set_weight(__longlong_as_double(0x7ff8000000000000LL), in_double);
        if (sample.kind == Kind::zero) return;
        a = values + sample.rows[0] * row_stride;
        if (sample.kind != Kind::blend) return;
        b = values + sample.rows[1] * row_stride;
        set_weight(sample.weight, in_double);
    }
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
    tile.row = table.first_row + row;
    tile.first_target = static_cast<std::int64_t>(number) * s.tile;
    const std::int64_t left = table.query.num_targets - tile.first_target;
    tile.count = left < s.tile ? static_cast<std::int32_t>(left) : s.tile;
    return tile;
}

}  // namespace robocache::align_detail
