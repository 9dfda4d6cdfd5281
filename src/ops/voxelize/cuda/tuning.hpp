// Launch shapes and limits of voxelize on CUDA. The measurements behind them are in docs/decisions/0007.
#pragma once

#include <cstdint>

namespace robocache::voxelize_detail {

// ---- which path -----------------------------------------------------------------------------------------------------

constexpr std::int64_t most_slot_points = 1 << 24;   // with more, slots are no faster and need more memory
constexpr std::int64_t own_bytes = 200 * 1024;       // of shared memory, for the bits of one cloud
constexpr std::int64_t own_clouds = 64;              // fewer leave SMs without work
constexpr std::int64_t most_own_parts = 4;           // blocks of a cloud
constexpr std::int64_t most_exact_pixels = 1 << 24;  // of a row or a column: their numbers are exact as floats
constexpr std::int64_t most_sparse_words = 1 << 24;  // of bits; larger sparse grids are sorted
constexpr std::int64_t own_shared_bytes = 6 * 1024;  // at most, of static shared memory of any kernel
constexpr int own_threads = 1024;

// ---- bins -----------------------------------------------------------------------------------------------------------

constexpr int max_bins = 8192;                 // of one pass; larger grids take several
constexpr int wide_bins = 1024;                // up to this number, keys are read 16 bytes at a time
constexpr std::int64_t enough_bins = 256;      // fewer leave SMs without work, more have short spans
constexpr int least_bin_bits = 12;             // a bin has 2^bin_bits cells
constexpr int most_feature_bin_bits = 14;      // ... of features
constexpr int most_count_bin_bits = 15;        // ... of counters
constexpr int most_mark_bin_bits = 16;         // ... of bits; keys have 16 bits
constexpr std::int64_t small_cloud = 2 << 20;  // points; smaller clouds have smaller tiles
constexpr int sort_threads = 512;
constexpr int points_per_thread = 8;            // of sort_tiles
constexpr int points_per_thread_of_many = 16;   // ... in clouds of more than small_cloud points
constexpr std::int64_t sort_blocks_per_sm = 2;  // ... there, where blocks take several tiles
constexpr int most_fill_threads = 1024;         // of a block that fills a bin

/// Threads for the cells of a bin; counters of the largest bins leave no room for a second block on an SM.
constexpr int fill_bin_threads(std::int64_t cells, bool marks) {
    if (cells >= 1 << 15 && !marks) return most_fill_threads;
    return cells >= 1 << 13 ? 512 : 256;
}

// ---- features -------------------------------------------------------------------------------------------------------

constexpr int list_threads = 512;
constexpr int feature_threads = 256;
constexpr std::uint32_t warp_cell = 16;     // points from which on a warp reduces a cell
constexpr std::uint32_t block_cell = 4096;  // ... the whole block

// ---- bulk copies of points ------------------------------------------------------------------------------------------

constexpr int part_points = 128;  // that a warp takes at a time
constexpr int part_bytes = part_points * 12;
constexpr int ring_parts = 3;  // of each warp, in flight or waiting

// ---- slots ----------------------------------------------------------------------------------------------------------

/// A bound for arrays in shared memory: with more bins, three blocks of sort_slots do not fit on an SM of 228 KiB.
constexpr int most_slot_bins = 132;
constexpr std::uint32_t row_slots = 64;  // twice as many as an even spread over most_slot_bins fills
constexpr int slot_threads = 512;
constexpr int most_slot_parts = 31;  // of part_points, in a tile
constexpr int most_slot_tile = most_slot_parts * part_points;
constexpr int slot_span_pitch = most_slot_tile + 448;  // keys: spans begin at multiples of 8, at most 63 bins have one
constexpr std::int64_t one_wave = 256;                 // tiles: two blocks per SM
constexpr std::int64_t slot_bytes_of_two = 78000;      // of shared memory: two blocks of sort_slots per SM, no more
constexpr int slot_fill_threads = 1024;
constexpr std::uint32_t most_slot_cells = 0x8000 - 32;  // of a bin

/// One bin per SM, or as many on every SM; with fewer than 100, an even spread would overflow the rows.
constexpr int num_slot_bins(std::int64_t num_sms) {
    const std::int64_t whole = num_sms >= most_slot_bins ? most_slot_bins : most_slot_bins / num_sms * num_sms;
    return whole >= 100 ? static_cast<int>(whole) : most_slot_bins;
}

// ---- depth images ---------------------------------------------------------------------------------------------------

constexpr int depth_threads = 128;
constexpr int depth_blocks_per_sm = 8;
constexpr int depth_rows = 8;    // of a thread's strip, at most 32
constexpr int recent_bits = 11;  // of the table of cells that a block has marked recently
constexpr int queue_size = 16;   // cells of a thread that wait to be marked

}  // namespace robocache::voxelize_detail
