// Frames of video to RGB: planes of 8-bit 4:2:0 samples, in the integer arithmetic of swscale's default conversion on
// x86 (yuv420p to rgb24), so that a frame equals what FFmpeg, PyAV and LeRobot return for it.
//
//   bytes of a frame: Y (height, width) | U (ceil(height / 2), ceil(width / 2)) | V, the same size, without padding
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/decode/contract/color.hpp"
#include "ops/decode/contract/record.hpp"

namespace robocache::decode_detail {

/// Numbers of one format: 13 fractional bits for factors, 3 for offsets.
struct YuvFactors {
    int y_offset, y, r_v, g_u, g_v, b_u;
};

/// 16 fractional bits to 13, rounded to nearest.
ROBOCACHE_HD constexpr int to_13_bits(int x) {
    return (x + 4) >> 3;
}

/// Factors of the chroma samples, 16 fractional bits, limited range: red of V, blue of U, green of U, green of V.
struct ChromaFactors {
    int r_v, b_u, g_u, g_v;
};

ROBOCACHE_HD constexpr ChromaFactors chroma_factors(YuvMatrix matrix) {
    switch (matrix) {
        case YuvMatrix::bt709: return {117489, 138438, -13975, -34925};
        case YuvMatrix::fcc: return {104448, 132798, -24759, -53109};
        case YuvMatrix::smpte240m: return {117579, 136230, -16907, -35559};
        case YuvMatrix::bt2020: return {110013, 140363, -12277, -42626};
        default: return {104597, 132201, -25675, -53279};  // BT.601
    }
}

/// The factor where samples have the whole range; rounded toward zero.
ROBOCACHE_HD constexpr int full_range(int x) {
    return x * 224 / 255;
}

ROBOCACHE_HD constexpr YuvFactors yuv_factors(YuvMatrix matrix, bool is_full_range) {
    const ChromaFactors c = chroma_factors(matrix);
    if (!is_full_range) {
        constexpr int y = (1 << 16) * 255 / 219;
        return {16 << 3, to_13_bits(y), to_13_bits(c.r_v), to_13_bits(c.g_u), to_13_bits(c.g_v), to_13_bits(c.b_u)};
    }
    return {0,
            1 << 13,
            to_13_bits(full_range(c.r_v)),
            to_13_bits(full_range(c.g_u)),
            to_13_bits(full_range(c.g_v)),
            to_13_bits(full_range(c.b_u))};
}

/// Each product is cut to whole numbers before they are added, as the high half of a 16-bit multiplication.
ROBOCACHE_HD Rgb rgb_of_yuv(const YuvFactors& f, int y, int u, int v) {
    const int luma = (((y << 3) - f.y_offset) * f.y) >> 16;
    const int cb = (u - 128) * 8;
    const int cr = (v - 128) * 8;
    return {clamp_8(luma + ((cr * f.r_v) >> 16)), clamp_8(luma + ((cb * f.g_u) >> 16) + ((cr * f.g_v) >> 16)),
            clamp_8(luma + ((cb * f.b_u) >> 16))};
}

/// Where the planes of a frame are, in samples from its first byte.
struct YuvLayout {
    std::int64_t width, half_width, u, v, end;

    ROBOCACHE_HD YuvLayout(int frame_width, int frame_height)
        : width(frame_width),
          half_width((std::int64_t{frame_width} + 1) / 2),
          u(width * frame_height),
          v(u + half_width * ((std::int64_t{frame_height} + 1) / 2)),
          end(v + (v - u)) {}
};

}  // namespace robocache::decode_detail
