// Decodes the segments under a crop into planes of samples.
#include "ops/decode/cpu/planes.hpp"

#include <algorithm>
#include <cstring>

#include "ops/decode/contract/idct.hpp"
#include "ops/decode/contract/segment.hpp"
#include "ops/decode/cpu/kernels.hpp"
#include "ops/decode/jpeg/scan.hpp"

namespace robocache::decode_detail {
namespace {

/// Compares the entry points that decoding passes with the position and the predictors that it has there.
class EntryCheck {
public:
    EntryCheck(const IndexView& index, const PictureRecord& record) : index_(index), record_(record) {}

    /// Decoding begins at this entry of the picture.
    void begin(std::uint64_t entry) {
        next_ = entry;
        pass();
    }

    void at(std::uint32_t mcu, ScanReader& reader, const PredictorState& found) {
        if (mcu != mcu_) return;
        const std::uint64_t entry = record_.first_entry + next_;
        const Predictors& p = index_.predictors(entry);
        if (index_.bits(entry) != reader.stored_bits() || p.dc[0] != found.first || p.dc[1] != found.second ||
            p.dc[2] != found.third) {
            throw PictureFault{false, "have the entry points of its index",
                               "another one before MCU " + std::to_string(mcu)};
        }
        pass();
    }

private:
    void pass() {
        ++next_;
        mcu_ = next_ * record_.every;
    }

    const IndexView& index_;
    const PictureRecord& record_;
    std::uint64_t next_ = 0;
    std::uint64_t mcu_ = 0;  // of entry next_; behind the last one where there is none
};

/// Dequantizes blocks and writes their samples, where they belong to the region.
class PlaneVisitor {
public:
    static constexpr bool stops_at_faults = true;

    PlaneVisitor(const PictureTables& tables, const Box& region, Planes& planes, EntryCheck& entries)
        : tables_(tables), region_(region), num_components_(planes.num_decoded), planes_(planes), entries_(entries) {}

    void begin_mcu(std::uint32_t mcu, ScanReader& reader, const PredictorState& predictors) {
        entries_.at(mcu, reader, predictors);
        const auto width = static_cast<std::uint32_t>(planes_.geometry.mcus_x);
        mcu_x_ = static_cast<int>(mcu % width);
        mcu_y_ = static_cast<int>(mcu / width);
        is_inside_ = mcu_x_ >= region_.x0 && mcu_x_ < region_.x1 && mcu_y_ >= region_.y0 && mcu_y_ < region_.y1;
    }

    void begin_block(int c, int column, int row) {
        is_wanted_ = is_inside_ && c < num_components_;
        if (!is_wanted_) return;
        const auto i = static_cast<std::size_t>(c);
        const Component& component = planes_.components[i];
        Plane& plane = planes_.planes[i];
        const int x = (mcu_x_ * component.blocks_x + column) * block_size - plane.x0;
        const int y = (mcu_y_ * component.blocks_y + row) * block_size - plane.y0;
        out_ = plane.samples.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(plane.stride) + x;
        stride_ = plane.stride;
    }

    BlockFault decode(int c, ScanReader& reader, int& predictor) {
        const BlockFault fault =
            is_wanted_ ? kernels_.decode_block(reader.bits(), tables_.dc(c), tables_.ac(c), predictor,
                                               {tables_.steps(c), block_, positions_})
                       : kernels_.skip_block(reader.bits(), tables_.dc(c), tables_.ac(c), nullptr, predictor);
        return fault == BlockFault::none && reader.overran() ? BlockFault::out_of_data : fault;
    }

    void end_block() {
        if (!is_wanted_) return;
        if (positions_ == 0) {
            const int value = flat_sample(block_[0]);
            for (int r = 0; r < 8; ++r) std::memset(out_ + static_cast<std::ptrdiff_t>(r) * stride_, value, 8);
            block_[0] = 0;
            return;
        }
        kernels_.inverse_dct(block_, positions_ < block_size, out_, stride_);
        std::memset(block_, 0, sizeof block_);
        positions_ = 0;
    }

private:
    const CpuKernels& kernels_ = cpu_kernels();
    const PictureTables& tables_;
    Box region_;
    int num_components_;
    Planes& planes_;
    EntryCheck& entries_;
    int mcu_x_ = 0, mcu_y_ = 0;
    bool is_inside_ = false;
    bool is_wanted_ = false;
    int positions_ = 0;  // of the coefficients of a block, by bitwise or: 0 where there is only the first
    std::uint8_t* out_ = nullptr;
    int stride_ = 0;
    alignas(32) std::int16_t block_[num_coefficients] = {};
};

void size_planes(const PictureRecord& record, const Box& region, Planes& planes) {
    for (int c = 0; c < planes.num_decoded; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const Component component = component_of(record, planes.geometry, c);
        planes.components[i] = component;
        Plane& plane = planes.planes[i];
        plane.x0 = region.x0 * component.blocks_x * block_size;
        plane.y0 = region.y0 * component.blocks_y * block_size;
        plane.stride = (region.x1 - region.x0) * component.blocks_x * block_size;
        const int height = (region.y1 - region.y0) * component.blocks_y * block_size;
        const auto size = static_cast<std::size_t>(plane.stride) * static_cast<std::size_t>(height);
        if (plane.samples.size() < size) plane.samples.resize(size);
    }
}

}  // namespace

void decode_planes(Bytes picture, const PictureRecord& record, const IndexView& index, const Box& box, bool only_first,
                   PictureTables& tables, Planes& planes) {
    planes.geometry = geometry_of(record);
    planes.num_decoded = only_first ? 1 : record.num_components;
    const Geometry& geometry = planes.geometry;
    const Box region = region_of(geometry, box);
    size_planes(record, region, planes);
    tables.load(index, record.table_set, record.num_components);
    EntryCheck entries(index, record);
    PlaneVisitor visitor(tables, region, planes, entries);
    const McuPattern pattern = pattern_of(record);
    const Segments segments = segments_of(geometry, region, record.every);
    const Bytes scan = picture.subspan(record.scan_begin);
    const auto num_mcus = static_cast<std::uint32_t>(geometry.mcus_x) * static_cast<std::uint32_t>(geometry.mcus_y);
    const std::uint32_t last_needed =
        static_cast<std::uint32_t>(region.y1 - 1) * static_cast<std::uint32_t>(geometry.mcus_x) +
        static_cast<std::uint32_t>(region.x1);
    for (std::uint32_t slot = 0; slot < segments.num_slots; ++slot) {
        const std::int64_t segment = segment_of_slot(segments, geometry, region, record.every, slot);
        if (segment < 0) continue;
        // Segments that follow each other are decoded from the first entry point.
        std::int64_t last = segment;
        while (slot + 1 < segments.num_slots &&
               segment_of_slot(segments, geometry, region, record.every, slot + 1) == last + 1) {
            ++last;
            ++slot;
        }
        const std::uint64_t entry = record.first_entry + static_cast<std::uint64_t>(segment);
        entries.begin(static_cast<std::uint64_t>(segment));
        const std::uint32_t bits = index.bits(entry);
        const Predictors& p = index.predictors(entry);
        const std::uint64_t begin = static_cast<std::uint64_t>(segment) * record.every;
        const std::uint64_t end = (static_cast<std::uint64_t>(last) + 1) * record.every;
        const SegmentRange range{static_cast<std::uint32_t>(begin),
                                 static_cast<std::uint32_t>(std::min<std::uint64_t>(end, last_needed)),
                                 record.restart_interval};
        // Up to the byte that the next segment begins in; that may be 0xFF, and a stuffed one follows.
        const std::uint64_t next = static_cast<std::uint64_t>(last) + 1;
        const std::uint32_t num_bytes = next < record.num_entries ? index.bits(record.first_entry + next) / 8 + 2
                                                                  : static_cast<std::uint32_t>(scan.size());
        ScanReader reader(scan, bits, num_bytes, planes.plain);
        const SegmentEnd found = decode_segment(reader, pattern, {p.dc[0], p.dc[1], p.dc[2]}, range, visitor);
        if (found.fault != BlockFault::none) throw fault_of(found, num_mcus, record.scan_begin + reader.position());
    }
}

}  // namespace robocache::decode_detail
