// Batches on the CPU: samples side by side. Windows that lie on the rows are copied as they are; everything else is
// read by the tiles of align.
#include "batch/cpu/reader.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "batch/cpu/sample_features.hpp"
#include "batch/cpu/stream_lines.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/cpu/tile.hpp"

namespace robocache::loader_detail {
namespace {

constexpr std::int64_t samples_at_once = 64;        // of one thread: found one after the other, then written
constexpr std::int64_t samples_ahead = 16;          // their rows are on the way while one is written
constexpr std::int64_t streamed_ahead = 32;         // the same with non-temporal stores, which leave more of the caches
constexpr std::int64_t parallel_bytes = 512 << 10;  // less output than this is not worth waking a thread for
constexpr std::int64_t stream_bytes = 16 << 20;     // larger outputs are written with non-temporal stores

/// Asks for every line of some bytes, into the second level of the caches: the first has room for fewer on the way. The
/// hardware finds the rest of a longer run by itself.
void fetch(const void* begin, std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t most = 32 * line;
    const auto* from = static_cast<const char*>(begin);
    const auto odd = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % line);
    for (std::int64_t at = -odd; at < std::min(bytes, most); at += line) __builtin_prefetch(from + at, 0, 2);
    asm volatile("");  // GCC drops calls of a function that has no effect but to fetch
}

/// Reads some samples of a call on one thread.
class SampleReader {
public:
    SampleReader(const HostBatch& host, const BatchPlan& plan, const BatchCall& call, bool non_temporal)
        : non_temporal_(non_temporal),
          host_(host),
          plan_(plan),
          kernels_(align_detail::best_kernels()),
          stream_out_(best_stream_out(kernels_.stream_out)),
          scratch_(static_cast<std::size_t>(host.scratch_bytes)),
          valid_(new bool[static_cast<std::size_t>(host.most_targets)]),
          index_(call.index),
          features_(plan, call.outputs.last(plan.features.size())) {
        index_.names = plan.names.data();
        std::size_t next = 0;
        for (const ColumnPlan& column : plan.columns) {
            outputs_.push_back(column.hidden ? hidden_output(column) : output_of(column, call.outputs[next++]));
        }
    }

    /// Samples [begin, end) of the batch, samples_at_once at most. In steps, so that what one of them asks for is there
    /// when the next looks at it. The order is drawn apart from the copies: a branch that was guessed wrong takes back
    /// what is on its way from memory.
    void read(const BatchCall& call, std::int64_t begin, std::int64_t end) {
        const std::span samples(samples_, static_cast<std::size_t>(end - begin));
        std::uint64_t position = call.first_position + static_cast<std::uint64_t>(begin);
        for (Sample& sample : samples) draw(call.order, position++, sample);
        for (Sample& sample : samples) find(sample);
        for (Sample& sample : samples) locate(sample);
        const std::int64_t count = end - begin;
        const std::int64_t ahead = non_temporal_ ? streamed_ahead : samples_ahead;
        for (std::int64_t i = 0; i < std::min(ahead, count); ++i) fetch_rows(samples_[i]);
        for (std::int64_t i = 0; i < count; ++i) {
            if (i + ahead < count) fetch_rows(samples_[i + ahead]);
            write(begin + i, samples_[i]);
        }
        if (non_temporal_) align_detail::stream_fence();
    }

private:
    /// Where a column goes: a part of the batch, or memory for one sample, whose strides are 0.
    struct Output {
        char* values;
        bool* padding;
        std::int64_t row_bytes;
        std::int64_t sample_bytes;
        std::int64_t padding_bytes;
        bool is_hidden;

        [[nodiscard]] char* values_of(std::int64_t b) const { return values + b * sample_bytes; }
        [[nodiscard]] bool* padding_of(std::int64_t b) const {
            return padding == nullptr ? nullptr : padding + b * padding_bytes;
        }
    };

    [[nodiscard]] Output output_of(const ColumnPlan& column, const BatchOutput& output) {
        const std::int64_t bytes = row_bytes(column, column.dtype);
        Output made{static_cast<char*>(output.values.data), nullptr, bytes, column.num_targets() * bytes, 0, false};
        if (output.padding) {
            made.padding = static_cast<bool*>(output.padding->data);
            made.padding_bytes = column.num_targets();
        } else if (!features_.is_empty()) {
            made.padding = reinterpret_cast<bool*>(memory_of(column.num_targets()));
        }
        return made;
    }

    [[nodiscard]] Output hidden_output(const ColumnPlan& column) {
        const std::int64_t bytes = row_bytes(column, column.dtype);
        char* values = memory_of(column.num_targets() * bytes);
        return {values, reinterpret_cast<bool*>(memory_of(column.num_targets())), bytes, 0, 0, true};
    }

    [[nodiscard]] char* memory_of(std::int64_t bytes) {
        return hidden_.emplace_back(new char[static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))]).get();
    }

    struct Sample {
        const TablePlan* table;
        std::int64_t number;  // of its anchor in the table
        std::int64_t episode;
        const EpisodeEntry* entries;
        std::int64_t anchor;  // its time
        bool has_anchor;      // without reading it
    };

    /// The anchor at a position of the epoch; asks for its bucket.
    void draw(const OrderPlan& order, std::uint64_t position, Sample& sample) const {
        const Place place = place_of_position(plan_.tables.data(), order, position);
        sample.table = &plan_.tables[static_cast<std::size_t>(place.table)];
        sample.number = static_cast<std::int64_t>(place.number);
        fetch(sample.table->buckets + (sample.number >> sample.table->bucket_shift), 1);
    }

    /// Its episode; asks for what is known of that.
    void find(Sample& sample) const {
        sample.episode = episode_of_anchor(*sample.table, sample.number);
        sample.entries = host_.entries(sample.table->first_episode + sample.episode);
        fetch(sample.entries, static_cast<std::int64_t>(host_.searches.size() * sizeof(EpisodeEntry)));
        if (index_.source != nullptr) fetch(index_.names + sample.table->first_episode + sample.episode, 1);
    }

    /// Its time, where that is known without reading it; else asks for it.
    void locate(Sample& sample) const {
        sample.has_anchor = false;
        if (host_.anchor_search < host_.searches.size()) {
            const EpisodeEntry& entry = sample.entries[host_.anchor_search];
            sample.has_anchor = entry.even.step > 0;
            sample.anchor = entry.even.first + (sample.number - entry.first_anchor) * entry.even.step;
        }
        if (sample.has_anchor) return;
        fetch(sample.table->times + (sample.table->period_ns > 0 ? sample.episode : sample.number), 1);
    }

    /// Asks for rows that are probably its own, and for their times where they are not known without.
    void fetch_rows(const Sample& sample) const {
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const EpisodeEntry& entry = sample.entries[s];
            const std::int64_t span = host_.guess(entry.part, s).span;
            const std::int64_t row = entry.first_row + clamped(first_row(sample, s), entry);
            if (entry.even.step == 0) {
                const align_detail::StreamPlan& stream = plan_.rows_of(entry.part, host_.searches[s].columns[0]).stream;
                const std::int64_t stride = stream.time_row_stride;
                fetch(reinterpret_cast<const std::int64_t*>(stream.times) + row * stride, span * stride * 8);
            }
            for (const std::size_t c : host_.searches[s].columns) {
                const Lane& lane = host_.lane(entry.part, c);
                fetch(lane.values + row * lane.row_stride, span * lane.row_stride);
            }
        }
    }

    /// The row of the first target in its episode, a guess; below 0: before it.
    [[nodiscard]] std::int64_t first_row(const Sample& sample, std::size_t s) const {
        const EpisodeEntry& entry = sample.entries[s];
        const std::int64_t number = sample.number - entry.first_anchor;
        const std::int64_t first = host_.guess(entry.part, s).first;
        if (entry.num_rows == entry.num_anchors) return number + first;
        return static_cast<std::int64_t>(static_cast<double>(number) * static_cast<double>(entry.num_rows) /
                                         static_cast<double>(entry.num_anchors)) +
               first;
    }

    static std::int64_t clamped(std::int64_t row, const EpisodeEntry& entry) {
        return std::max<std::int64_t>(std::min(row, entry.num_rows - 1), 0);
    }

    /// Sample b of the batch.
    void write(std::int64_t b, Sample& sample) {
        if (!sample.has_anchor) sample.anchor = anchor_time(*sample.table, sample.episode, sample.number);
        if (index_.source != nullptr) index_.write(b, {sample.table->first_episode + sample.episode, sample.anchor});
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const Search& search = host_.searches[s];
            const EpisodeEntry& entry = sample.entries[s];
            const std::int64_t row = first_row(sample, s);
            const Run run = run_of(sample, search, entry, row);
            bool all = run.count > 0;
            for (const std::size_t c : search.columns) {
                const Lane& lane = host_.lane(entry.part, c);
                if (run.count > 0 && lane.in_runs) {
                    write_run(b, c, search, lane, entry.first_row, run);
                } else {
                    all = false;
                }
            }
            if (!all) write_tiles(b, sample, s, clamped(row, entry), run.count > 0);
        }
        if (features_.is_empty()) return;
        const auto episode = static_cast<std::size_t>(sample.table->first_episode + sample.episode);
        features_.compose(b, plan_.names.empty() ? nullptr : &plan_.names[episode].source);
    }

    [[nodiscard]] Run run_of(const Sample& sample, const Search& search, const EpisodeEntry& entry,
                             std::int64_t row) const {
        if (search.shifts.empty()) return {};
        if (entry.even.step > 0) return find_run(entry.even, entry.num_rows, sample.anchor, search, row);
        const align_detail::StreamPlan& stream = plan_.rows_of(entry.part, search.columns[0]).stream;
        const auto* times = reinterpret_cast<const std::int64_t*>(stream.times) + entry.first_row;
        return find_run(times, entry.num_rows, sample.anchor, search, row);
    }

    void write_run(std::int64_t b, std::size_t c, const Search& search, const Lane& lane, std::int64_t first_row,
                   const Run& run) {
        const Output& output = outputs_[c];
        const std::int64_t bytes = output.row_bytes;
        const char* rows = lane.values + (first_row + run.row) * lane.row_stride;
        const bool is_whole = run.count == search.num_targets;
        if (is_whole && output.is_hidden && lane.of_rows == nullptr) return features_.set(c, rows, nullptr);
        char* out = output.values_of(b);
        const auto copy = [&](const char* from, std::int64_t to, std::int64_t count) {
            if (lane.of_rows != nullptr) {
                lane.of_rows->apply(from, out + to * bytes, count * plan_.columns[c].num_channels);
            } else if (non_temporal_ && !output.is_hidden) {
                stream_out_(from, count * bytes, out + to * bytes);
            } else {
                std::memcpy(out + to * bytes, from, static_cast<std::size_t>(count * bytes));
            }
        };
        const std::int64_t end = run.before + run.count;
        const char* last = rows + (run.count - 1) * lane.row_stride;
        for (std::int64_t j = 0; j < run.before; ++j) copy(rows, j, 1);
        copy(rows, run.before, run.count);
        for (std::int64_t j = end; j < search.num_targets; ++j) copy(last, j, 1);
        bool* padding = output.padding_of(b);
        features_.set(c, out, is_whole ? nullptr : padding);
        if (padding == nullptr) return;
        std::fill_n(padding, search.num_targets, search.held_pads);
        std::fill_n(padding + run.before, run.count, false);
    }

    /// The columns of a search, without those that write_run has written. `hint`: a row near the first target.
    void write_tiles(std::int64_t b, const Sample& sample, std::size_t s, std::int64_t hint, bool has_run) {
        const Search& search = host_.searches[s];
        const EpisodeEntry& entry = sample.entries[s];
        for (tile_.begin = 0; tile_.begin < search.num_targets; tile_.begin += search.tile_targets) {
            tile_.count = std::min(search.tile_targets, search.num_targets - tile_.begin);
            bool placed = false;
            for (const std::size_t c : search.columns) {
                if (has_run && host_.lane(entry.part, c).in_runs) continue;
                write_tile(b, sample, entry, c, hint, placed);
                features_.set(c, outputs_[c].values_of(b), outputs_[c].padding_of(b));
                placed = true;
            }
        }
    }

    void write_tile(std::int64_t b, const Sample& sample, const EpisodeEntry& entry, std::size_t c, std::int64_t hint,
                    bool placed) {
        const ColumnPlan& column = plan_.columns[c];
        const std::int64_t num_targets = column.num_targets();
        const Output& output = outputs_[c];
        char* out = output.values_of(b);
        bool* valid = output.padding == nullptr ? valid_.get() : output.padding_of(b);
        align_detail::QueryRow<std::int64_t> query{&sample.anchor, 0,   column.deltas.data(), 1, num_targets,
                                                   entry.local,    out, {valid, 0, 1},        {}};
        query.hint = hint;
        if (column.scaled) {
            query.out = scratch_.data();
            query.first_out = tile_.begin;
        }
        align_detail::TileWriter<std::int64_t>(plan_.rows_of(entry.part, c).stream, query)
            .write(tile_, kernels_, placed);
        if (column.scaled) {
            host_.lane(entry.part, c)
                .of_written->apply(scratch_.data(), out + tile_.begin * output.row_bytes,
                                   tile_.count * column.num_channels);
        }
        for (std::int64_t k = tile_.begin; k < tile_.begin + tile_.count; ++k) valid[k] = !valid[k];
    }

    bool non_temporal_;
    const HostBatch& host_;
    const BatchPlan& plan_;
    const align_detail::CpuKernels& kernels_;
    StreamOut stream_out_;
    std::vector<Output> outputs_;
    std::vector<std::unique_ptr<char[]>> hidden_;  // rows of one sample that the batch does not have
    std::vector<char> scratch_;                    // of a tile that is scaled
    std::unique_ptr<bool[]> valid_;                // where nobody asks for the padding
    IndexPlan index_;
    SampleFeatures features_;
    Sample samples_[samples_at_once];
    align_detail::Tile<std::int64_t> tile_;
};

/// What threads do for one call.
struct PartReader {
    const HostBatch& host;
    const BatchPlan& plan;
    BatchCall call;
    bool non_temporal;

    void operator()(std::int64_t begin, std::int64_t end) const {
        SampleReader reader(host, plan, call, non_temporal);
        for (std::int64_t b = begin; b < end; b += samples_at_once) {
            reader.read(call, b, std::min(b + samples_at_once, end));
        }
    }
};

}  // namespace

std::int64_t HostBatch::samples_of_part(std::int64_t count) const {
    if (count * sample_work_ < parallel_bytes) return count;
    return std::clamp<std::int64_t>(parallel_bytes / (sample_work_ + 1), 1, samples_at_once);
}

void HostBatch::read(const BatchPlan& plan, const BatchCall& told, CudaQueue) const {
    PartReader reader{*this, plan, told, told.count * sample_bytes_ > stream_bytes};
    reader.call.steps.apply(reader.call.order, reader.call.first_position);
    parallel_for(told.count, samples_of_part(told.count), reader);
}

}  // namespace robocache::loader_detail

namespace robocache {

struct PendingBatch::State {
    State(const loader_detail::HostBatch& host, const loader_detail::BatchPlan& plan, loader_detail::BatchCall call,
          std::int64_t part)
        : outputs(call.outputs.begin(), call.outputs.end()),
          job(call.count, part, loader_detail::PartReader{host, plan, with_outputs(call), true}) {}

    loader_detail::BatchCall with_outputs(loader_detail::BatchCall call) const {
        call.outputs = outputs;
        return call;
    }
    std::vector<BatchOutput> outputs;
    Background<loader_detail::PartReader> job;
};

PendingBatch loader_detail::HostBatch::read_ahead(const BatchPlan& plan, const BatchCall& call) const {
    return PendingBatch(std::make_unique<PendingBatch::State>(*this, plan, call, samples_of_part(call.count)));
}

PendingBatch::PendingBatch(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
PendingBatch::~PendingBatch() = default;
PendingBatch::PendingBatch(PendingBatch&&) noexcept = default;
PendingBatch& PendingBatch::operator=(PendingBatch&&) noexcept = default;

bool PendingBatch::is_done() const {
    return state_->job.is_done();
}

void PendingBatch::wait() const {
    state_->job.wait();
}

}  // namespace robocache
