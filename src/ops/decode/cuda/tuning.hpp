// Launch constants of decode on CUDA. Shared memory decides how many blocks an SM holds, so sizes are chosen together.
#pragma once

#include <cstdint>

namespace robocache::decode_detail {

/// Entropy decoding: one thread per segment. 128 threads have 16 KiB of coefficients and, mostly, 4 Huffman tables of
/// 2.4 KiB: 8 blocks on an SM with 227 KiB.
inline constexpr int segment_threads = 128;
inline constexpr int segment_blocks_per_sm = 8;

/// Pixels: one block per tile of the output.
inline constexpr int warp_threads = 32;
inline constexpr int pixel_threads = 256;
inline constexpr int pixel_blocks_per_sm = 4;
inline constexpr int chunk_rows = 16;               // source rows in color at a time
inline constexpr int tile_shared_bytes = 48 << 10;  // a tile that needs more becomes smaller

struct TileSize {
    int width, height;
};
/// Tried in this order; none is wider than a warp.
inline constexpr TileSize tile_sizes[] = {{32, 32}, {32, 16}, {32, 8}, {16, 8}, {8, 8}, {8, 4}, {4, 4}, {2, 2}, {1, 1}};

/// Bytes of jobs that one launch carries as a kernel parameter: CUDA 12.1 and later take 32,764.
inline constexpr int job_chunk_bytes = 32'000;

}  // namespace robocache::decode_detail
