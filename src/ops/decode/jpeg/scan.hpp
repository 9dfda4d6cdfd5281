// Reads a scan from its first to its last MCU: finds its faults and its entry points.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/decode/contract/record.hpp"
#include "ops/decode/contract/segment.hpp"
#include "ops/decode/jpeg/markers.hpp"
#include "ops/decode/jpeg/reader.hpp"
#include "ops/decode/jpeg/tables.hpp"

namespace robocache::decode_detail {

struct EntryPoints {
    std::vector<std::uint32_t> bits;  // as in IndexView::bits
    std::vector<Predictors> predictors;
};

/// The entry points of a scan, one every picture.every MCUs. Throws PictureFault for a truncated or corrupt scan.
/// `plain`: memory for its bytes.
[[nodiscard]] EntryPoints scan_entries(Bytes picture, const PictureRecord& record, const PictureTables& tables,
                                       PlainBytes& plain);

/// The fault that ended a segment.
[[nodiscard]] PictureFault fault_of(const SegmentEnd& end, std::uint32_t num_mcus, std::uint32_t position);

/// What the number of entry points of a picture depends on.
struct ScanSize {
    std::uint32_t num_bytes, num_mcus, blocks_per_mcu;
};

/// The work of a segment such that records and entry points of these pictures take at most 3 % of their bytes. All have
/// about the same: on a GPU the longest segment decides. The unit is the time that one byte takes.
[[nodiscard]] std::uint64_t work_per_entry(std::span<const ScanSize> scans);
/// MCUs per entry point.
[[nodiscard]] std::uint32_t entry_spacing(std::uint64_t work, const ScanSize& scan);

}  // namespace robocache::decode_detail
