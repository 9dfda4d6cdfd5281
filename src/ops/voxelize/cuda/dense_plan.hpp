// Dense grids on CUDA: which path a plan takes and how its workspace is divided. Host code only.
#pragma once

#include <vector_types.h>

#include "core/cuda/workspace.hpp"
#include "ops/voxelize/contract/plan.hpp"

namespace robocache::voxelize_detail {

/// Occupancy without counts: a bit for each cell is enough.
inline bool has_marks_only(const DensePlan& plan) {
    return plan.reduction == Reduction::occupancy && !plan.wants_counts;
}

/// Whether cells can be found without divisions: Note [Quick cells].
[[nodiscard]] bool has_quick_cells(const GridPlan& grid);

/// Bytes of dynamic shared memory that a block of any kernel may have: 221 KiB on an H200, 93 KiB on compute capability
/// 12.0.
[[nodiscard]] std::int64_t most_shared();

[[nodiscard]] DensePath path_of(const DensePlan& plan);

// ---- bins -----------------------------------------------------------------------------------------------------------

/// The tiles of points after sorting. A bin's keys in a tile begin at a multiple of `unit`.
struct SortedTiles {
    std::int64_t num_tiles;
    std::int32_t tile;   // points, at most 8192
    std::int32_t pitch;  // keys of a tile, those between the bins included; less than 2^16
    std::int32_t unit;   // keys of 16 bytes, or 1
    std::int32_t num_bins;
    std::int32_t bin_bits;
    std::int32_t bin_keys;  // of a bin in a tile, if points are spread evenly
    std::uint32_t* spans;   // [num_bins][num_tiles]: the first of a bin's keys, and above 16 bits how many
    void* keys;             // [num_tiles][pitch]: u16 cell in the bin, or u32 with the point in the tile above it
};

struct BinSpace {
    SortedTiles tiles{};
    std::int64_t num_bins = 0;  // of all passes
    // features only
    std::uint32_t* points = nullptr;  // of all bins; those of a bin in order of their cells
    std::uint32_t* begins = nullptr;  // of each bin in that list
    std::uint32_t* ends = nullptr;    // of each cell
    std::uint32_t* listed = nullptr;  // points so far; sort_tiles clears it
};

[[nodiscard]] BinSpace cut_bins(const DensePlan& plan, Cutter& cutter);

// ---- slots ----------------------------------------------------------------------------------------------------------

struct SlotTiles {
    std::int32_t num_tiles;
    std::int32_t parts;  // of a tile
    std::int32_t num_bins;
    std::uint32_t bin_cells;  // a multiple of 32
    std::uint32_t to_bin;     // 2^32 / (bin_cells / 32), rounded up
    uint4* rows;              // [num_bins][num_tiles][row_slots / 8]: keys, or 0xffff
    std::uint16_t* spans;     // [num_tiles][slot_span_pitch]
};

[[nodiscard]] SlotTiles cut_slots(const DensePlan& plan, Cutter& cutter);

}  // namespace robocache::voxelize_detail
