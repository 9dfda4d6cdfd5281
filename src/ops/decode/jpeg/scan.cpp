// Scans a picture for its entry points.
#include "ops/decode/jpeg/scan.hpp"

#include <algorithm>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {
namespace {

constexpr std::uint32_t least_spacing = 4;    // closer entry points cost more memory than they save time
constexpr std::uint32_t index_share_of = 33;  // 1/33 of the bytes: 3 %
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

std::uint32_t entry_spacing(std::uint32_t num_bytes, std::uint32_t num_mcus) {
    const std::uint32_t budget = num_bytes / index_share_of;
    constexpr auto record_bytes = static_cast<std::uint32_t>(sizeof(PictureRecord));
    const std::uint32_t room = budget > record_bytes ? (budget - record_bytes) / bytes_per_entry : 0;
    const std::uint32_t num_entries = std::max(room, 1U);
    return std::max(least_spacing, (num_mcus + num_entries - 1) / num_entries);
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
