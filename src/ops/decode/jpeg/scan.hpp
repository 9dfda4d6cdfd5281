// Reads a scan from its first to its last MCU: finds its faults and its entry points.
#pragma once

#include <cstdint>
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

/// MCUs per entry point such that the entries of a picture take at most 3 % of its bytes.
[[nodiscard]] std::uint32_t entry_spacing(std::uint32_t num_bytes, std::uint32_t num_mcus);

}  // namespace robocache::decode_detail
