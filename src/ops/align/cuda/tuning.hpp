// Launch shapes of align on CUDA. The measurements behind them are in docs/decisions/0006.
#pragma once

#include <cstdint>

namespace robocache::align_detail {

constexpr int block_threads = 256;
constexpr int warps_per_block = block_threads / 32;
constexpr int staged_times = 256;     // at most, of one warp, in shared memory
constexpr int narrow_row_bytes = 64;  // at most, of rows that one lane moves alone
constexpr int max_streams = 16;       // in one launch
constexpr int max_ranges = 16;        // of one stream

/// A warp takes up to 32 targets and about this many words of their rows; fewer where that would leave SMs without
/// work.
struct RowsTuning {
    static constexpr std::int64_t words_per_warp = 512;
    static constexpr std::int64_t words_per_warp_of_many = 384;  // with more warps than there is work for at once
    static constexpr std::int64_t least_words_per_warp = 128;
    std::int64_t enough_warps;                            // of a call
    std::int64_t enough_blocks;                           // of a call: with fewer tiles, blocks have fewer warps
    std::int64_t one_wave;                                // warps that fit at once
    static constexpr std::int64_t ahead_block_warps = 2;  // blocks of the next call fit beside those that run
    static constexpr std::int64_t few_targets = 16;       // query rows with at most this many share a warp
    static constexpr std::int64_t general_tile = 512;     // elements that a block of the general kernel writes
};

constexpr RowsTuning rows_tuning(std::int64_t num_sms) {
    return {.enough_warps = 16 * num_sms, .enough_blocks = 4 * num_sms, .one_wave = 32 * num_sms};
}

}  // namespace robocache::align_detail
