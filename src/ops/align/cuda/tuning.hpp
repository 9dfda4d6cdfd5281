// Launch shapes of align on CUDA. The measurements behind them are in docs/decisions/0006.
#pragma once

#include <cstdint>

namespace robocache::align_detail {

constexpr int block_threads = 256;
constexpr int warps_per_block = block_threads / 32;
constexpr int staged_times = 256;  // at most, of one warp, in shared memory
constexpr int few_streams = 4;     // in one launch with few parameters
constexpr int max_streams = 16;    // in one launch
constexpr int max_ranges = 16;     // of one stream

/// A warp takes up to 32 targets and about this many words of their rows; fewer where that would leave SMs without
/// work.
struct RowsTuning {
    static constexpr std::int64_t words_per_warp = 512;
    static constexpr std::int64_t words_per_warp_of_many = 384;  // with more warps than there is work for at once
    static constexpr std::int64_t least_words_per_warp = 128;
    static constexpr std::int64_t warps = 4;           // of a block
    static constexpr std::int64_t general_tile = 512;  // elements that a block of the general kernel writes
    std::int64_t enough_warps;                         // of a call
    std::int64_t enough_blocks;                        // of a call: with fewer tiles, blocks have fewer warps
};

constexpr RowsTuning rows_tuning(std::int64_t num_sms) {
    return {.enough_warps = 16 * num_sms, .enough_blocks = 4 * num_sms};
}

/// Narrow rows of short episodes, which a warp copies to shared memory as a whole.
struct ShortTuning {
    static constexpr std::int64_t row_bytes = 64;          // at most
    static constexpr std::int64_t targets = 64;            // of a warp
    static constexpr int warps = 4;                        // of a block
    static constexpr std::int64_t room_bytes = 12 * 1024;  // of a warp: four of them are a block's 48 KiB
    static constexpr double rows_per_target = 2.5;         // at most
};

/// The gradient: a block takes up to block_threads targets and about this many elements.
struct BackwardTuning {
    static constexpr std::int64_t block_work = 4096;  // enough of them to keep a block's loads in flight
    static constexpr std::int64_t least_work = 512;   // where more would leave SMs without work
    static constexpr std::int64_t blocks_per_sm = 4;
};

}  // namespace robocache::align_detail
