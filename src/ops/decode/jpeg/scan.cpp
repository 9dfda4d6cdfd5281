// Scans a picture for its entry points.
#include "ops/decode/jpeg/scan.hpp"

#include <algorithm>
#include <optional>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {
namespace {

constexpr std::uint32_t least_spacing = 4;    // closer entry points cost more memory than they save time
constexpr std::uint32_t index_share_of = 33;  // 1/33 of the bytes: 3 %
constexpr std::uint32_t bytes_per_block =
    2;  // work of a block beside its bytes; on an H200 about 1.7, by bench_pixels.py
constexpr auto bytes_per_entry = static_cast<std::uint32_t>(sizeof(std::uint32_t) + sizeof(Predictors));

/// One scan, read run by run: the MCUs up to the next entry point or restart marker.
class ScanLane {
public:
    ScanLane(const ScanRequest& request, const ScanTables& tables, PlainBytes& plain)
        : request_(request),
          tables_(tables),
          scan_(request.picture.subspan(request.header->record.scan_begin)),
          plain_(plain),
          reader_(scan_, 0, static_cast<std::uint32_t>(scan_.size()), plain),
          num_mcus_(num_mcus_of(request.header->record)) {
        const PictureRecord& record = request.header->record;
        const McuPattern pattern = pattern_of(record);
        lane_.bits = &reader_.bits();
        lane_.num_blocks = pattern.num_blocks;
        for (int b = 0; b < pattern.num_blocks; ++b) {
            const int c = static_cast<int>(pattern.blocks >> (6 * b)) & 3;
            lane_.blocks[b] = {&tables.dc(c), &tables.ac(c), &tables.skips(c), c};
        }
        restart_ = next_restart_ = record.restart_interval > 0 ? record.restart_interval : num_mcus_;
        begin_run();
    }
    // The lane has addresses of the reader.
    ScanLane(const ScanLane&) = delete;
    ScanLane& operator=(const ScanLane&) = delete;

    [[nodiscard]] std::size_t number() const { return request_.number; }
    [[nodiscard]] const ScanTables& tables() const { return tables_; }
    [[nodiscard]] SkipLane& lane() { return lane_; }
    [[nodiscard]] bool has_fault() const { return lane_.has_fault; }

    /// Where the run has ended: the next one. False behind the last.
    bool go_on() {
        if (lane_.num_mcus > 0) return true;
        if (mcu_ == num_mcus_) return false;
        begin_run();
        return true;
    }

    /// The first fault of the scan, which has one.
    [[nodiscard]] PictureFault fault() const {
        const PictureRecord& record = request_.header->record;
        ScanReader reader(scan_, 0, static_cast<std::uint32_t>(scan_.size()), plain_);
        FaultFinder finder(tables_);
        const SegmentRange range{0, num_mcus_, record.restart_interval};
        const SegmentEnd end = decode_segment(reader, pattern_of(record), {0, 0, 0}, range, finder);
        return fault_of(end, num_mcus_, record.scan_begin + reader.position());
    }

private:
    /// Reads a scan code by code.
    class FaultFinder {
    public:
        static constexpr bool stops_at_faults = true;

        explicit FaultFinder(const ScanTables& tables) : tables_(tables) {}
        void begin_mcu(std::uint32_t, ScanReader&, const PredictorState&) {}
        void begin_block(int, int, int) {}
        BlockFault decode(int c, ScanReader& reader, int& predictor) {
            const BlockFault fault = cpu_kernels().skip_block(reader.bits(), tables_.dc(c), tables_.ac(c), predictor);
            return fault == BlockFault::none && reader.overran() ? BlockFault::out_of_data : fault;
        }
        void end_block() {}

    private:
        const ScanTables& tables_;
    };

    void begin_run() {
        if (mcu_ == next_restart_) {
            const int expected = static_cast<int>((mcu_ / restart_ - 1) & 7);
            if (reader_.restart() != expected) lane_.has_fault = true;
            next_restart_ = std::min(num_mcus_, next_restart_ + restart_);
            std::fill_n(lane_.predictors, max_components, 0);
        }
        if (mcu_ == next_entry_) {
            const auto predictor = [&](int c) { return static_cast<std::int16_t>(lane_.predictors[c]); };
            request_.entries->bits.push_back(static_cast<std::uint32_t>(reader_.stored_bits()));
            request_.entries->predictors.push_back({{predictor(0), predictor(1), predictor(2)}});
            next_entry_ += std::min(num_mcus_ - next_entry_, request_.header->record.every);
        }
        const std::uint32_t end = std::min(next_entry_, next_restart_);
        lane_.num_mcus = end - mcu_;
        lane_.end = plain_.data() + plain_.size();
        mcu_ = end;
    }

    const ScanRequest& request_;
    const ScanTables& tables_;
    Bytes scan_;
    PlainBytes& plain_;
    ScanReader reader_;
    SkipLane lane_{};
    std::uint32_t num_mcus_;
    std::uint32_t mcu_ = 0;  // behind the run
    std::uint32_t restart_ = 0;
    std::uint32_t next_restart_ = 0;
    std::uint32_t next_entry_ = 0;
};

}  // namespace

std::uint32_t num_mcus_of(const PictureRecord& record) {
    const Geometry geometry = geometry_of(record);
    return static_cast<std::uint32_t>(geometry.mcus_x) * static_cast<std::uint32_t>(geometry.mcus_y);
}

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

namespace {
using Lanes = std::array<std::optional<ScanLane>, 2>;

/// Throws ScanFault if one of the lanes has a fault. The picture before it, if the other lane has it, is read first.
void throw_fault(Lanes& lanes) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (!lanes[i] || !lanes[i]->has_fault()) continue;
        std::optional<ScanLane>& other = lanes[1 - i];
        if (other && other->number() < lanes[i]->number()) {
            while (!other->has_fault() && other->go_on()) cpu_kernels().skip_mcus(other->lane());
            if (other->has_fault()) throw ScanFault{other->number(), other->fault()};
        }
        throw ScanFault{lanes[i]->number(), lanes[i]->fault()};
    }
}
}  // namespace

const ScanTables& EntryScanner::tables_of(const JpegHeader& header, const ScanTables* in_use) {
    for (const ScanTables& tables : tables_) {
        if (tables.has(header)) return tables;
    }
    ScanTables& free = tables_[in_use == &tables_[0] ? 1 : 0];
    free.load(header);
    return free;
}

void EntryScanner::scan(std::span<const ScanRequest> requests) {
    const CpuKernels& kernels = cpu_kernels();
    Lanes lanes;
    std::size_t next = 0;
    // The next run of a lane, or of the next picture. False where there is none.
    const auto go_on = [&](std::size_t i) {
        std::optional<ScanLane>& lane = lanes[i];
        const std::optional<ScanLane>& other = lanes[1 - i];
        while (!lane || (!lane->has_fault() && !lane->go_on())) {
            lane.reset();
            if (next == requests.size()) return false;
            const ScanTables* in_use = other ? &other->tables() : nullptr;
            lane.emplace(requests[next], tables_of(*requests[next].header, in_use), plain_[i]);
            ++next;
        }
        return true;
    };
    while (true) {
        const bool has_first = go_on(0);
        const bool has_second = go_on(1);
        if (!has_first && !has_second) return;
        throw_fault(lanes);
        if (has_first && has_second) {
            kernels.skip_mcus_of_two(lanes[0]->lane(), lanes[1]->lane());
        } else {
            kernels.skip_mcus(lanes[has_first ? 0 : 1]->lane());
        }
    }
}

}  // namespace robocache::decode_detail
