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
            is_wanted_ ? kernels_.decode_block(tables_of(c), {reader.bits(), predictor, block_, positions_})
                       : kernels_.skip_block(reader.bits(), tables_.dc(c), tables_.ac(c), predictor);
        return fault == BlockFault::none && reader.overran() ? BlockFault::out_of_data : fault;
    }

    /// decode() for this block and one of another segment. False if one of them has a fault.
    bool decode_with(PlaneVisitor& other, int c, ScanReader& reader, int& predictor, ScanReader& other_reader,
                     int& other_predictor) {
        if (!is_wanted_ || !other.is_wanted_) {
            return decode(c, reader, predictor) == BlockFault::none &&
                   other.decode(c, other_reader, other_predictor) == BlockFault::none;
        }
        const BlockFault fault =
            kernels_.decode_two_blocks(tables_of(c), {reader.bits(), predictor, block_, positions_},
                                       {other_reader.bits(), other_predictor, other.block_, other.positions_});
        return fault == BlockFault::none && !reader.overran() && !other_reader.overran();
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
    }

private:
    [[nodiscard]] BlockTables tables_of(int c) const {
        return {tables_.dc(c), tables_.ac(c), tables_.pairs(c), tables_.steps(c)};
    }

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

/// Segments of a picture that follow each other: [first, end).
struct Run {
    std::uint64_t first, end;
};

/// Decodes the segments of one picture that meet a region.
class RegionDecoder {
public:
    RegionDecoder(Bytes picture, const PictureRecord& record, const IndexView& index, const Box& region,
                  const PictureTables& tables, Planes& planes)
        : scan_(picture.subspan(record.scan_begin)),
          record_(record),
          index_(index),
          region_(region),
          tables_(tables),
          planes_(planes),
          pattern_(pattern_of(record)),
          num_mcus_(static_cast<std::uint32_t>(planes.geometry.mcus_x) *
                    static_cast<std::uint32_t>(planes.geometry.mcus_y)),
          end_mcu_(static_cast<std::uint32_t>(region.y1 - 1) * static_cast<std::uint32_t>(planes.geometry.mcus_x) +
                   static_cast<std::uint32_t>(region.x1)) {}

    void decode(const Run& run) const {
        if (can_take_turns(run) && decode_in_turns(run)) return;
        Lane lane(*this, run, 0);
        lane.finish();
    }

private:
    /// The MCUs of a run, and how far they are decoded.
    class Lane {
    public:
        Lane(const RegionDecoder& all, const Run& run, std::size_t number)
            : all_(all),
              entries_(all.index_, all.record_),
              visitor_(all.tables_, all.region_, all.planes_, entries_),
              reader_(all.reader_of(run, number)),
              mcu_(all.begin_of(run.first)),
              end_(std::min(all.begin_of(run.end), all.end_mcu_)) {
            const Predictors& p = all.index_.predictors(all.record_.first_entry + run.first);
            predictors_ = {p.dc[0], p.dc[1], p.dc[2]};
            entries_.begin(run.first);
        }

        [[nodiscard]] bool has_more() const { return mcu_ < end_; }

        /// The next MCU, in turns with that of another lane. False if one of them has a fault.
        bool decode_mcu_with(Lane& other) {
            visitor_.begin_mcu(mcu_++, reader_, predictors_);
            other.visitor_.begin_mcu(other.mcu_++, other.reader_, other.predictors_);
            for (int b = 0; b < all_.pattern_.num_blocks; ++b) {
                const int code = static_cast<int>(all_.pattern_.blocks >> (6 * b)) & 63;
                const int c = code & 3;
                visitor_.begin_block(c, (code >> 2) & 3, code >> 4);
                other.visitor_.begin_block(c, (code >> 2) & 3, code >> 4);
                int predictor = predictors_.get(c);
                int other_predictor = other.predictors_.get(c);
                if (!visitor_.decode_with(other.visitor_, c, reader_, predictor, other.reader_, other_predictor)) {
                    return false;
                }
                predictors_.set(c, predictor);
                other.predictors_.set(c, other_predictor);
                visitor_.end_block();
                other.visitor_.end_block();
            }
            return true;
        }

        /// The next segment must begin where this lane has ended. Throws PictureFault.
        void check_end() { entries_.at(mcu_, reader_, predictors_); }

        /// All MCUs that are left. Throws PictureFault.
        void finish() {
            const SegmentRange range{mcu_, end_, all_.record_.restart_interval};
            const SegmentEnd found = decode_segment(reader_, all_.pattern_, predictors_, range, visitor_);
            if (found.fault != BlockFault::none) {
                throw fault_of(found, all_.num_mcus_, all_.record_.scan_begin + reader_.position());
            }
        }

    private:
        const RegionDecoder& all_;
        EntryCheck entries_;
        PlaneVisitor visitor_;
        ScanReader reader_;
        PredictorState predictors_{};
        std::uint32_t mcu_, end_;
    };

    /// The MCU that a segment begins with.
    [[nodiscard]] std::uint32_t begin_of(std::uint64_t segment) const {
        return static_cast<std::uint32_t>(std::min<std::uint64_t>(segment * record_.every, num_mcus_));
    }

    /// From the entry point of a run up to the byte that the next segment begins in; that may be 0xFF, and a stuffed
    /// one follows.
    [[nodiscard]] ScanReader reader_of(const Run& run, std::size_t number) const {
        const std::uint32_t end = run.end < record_.num_entries ? index_.bits(record_.first_entry + run.end) / 8 + 2
                                                                : static_cast<std::uint32_t>(scan_.size());
        return {scan_, index_.bits(record_.first_entry + run.first), end, planes_.plain.at(number)};
    }

    /// Half of the MCUs of a run that are decoded.
    [[nodiscard]] std::uint32_t half_of(const Run& run) const {
        return (std::min(begin_of(run.end), end_mcu_) - begin_of(run.first)) / 2;
    }

    [[nodiscard]] bool can_take_turns(const Run& run) const {
        return tables_.pairs(0) != nullptr && record_.restart_interval == 0 && half_of(run) >= record_.every;
    }

    /// The two halves of a run in turns; the first one is not longer. False if there is a fault: the run is then
    /// decoded again from its beginning, so that the first fault of the scan is named.
    [[nodiscard]] bool decode_in_turns(const Run& run) const {
        const std::uint64_t middle = run.first + half_of(run) / record_.every;
        try {
            Lane first(*this, {run.first, middle}, 0);
            Lane second(*this, {middle, run.end}, 1);
            while (first.has_more()) {
                if (!first.decode_mcu_with(second)) return false;
            }
            first.check_end();
            second.finish();
        } catch (const PictureFault&) {
            return false;
        }
        return true;
    }

    Bytes scan_;
    const PictureRecord& record_;
    const IndexView& index_;
    Box region_;
    const PictureTables& tables_;
    Planes& planes_;
    McuPattern pattern_;
    std::uint32_t num_mcus_;
    std::uint32_t end_mcu_;  // behind the last one of the region
};

}  // namespace

void decode_planes(Bytes picture, const PictureRecord& record, const IndexView& index, const Box& box, bool only_first,
                   PictureTables& tables, Planes& planes) {
    planes.geometry = geometry_of(record);
    planes.num_decoded = only_first ? 1 : record.num_components;
    const Geometry& geometry = planes.geometry;
    const Box region = region_of(geometry, box);
    size_planes(record, region, planes);
    tables.load(index, record.table_set, record.num_components, picture.size());
    const RegionDecoder decoder(picture, record, index, region, tables, planes);
    const Segments segments = segments_of(geometry, region, record.every);
    Run run{0, 0};
    for (std::uint32_t slot = 0; slot < segments.num_slots; ++slot) {
        const std::int64_t segment = segment_of_slot(segments, geometry, region, record.every, slot);
        if (segment < 0) continue;
        const auto first = static_cast<std::uint64_t>(segment);
        if (first != run.end || run.first == run.end) {
            if (run.first < run.end) decoder.decode(run);
            run.first = first;
        }
        run.end = first + 1;
    }
    if (run.first < run.end) decoder.decode(run);
}

}  // namespace robocache::decode_detail
