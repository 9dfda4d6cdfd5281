// Where things are in a JPEG picture: MCUs, components, the part under a crop, and the segments to decode for it.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/decode/contract/record.hpp"

namespace robocache::decode_detail {

inline constexpr int block_size = 8;

ROBOCACHE_HD int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}
ROBOCACHE_HD int smaller(int a, int b) {
    return a < b ? a : b;
}
ROBOCACHE_HD int larger(int a, int b) {
    return a > b ? a : b;
}
ROBOCACHE_HD int clamped(int x, int low, int high) {
    return x < low ? low : (x > high ? high : x);
}

/// Pixels [x0, x1) x [y0, y1) of a picture.
struct Box {
    std::int32_t x0, y0, x1, y1;
};

/// How libjpeg-turbo brings a component to full size.
enum class Upsampling : std::uint8_t { none, h2v1, h2v2, h1v2, replicate };

/// One component: its samples, and how many pixels one of them covers.
struct Component {
    int width, height;       // samples that belong to the picture
    int scale_x, scale_y;    // pixels per sample
    int blocks_x, blocks_y;  // of one MCU
    Upsampling upsampling;
};

struct Geometry {
    int width, height;
    int num_components;
    int mcu_width, mcu_height;  // pixels
    int mcus_x, mcus_y;
};

ROBOCACHE_HD Geometry geometry_of(const PictureRecord& picture) {
    int h_max = 1;
    int v_max = 1;
    for (int c = 0; c < picture.num_components; ++c) {
        h_max = larger(h_max, picture.h[c]);
        v_max = larger(v_max, picture.v[c]);
    }
    const int mcu_width = h_max * block_size;
    const int mcu_height = v_max * block_size;
    return {picture.width,
            picture.height,
            picture.num_components,
            mcu_width,
            mcu_height,
            ceil_div(picture.width, mcu_width),
            ceil_div(picture.height, mcu_height)};
}

ROBOCACHE_HD Component component_of(const PictureRecord& picture, const Geometry& geometry, int c) {
    Component result{};
    result.blocks_x = picture.h[c];
    result.blocks_y = picture.v[c];
    const int h_max = geometry.mcu_width / block_size;
    const int v_max = geometry.mcu_height / block_size;
    result.scale_x = h_max / picture.h[c];
    result.scale_y = v_max / picture.v[c];
    result.width = ceil_div(picture.width, result.scale_x);
    result.height = ceil_div(picture.height, result.scale_y);
    const bool is_wide = result.width > 2;
    if (result.scale_x == 1 && result.scale_y == 1) {
        result.upsampling = Upsampling::none;
    } else if (result.scale_x == 2 && result.scale_y == 1 && is_wide) {
        result.upsampling = Upsampling::h2v1;
    } else if (result.scale_x == 2 && result.scale_y == 2 && is_wide) {
        result.upsampling = Upsampling::h2v2;
    } else if (result.scale_x == 1 && result.scale_y == 2) {
        result.upsampling = Upsampling::h1v2;
    } else {
        result.upsampling = Upsampling::replicate;
    }
    return result;
}

/// The MCUs [x0, x1) x [y0, y1) that the pixels of a box depend on: upsampling reads one sample beyond it.
ROBOCACHE_HD Box region_of(const Geometry& geometry, const Box& box) {
    const int margin_x = geometry.mcu_width > block_size ? 2 * geometry.mcu_width / block_size : 0;
    const int margin_y = geometry.mcu_height > block_size ? 2 * geometry.mcu_height / block_size : 0;
    return {larger(box.x0 - margin_x, 0) / geometry.mcu_width, larger(box.y0 - margin_y, 0) / geometry.mcu_height,
            smaller(ceil_div(box.x1 + margin_x, geometry.mcu_width), geometry.mcus_x),
            smaller(ceil_div(box.y1 + margin_y, geometry.mcu_height), geometry.mcus_y)};
}

/// The segments of a picture that cover a region of MCUs. Segment s is the MCUs [s * every, (s + 1) * every).
///
///   per_row == 0    all segments from `first` on
///   per_row > 0     slot i is segment i % per_row of those that meet row i / per_row of the region; it may be none
struct Segments {
    std::uint32_t first;
    std::uint32_t per_row;
    std::uint32_t num_slots;
};

ROBOCACHE_HD Segments segments_of(const Geometry& geometry, const Box& region, std::uint32_t every) {
    const auto width = static_cast<std::uint32_t>(geometry.mcus_x);
    const auto rows = static_cast<std::uint32_t>(region.y1 - region.y0);
    const std::uint32_t begin = static_cast<std::uint32_t>(region.y0) * width + static_cast<std::uint32_t>(region.x0);
    const std::uint32_t last =
        static_cast<std::uint32_t>(region.y1 - 1) * width + static_cast<std::uint32_t>(region.x1 - 1);
    const std::uint32_t num_between = last / every - begin / every + 1;
    const std::uint32_t per_row = (static_cast<std::uint32_t>(region.x1 - region.x0) + every - 2) / every + 1;
    if (num_between <= rows * per_row) return {begin / every, 0, num_between};
    return {0, per_row, rows * per_row};
}

/// The segment of a slot, or -1.
ROBOCACHE_HD std::int64_t segment_of_slot(const Segments& segments, const Geometry& geometry, const Box& region,
                                          std::uint32_t every, std::uint32_t slot) {
    if (segments.per_row == 0) return std::int64_t{segments.first} + slot;
    const std::int64_t row = region.y0 + static_cast<std::int64_t>(slot / segments.per_row);
    const std::int64_t row_begin = row * geometry.mcus_x + region.x0;
    const std::int64_t segment = row_begin / every + slot % segments.per_row;
    if (segment * every >= row * geometry.mcus_x + region.x1) return -1;
    // A segment that also meets the row before it was counted there.
    if (row > region.y0 && segment * every < (row - 1) * geometry.mcus_x + region.x1) return -1;
    return segment;
}

}  // namespace robocache::decode_detail
