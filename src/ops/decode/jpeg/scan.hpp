// Reads a scan from its first to its last MCU: finds its faults and its entry points.
#pragma once

#include <array>
#include <cstddef>
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

/// A picture that is read for its entry points, one every header.record.every MCUs.
struct ScanRequest {
    std::size_t number;  // of the picture in its call
    Bytes picture;
    const JpegHeader* header;
    EntryPoints* entries;
};

/// A scan that is truncated or corrupt.
struct ScanFault {
    std::size_t picture;
    PictureFault fault;
};

/// Reads scans; the memory and the tables of one thread.
class EntryScanner {
public:
    /// `requests`: in the order of their numbers. Throws ScanFault, of the first picture that has one. Two scans are
    /// read in turns: where a code ends is only known when it has been looked up, so two take little more time than
    /// one.
    void scan(std::span<const ScanRequest> requests);

private:
    /// Tables of the picture that the other lane does not use.
    [[nodiscard]] const ScanTables& tables_of(const JpegHeader& header, const ScanTables* in_use);

    std::array<ScanTables, 2> tables_;
    std::array<PlainBytes, 2> plain_;
};

[[nodiscard]] std::uint32_t num_mcus_of(const PictureRecord& record);

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
