// index_pictures: parses and scans pictures on all threads, then writes their index. Equal tables are stored once.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/thread_pool.hpp"
#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/yuv.hpp"
#include "ops/decode/cpu/free_list.hpp"
#include "ops/decode/jpeg/index.hpp"
#include "ops/decode/jpeg/scan.hpp"
#include "ops/decode/jpeg/sections.hpp"
#include "robocache/decode.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace decode_detail {
namespace {

/// One picture before it is written.
struct Indexed {
    JpegHeader header;
    EntryPoints entries;
};

[[noreturn]] void refuse(const PictureIndexOptions& options, std::int64_t picture, const PictureFault& fault) {
    const std::string text = std::string(options.op) + ": pictures[" + std::to_string(picture) + "] must " +
                             fault.rule + ", got " + fault.given;
    if (fault.is_unsupported) throw Unsupported(text);
    throw FormatError(text);
}

/// A block has at least two bits: the codes of its DC difference and of its end. With fewer in the scan a picture is
/// truncated, or declares a size to make others allocate it.
void check_scan_size(const PictureRecord& record) {
    const std::uint64_t num_blocks =
        std::uint64_t{num_mcus_of(record)} * static_cast<std::uint64_t>(pattern_of(record).num_blocks);
    const std::uint64_t num_bytes = record.num_bytes - record.scan_begin;
    if (2 * num_blocks > 8 * num_bytes) {
        throw PictureFault{false, "have a whole scan",
                           "the end of its data: " + std::to_string(num_bytes) + " bytes for " +
                               std::to_string(record.width) + " x " + std::to_string(record.height)};
    }
}

Indexed index_pixels(Bytes picture, const PixelShape& shape, std::int64_t max_pixels) {
    const std::string text =
        std::to_string(shape.width) + " x " + std::to_string(shape.height) + " x " + std::to_string(shape.channels);
    const auto format = static_cast<std::int32_t>(shape.format);
    const bool is_yuv = shape.format != PixelFormat::interleaved;
    const bool is_valid = shape.width > 0 && shape.width < 65536 && shape.height > 0 && shape.height < 65536 &&
                          (shape.channels == 1 || shape.channels == 3 || shape.channels == 4) && format >= 0 &&
                          format <= num_yuv && (!is_yuv || shape.channels == 3) &&
                          std::int64_t{shape.width} * shape.height <= max_pixels;
    if (!is_valid)
        throw PictureFault{false,
                           "have 1, 3 or 4 channels, a known format and at most " + std::to_string(max_pixels) +
                               " pixels (max_pixels)",
                           text};
    const std::int64_t num_bytes =
        is_yuv ? YuvLayout(shape.width, shape.height).end : std::int64_t{shape.width} * shape.height * shape.channels;
    constexpr std::int64_t most = std::numeric_limits<decltype(PictureRecord::num_bytes)>::max();
    if (num_bytes > most) {
        throw PictureFault{false, "have at most " + std::to_string(most) + " bytes of pixels", text};
    }
    if (num_bytes != static_cast<std::int64_t>(picture.size())) {
        throw PictureFault{false, "have " + std::to_string(num_bytes) + " bytes of pixels",
                           std::to_string(picture.size())};
    }
    Indexed result;
    PictureRecord& record = result.header.record;
    record.width = shape.width;
    record.height = shape.height;
    record.codec = is_yuv ? Codec::yuv420 : Codec::pixels;
    record.yuv = is_yuv ? static_cast<std::uint8_t>(format - 1) : std::uint8_t{0};
    record.num_components = static_cast<std::uint8_t>(shape.channels);
    record.color = shape.channels == 1 ? ColorSpace::gray : ColorSpace::rgb;
    record.h[0] = record.h[1] = record.h[2] = record.v[0] = record.v[1] = record.v[2] = 1;
    record.every = 1;
    record.num_bytes = static_cast<std::uint32_t>(num_bytes);
    return result;
}

/// Sets `every` of each JPEG.
void choose_spacing(std::vector<Indexed>& pictures, std::int32_t given) {
    const auto size_of = [](const PictureRecord& record) {
        return ScanSize{record.num_bytes, num_mcus_of(record),
                        static_cast<std::uint32_t>(pattern_of(record).num_blocks)};
    };
    std::vector<ScanSize> scans;
    for (const Indexed& picture : pictures) {
        if (picture.header.record.codec == Codec::jpeg) scans.push_back(size_of(picture.header.record));
    }
    const std::uint64_t work = given > 0 ? 0 : work_per_entry(scans);
    for (Indexed& picture : pictures) {
        PictureRecord& record = picture.header.record;
        if (record.codec != Codec::jpeg) continue;
        record.every = given > 0 ? static_cast<std::uint32_t>(given) : entry_spacing(work, size_of(record));
    }
}

std::uint32_t set_of(const JpegHeader& header, TableStore& store) {
    TableSet set{};
    for (int c = 0; c < max_components; ++c) {
        // Unused components repeat the first, so that every number is valid.
        const auto& tables = header.tables[static_cast<std::size_t>(c < header.record.num_components ? c : 0)];
        set.quantization[c] = store.number_of(tables.steps);
        set.dc[c] = store.position_of({tables.dc.begin(), tables.dc.end()});
        set.ac[c] = store.position_of({tables.ac.begin(), tables.ac.end()});
    }
    return store.number_of(set);
}

PictureIndex write(std::vector<Indexed>& pictures) {
    TableStore store;
    std::vector<PictureRecord> records;
    records.reserve(pictures.size());
    std::uint64_t num_entries = 0;
    for (Indexed& picture : pictures) {
        PictureRecord& record = picture.header.record;
        record.first_entry = num_entries;
        num_entries += record.num_entries;
        if (record.codec == Codec::jpeg) record.table_set = set_of(picture.header, store);
        records.push_back(record);
    }
    PictureIndexWriter writer(records, store);
    for (std::size_t i = 0; i < pictures.size(); ++i) {
        const EntryPoints& entries = pictures[i].entries;
        writer.put_entries(records[i], entries.bits.data(), entries.predictors.data());
    }
    return writer.finish();
}

void check_offsets(Bytes bytes, std::span<const std::int64_t> offsets, const PictureIndexOptions& options) {
    const auto fail = [&](const std::string& rule, const std::string& given) {
        throw InvalidArgument(std::string(options.op) + ": offsets must " + rule + ", got " + given);
    };
    if (offsets.empty()) fail("have at least one entry", "none");
    if (offsets.front() < 0) fail("not be negative", std::to_string(offsets.front()));
    for (std::size_t i = 1; i < offsets.size(); ++i) {
        if (offsets[i] < offsets[i - 1]) {
            fail("not decrease", std::to_string(offsets[i]) + " after " + std::to_string(offsets[i - 1]));
        }
    }
    if (offsets.back() > static_cast<std::int64_t>(bytes.size())) {
        fail("end within the " + std::to_string(bytes.size()) + " bytes", std::to_string(offsets.back()));
    }
    if (!options.pixels.empty() && options.pixels.size() + 1 != offsets.size()) {
        fail("have one entry more than pixels", std::to_string(offsets.size()));
    }
    if (options.every < 0) {
        throw InvalidArgument(std::string(options.op) + ": every must not be negative, got " +
                              std::to_string(options.every));
    }
    if (options.max_pixels < 1) {
        throw InvalidArgument(std::string(options.op) + ": max_pixels must be positive, got " +
                              std::to_string(options.max_pixels));
    }
}

/// For each picture, whether it is to be read.
std::vector<bool> read_rows(std::size_t count, const PictureIndexOptions& options) {
    if (!options.rows) return std::vector<bool>(count, true);
    std::vector<bool> is_read(count, false);
    for (const std::int64_t row : *options.rows) {
        if (row < 0 || row >= static_cast<std::int64_t>(count)) {
            throw InvalidArgument(std::string(options.op) + ": rows must be from 0 to " +
                                  std::to_string(static_cast<std::int64_t>(count) - 1) + ", got " +
                                  std::to_string(row));
        }
        is_read[static_cast<std::size_t>(row)] = true;
    }
    return is_read;
}

/// Where no entry points are wanted, the begin of the scan is the only one.
void enter_at_begin(Indexed& indexed) {
    PictureRecord& record = indexed.header.record;
    record.every = num_mcus_of(record);
    record.num_entries = 1;
    indexed.entries = {{0}, {Predictors{}}};
}

/// Without its scan.
Indexed read_picture(Bytes picture, std::size_t number, const PictureIndexOptions& options) {
    if (!options.pixels.empty() && options.pixels[number].height != 0) {
        return index_pixels(picture, options.pixels[number], options.max_pixels);
    }
    Indexed result;
    result.header = read_header(picture, options.max_pixels);
    check_scan_size(result.header.record);
    return result;
}

/// A picture that is not read: it has no pixels, so that no plan accepts it.
Indexed unread(Bytes picture) {
    Indexed result;
    result.header.record.codec = Codec::pixels;
    result.header.record.num_bytes = static_cast<std::uint32_t>(picture.size());
    return result;
}

}  // namespace
}  // namespace decode_detail

using namespace decode_detail;

PictureIndex index_pictures(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> offsets,
                            const PictureIndexOptions& options) {
    check_offsets(bytes, offsets, options);
    std::vector<Indexed> pictures(offsets.size() - 1);
    const std::vector<bool> is_read = read_rows(pictures.size(), options);
    const auto count = static_cast<std::int64_t>(pictures.size());
    const std::int64_t grain = std::clamp<std::int64_t>(count / 64, 1, 16);
    const auto picture = [&](std::size_t i) {
        return bytes.subspan(static_cast<std::size_t>(offsets[i]),
                             static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    };
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<std::size_t>(i);
            try {
                pictures[at] = is_read[at] ? read_picture(picture(at), at, options) : unread(picture(at));
            } catch (const PictureFault& fault) {
                refuse(options, i, fault);
            }
        }
    });
    choose_spacing(pictures, options.every);
    FreeList<EntryScanner> scanners;
    const std::int64_t scan_grain = count < 32 ? 1 : std::max<std::int64_t>(grain, 2);  // two are read in turns
    parallel_for(count, scan_grain, [&](std::int64_t begin, std::int64_t end) {
        std::vector<ScanRequest> requests;
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            Indexed& indexed = pictures[i];
            if (indexed.header.record.codec != Codec::jpeg) continue;
            if (options.entry_points) {
                requests.push_back({i, picture(i), &indexed.header, &indexed.entries});
            } else {
                enter_at_begin(indexed);
            }
        }
        try {
            scanners.take()->scan(requests);
        } catch (const ScanFault& fault) {
            refuse(options, static_cast<std::int64_t>(fault.picture), fault.fault);
        }
        for (const ScanRequest& request : requests) {
            PictureRecord& record = pictures[request.number].header.record;
            record.num_entries = static_cast<std::uint32_t>(request.entries->bits.size());
        }
    });
    return write(pictures);
}

std::vector<PictureKind> picture_kinds(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> offsets,
                                       const PictureIndexOptions& options) {
    check_offsets(bytes, offsets, options);
    const std::vector<bool> is_read = read_rows(offsets.size() - 1, options);
    std::vector<PictureKind> kinds(is_read.size(), PictureKind::unknown);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (!is_read[i]) continue;
        kinds[i] = picture_kind(
            bytes.subspan(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(offsets[i + 1] - offsets[i])));
    }
    return kinds;
}

}  // namespace robocache
