// Scans a picture for its entry points.
#include "ops/decode/jpeg/scan.hpp"

#include <algorithm>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {
namespace {

constexpr std::uint32_t least_spacing = 4;    // closer entry points cost more memory than they save time
constexpr std::uint32_t index_share_of = 33;  // 1/33 of the bytes: 3 %
constexpr std::uint32_t bytes_per_block =
    2;  // work of a block beside its bytes; on an H200 about 1.7, by bench_pixels.py
constexpr auto bytes_per_entry = static_cast<std::uint32_t>(sizeof(std::uint32_t) + sizeof(Predictors));

/// Records an entry before every `every`-th MCU.
class EntryVisitor {
public:
    static constexpr bool stops_at_faults = true;

    EntryVisitor(const PictureTables& tables, std::uint32_t every, EntryPoints& entries)
        : tables_(tables), every_(every), entries_(entries) {}

    void begin_mcu(std::uint32_t mcu, ScanReader& reader, const PredictorState& p) {
        if (mcu != next_) return;
        next_ += every_;
        entries_.bits.push_back(static_cast<std::uint32_t>(reader.stored_bits()));
        entries_.predictors.push_back({{static_cast<std::int16_t>(p.first), static_cast<std::int16_t>(p.second),
                                        static_cast<std::int16_t>(p.third)}});
    }
    void begin_block(int, int, int) {}
    BlockFault decode(int c, ScanReader& reader, int& predictor) {
        const BlockFault fault =
            kernels_.skip_block(reader.bits(), tables_.dc(c), tables_.ac(c), &tables_.skips(c), predictor);
        return fault == BlockFault::none && reader.overran() ? BlockFault::out_of_data : fault;
    }
    void end_block() {}

private:
    const CpuKernels& kernels_ = cpu_kernels();
    const PictureTables& tables_;
    std::uint32_t every_;
    std::uint32_t next_ = 0;
    EntryPoints& entries_;
};

}  // namespace

std::uint32_t entry_spacing(std::uint64_t work, const ScanSize& scan) {
    const std::uint64_t total = scan.num_bytes + std::uint64_t{bytes_per_block} * scan.blocks_per_mcu * scan.num_mcus;
    const std::uint64_t every = work * scan.num_mcus / total;
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(every, least_spacing, std::max(least_spacing, scan.num_mcus)));
}

std::uint64_t work_per_entry(std::span<const ScanSize> scans) {
    std::uint64_t budget = 0;
    for (const ScanSize& scan : scans) budget += scan.num_bytes / index_share_of;
    const std::uint64_t for_records = scans.size() * sizeof(PictureRecord);
    const std::uint64_t room = budget > for_records ? (budget - for_records) / bytes_per_entry : 0;
    const auto fits = [&](std::uint64_t work) {
        std::uint64_t num_entries = 0;
        for (const ScanSize& scan : scans) {
            const std::uint64_t every = entry_spacing(work, scan);
            num_entries += (scan.num_mcus + every - 1) / every;
        }
        return num_entries <= std::max<std::uint64_t>(room, scans.size());  // a picture has at least one
    };
    std::uint64_t low = 0;                        // does not fit, or 0
    std::uint64_t high = std::uint64_t{1} << 34;  // fits: more than any picture has; times its MCUs it is below 2^64
    while (high - low > 1) {
        const std::uint64_t middle = low + (high - low) / 2;
        (fits(middle) ? high : low) = middle;
    }
    return high;
}

PictureFault fault_of(const SegmentEnd& end, std::uint32_t num_mcus, std::uint32_t position) {
    const std::string where = "MCU " + std::to_string(end.mcu) + " of " + std::to_string(num_mcus) + ", near byte " +
                              std::to_string(position);
    if (end.is_restart_missing)
        return {false, "have the restart markers that its header declares", "none before " + where};
    switch (end.fault) {
        case BlockFault::undefined_code: return {false, "have defined Huffman codes", "an undefined one in " + where};
        case BlockFault::too_many_coefficients:
            return {false, "have at most 64 coefficients in a block", "more in " + where};
        default: return {false, "have a whole scan", "the end of its data in " + where};
    }
}

EntryPoints scan_entries(Bytes picture, const PictureRecord& record, const PictureTables& tables, PlainBytes& plain) {
    const Geometry geometry = geometry_of(record);
    const auto num_mcus = static_cast<std::uint32_t>(geometry.mcus_x) * static_cast<std::uint32_t>(geometry.mcus_y);
    EntryPoints entries;
    const Bytes scan = picture.subspan(record.scan_begin);
    ScanReader reader(scan, 0, static_cast<std::uint32_t>(scan.size()), plain);
    EntryVisitor visitor(tables, record.every, entries);
    const McuPattern pattern = pattern_of(record);
    const SegmentRange range{0, num_mcus, record.restart_interval};
    const SegmentEnd end = decode_segment(reader, pattern, {0, 0, 0}, range, visitor);
    if (end.fault != BlockFault::none) throw fault_of(end, num_mcus, record.scan_begin + reader.position());
    return entries;
}

}  // namespace robocache::decode_detail
