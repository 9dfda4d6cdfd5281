// The work of a call on a GPU: which segments and which tiles belong to which picture.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decode/contract/finish.hpp"
#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/record.hpp"
#include "ops/decode/contract/resample.hpp"
#include "ops/decode/cuda/tuning.hpp"

namespace robocache::decode_detail {

/// One picture. Everything a kernel needs that decides about addresses comes from the host, none of it from the index
/// on the device.
struct DeviceJob {
    PictureRecord record;
    std::uint32_t row;   // in offsets
    std::uint32_t item;  // in the output
    std::uint16_t box[4];
    std::uint32_t first_slot;   // of the segment kernel
    std::uint32_t first_tile;   // of the pixel kernel
    std::uint32_t first_block;  // of 64 bytes in the planes
    std::uint16_t tile_width;   // 0: without tiles, pixel by pixel
    std::uint16_t tile_height;
    std::uint32_t flip;
    Factors factors;

    [[nodiscard]] ROBOCACHE_HD Box crop() const { return {box[0], box[1], box[2], box[3]}; }
};
static_assert(sizeof(DeviceJob) == 112);

struct CudaSchedule {
    std::vector<DeviceJob> jobs;  // JPEG first, those with the same tables side by side
    std::uint32_t num_jpeg = 0;
    std::uint32_t num_slots = 0;  // a multiple of segment_threads
    std::uint32_t num_tiles = 0;
    std::uint32_t num_tables = 0;  // most Huffman tables of one picture
    std::uint64_t num_blocks = 0;  // of 64 bytes
    bool has_untiled = false;
    int tile_bytes = 0;  // of shared memory
};

/// Shared memory of one tile: weights, source rows in color, rows after the horizontal pass. Positions in bytes.
struct TileLayout {
    int taps_x, taps_y;
    int region_width, region_height;  // source pixels, at most; the width is a multiple of 4
    int weights_x, weights_y, first_x, first_y, chunk, narrow, end;
};

ROBOCACHE_HD int extent_of(const ResampleAxis& axis, int tile) {
    const int needed = static_cast<int>(tile * axis.scale + 2 * axis.support) + 3;
    return needed < axis.in ? needed : axis.in;
}

ROBOCACHE_HD TileLayout tile_layout(const ResampleAxis& x, const ResampleAxis& y, int width, int height) {
    TileLayout layout{};
    layout.taps_x = max_taps(x);
    layout.taps_y = max_taps(y);
    layout.region_width = (extent_of(x, width) + 7) / 4 * 4;  // begins and ends at a multiple of 4
    layout.region_height = extent_of(y, height);
    constexpr int word = 4;
    int at = 0;
    const auto take = [&](int bytes) {
        const int begin = at;
        at += (bytes + 15) / 16 * 16;
        return begin;
    };
    layout.weights_x = take(width * layout.taps_x * word);
    layout.weights_y = take(height * layout.taps_y * word);
    layout.first_x = take(2 * width * word);
    layout.first_y = take(2 * height * word);
    layout.chunk = take(chunk_rows * layout.region_width * word);
    layout.narrow = take(layout.region_height * width * word);
    layout.end = at;
    return layout;
}

}  // namespace robocache::decode_detail
