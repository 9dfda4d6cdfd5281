// A segment of a scan: MCUs that one thread decodes, from an entry point on.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/huffman.hpp"

namespace robocache::decode_detail {

/// The blocks of an MCU in the order of the scan, 6 bits each: component | column << 2 | row << 4.
struct McuPattern {
    std::uint64_t blocks;
    int num_blocks;
};

ROBOCACHE_HD McuPattern pattern_of(const PictureRecord& picture) {
    McuPattern pattern{0, 0};
    for (int c = 0; c < picture.num_components; ++c) {
        for (int i = 0; i < picture.h[c] * picture.v[c] && pattern.num_blocks < 10; ++i) {
            const int code = c | (i % picture.h[c]) << 2 | (i / picture.h[c]) << 4;
            pattern.blocks |= static_cast<std::uint64_t>(code) << (6 * pattern.num_blocks++);
        }
    }
    return pattern;
}

/// DC predictors by component. No array: a GPU keeps them in registers.
struct PredictorState {
    int first, second, third;

    [[nodiscard]] ROBOCACHE_HD int get(int c) const { return c == 0 ? first : (c == 1 ? second : third); }
    ROBOCACHE_HD void set(int c, int value) {
        if (c == 0) first = value;
        if (c == 1) second = value;
        if (c == 2) third = value;
    }
};

struct SegmentRange {
    std::uint32_t begin, end;  // MCUs
    std::uint32_t restart_interval;
};

/// What a segment ended with: the first fault, and the MCU that has it.
struct SegmentEnd {
    BlockFault fault;
    bool is_restart_missing;
    std::uint32_t mcu;
};

/// Decodes the MCUs of a range. For each MCU: visitor.begin_mcu(mcu, reader, predictors); for each of its blocks:
/// visitor.begin_block(component, column, row), visitor.decode(component, reader, predictor) as decode_block does it,
/// visitor.end_block(). After a fault the remaining blocks are flat: visitor.put(0, predictor) instead of decode. Or it
/// ends there, if Visitor::stops_at_faults.
///
/// reader.restart(): continues after the restart marker that must follow the bits of the current byte; its number (0 to
/// 7), or -1 where there is none.
template <class Reader, class Visitor>
ROBOCACHE_HD SegmentEnd decode_segment(Reader& reader, const McuPattern& pattern, PredictorState predictors,
                                       const SegmentRange& range, Visitor& visitor) {
    SegmentEnd end{BlockFault::none, false, range.end};
    std::uint32_t until_restart =
        range.restart_interval == 0 ? 0xFFFFFFFFU : range.restart_interval - range.begin % range.restart_interval;
    for (std::uint32_t mcu = range.begin; mcu < range.end; ++mcu) {
        if (until_restart == 0) {
            until_restart = range.restart_interval;
            const int marker = reader.restart();
            const bool is_expected = marker == static_cast<int>((mcu / range.restart_interval - 1) & 7);
            if (!is_expected && end.fault == BlockFault::none) end = {BlockFault::out_of_data, true, mcu};
            predictors = {0, 0, 0};
        }
        if (Visitor::stops_at_faults && end.fault != BlockFault::none) break;
        --until_restart;
        visitor.begin_mcu(mcu, reader, predictors);
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
        for (int b = 0; b < pattern.num_blocks; ++b) {
            const int code = static_cast<int>(pattern.blocks >> (6 * b)) & 63;
            const int c = code & 3;
            visitor.begin_block(c, (code >> 2) & 3, code >> 4);
            int predictor = predictors.get(c);
            if (end.fault == BlockFault::none) {
                const BlockFault fault = visitor.decode(c, reader, predictor);
                if (fault != BlockFault::none) end = {fault, false, mcu};
                predictors.set(c, predictor);
            } else if constexpr (!Visitor::stops_at_faults) {
                visitor.put(0, predictor);
            }
            visitor.end_block();
        }
    }
    return end;
}

}  // namespace robocache::decode_detail
