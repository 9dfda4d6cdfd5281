// Batches on the CPU: samples side by side. Windows that lie on the rows are copied as they are; everything else is
// read by the tiles of align.
#include "loader/batch_cpu.hpp"

#include <algorithm>
#include <cstring>

#include "core/thread_pool.hpp"
#include "ops/align/cpu_tile.hpp"

namespace robocache::loader_detail {
namespace {

constexpr std::int64_t samples_at_once = 32;        // their anchors and times are on the way from memory together
constexpr std::int64_t samples_ahead = 4;           // their rows are on the way while one is written
constexpr std::int64_t parallel_bytes = 512 << 10;  // less output than this is not worth waking a thread for
constexpr std::int64_t stream_bytes = 16 << 20;     // an output larger than this goes past the caches

/// Asks for some bytes, into the second level of the caches: the first has room for fewer on the way. The hardware
/// finds the rest of a longer run by itself.
void fetch(const void* begin, std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t most = 32 * line;
    const auto* from = static_cast<const char*>(begin);
    for (std::int64_t at = 0; at < std::min(bytes, most); at += line) __builtin_prefetch(from + at, 0, 2);
    asm volatile("");  // GCC drops calls of a function that has no effect but to fetch
}

/// Reads some samples of a call on one thread.
class SampleReader {
public:
    SampleReader(const HostBatch& host, const BatchPlan& plan, const BatchCall& call, bool past_caches)
        : past_caches_(past_caches),
          host_(host),
          plan_(plan),
          kernels_(align_detail::best_kernels()),
          spots_(static_cast<std::size_t>(samples_at_once) * host.searches.size()),
          scratch_(static_cast<std::size_t>(host.scratch_bytes)),
          valid_(new bool[static_cast<std::size_t>(host.most_targets)]) {
        for (std::size_t c = 0; c < plan.columns.size(); ++c) {
            const ColumnPlan& column = plan.columns[c];
            const BatchOutput& output = call.outputs[c];
            outputs_.push_back({static_cast<char*>(output.values.data),
                                output.padding ? static_cast<bool*>(output.padding->data) : nullptr,
                                row_bytes(column, column.dtype)});
        }
    }

    /// Samples [begin, end) of the batch, samples_at_once at most.
    void read(const BatchCall& call, std::int64_t begin, std::int64_t end) {
        const std::int64_t count = end - begin;
        for (std::int64_t i = 0; i < count; ++i) {
            places_[i] = place_of_position(plan_.tables.data(), call.order,
                                           call.first_position + static_cast<std::uint64_t>(begin + i));
            find_anchor(i);
        }
        for (std::int64_t i = 0; i < count; ++i) locate(i);
        for (std::int64_t i = 0; i < std::min(samples_ahead, count); ++i) fetch_rows(i);
        for (std::int64_t i = 0; i < count; ++i) {
            if (i + samples_ahead < count) fetch_rows(i + samples_ahead);
            for (std::size_t s = 0; s < host_.searches.size(); ++s) write(begin + i, i, s);
        }
    }

private:
    /// Where one sample is read, for the columns of one search.
    struct Spot {
        const std::int64_t* times;  // of the episode
        std::int64_t num_rows;
        std::int64_t first_row;  // of the episode in its part
        std::int64_t row;        // of the first target in the episode, a guess; below 0: before it
    };

    struct Output {
        char* values;
        bool* padding;
        std::int64_t row_bytes;
    };

    struct Sample {
        Anchor anchor;
        std::int64_t part;
        std::int64_t local;
        bool has_time;  // the anchor's, without reading it
    };

    [[nodiscard]] Spot& spot(std::int64_t i, std::size_t s) {
        return spots_[static_cast<std::size_t>(i) * host_.searches.size() + s];
    }

    /// The episode of sample i, and its anchor where that is known then; else asks for it.
    void find_anchor(std::int64_t i) {
        const TablePlan& table = plan_.tables[static_cast<std::size_t>(places_[i].table)];
        const auto number = static_cast<std::int64_t>(places_[i].number);
        const std::int64_t local = episode_of_anchor(table, number);
        const std::int64_t episode = table.first_episode + local;
        const auto e = static_cast<std::size_t>(episode);
        samples_[i] = {{episode, 0}, plan_.part[e], plan_.local[e], false};
        if (host_.anchor_search < host_.searches.size()) {
            const EvenTimes& even = host_.even_times(episode, host_.anchor_search);
            if (even.step > 0) {
                samples_[i].anchor.time = even.first + (number - table.prefix[local]) * even.step;
                samples_[i].has_time = true;
                return;
            }
        }
        if (!(table.period_ns > 0)) fetch(table.times + number, 1);
    }

    /// The anchor of sample i, and where its rows probably are; asks for their times.
    void locate(std::int64_t i) {
        const TablePlan& table = plan_.tables[static_cast<std::size_t>(places_[i].table)];
        Anchor& anchor = samples_[i].anchor;
        if (!samples_[i].has_time) {
            anchor.time =
                anchor_time(table, anchor.episode - table.first_episode, static_cast<std::int64_t>(places_[i].number));
        }
        const std::int64_t* prefix = table.prefix + (anchor.episode - table.first_episode);
        const std::int64_t number = static_cast<std::int64_t>(places_[i].number) - prefix[0];
        const std::int64_t num_anchors = prefix[1] - prefix[0];
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const Guess& guess = host_.guess(samples_[i].part, s);
            const auto rows = align_detail::episode_rows<std::int64_t>(
                plan_.rows_of(samples_[i].part, host_.searches[s].columns[0]).stream, samples_[i].local);
            const auto near_anchor =
                rows.times.count == num_anchors
                    ? number
                    : static_cast<std::int64_t>(static_cast<double>(number) * static_cast<double>(rows.times.count) /
                                                static_cast<double>(num_anchors));
            spot(i, s) = {rows.times.data, rows.times.count, rows.first_row, near_anchor + guess.first};
            if (host_.even_times(anchor.episode, s).step > 0) continue;
            fetch(rows.times.data + clamped(spot(i, s)) * rows.times.stride, guess.span * rows.times.stride * 8);
        }
    }

    static std::int64_t clamped(const Spot& spot) {
        return std::max<std::int64_t>(std::min(spot.row, spot.num_rows - 1), 0);
    }

    void fetch_rows(std::int64_t i) {
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const std::int64_t span = host_.guess(samples_[i].part, s).span;
            const std::int64_t row = spot(i, s).first_row + clamped(spot(i, s));
            for (const std::size_t c : host_.searches[s].columns) {
                const Lane& lane = host_.lane(samples_[i].part, c);
                fetch(lane.values + row * lane.row_stride, span * lane.row_stride);
            }
        }
    }

    /// Sample i of those at hand, number b of the batch.
    void write(std::int64_t b, std::int64_t i, std::size_t s) {
        const Search& search = host_.searches[s];
        const Spot& here = spot(i, s);
        const std::int64_t anchor = samples_[i].anchor.time;
        const EvenTimes& even = host_.even_times(samples_[i].anchor.episode, s);
        Run run;
        if (!search.shifts.empty()) {
            run = even.step > 0 ? find_run(even, here.num_rows, anchor, search, here.row)
                                : find_run(here.times, here.num_rows, anchor, search, here.row);
        }
        bool all = run.count > 0;
        for (const std::size_t c : search.columns) {
            const Lane& lane = host_.lane(samples_[i].part, c);
            if (run.count > 0 && lane.in_runs) {
                write_run(b, c, search, lane, here.first_row, run);
            } else {
                all = false;
            }
        }
        if (!all) write_tiles(b, i, s, run.count > 0);
    }

    void write_run(std::int64_t b, std::size_t c, const Search& search, const Lane& lane, std::int64_t first_row,
                   const Run& run) const {
        const Output& output = outputs_[c];
        const std::int64_t bytes = output.row_bytes;
        const char* rows = lane.values + (first_row + run.row) * lane.row_stride;
        char* out = output.values + b * search.num_targets * bytes;
        const auto copy = [&](const char* from, std::int64_t to, std::int64_t count) {
            if (lane.of_rows != nullptr) {
                lane.of_rows->apply(from, out + to * bytes, count * plan_.columns[c].num_channels);
            } else if (past_caches_) {
                kernels_.stream_out(from, count * bytes, out + to * bytes);
            } else {
                std::memcpy(out + to * bytes, from, static_cast<std::size_t>(count * bytes));
            }
        };
        const std::int64_t end = run.before + run.count;
        const char* last = rows + (run.count - 1) * lane.row_stride;
        for (std::int64_t j = 0; j < run.before; ++j) copy(rows, j, 1);
        copy(rows, run.before, run.count);
        for (std::int64_t j = end; j < search.num_targets; ++j) copy(last, j, 1);
        if (output.padding == nullptr) return;
        bool* padding = output.padding + b * search.num_targets;
        std::fill_n(padding, search.num_targets, search.held_pads);
        std::fill_n(padding + run.before, run.count, false);
    }

    /// The columns of a search, without those that write_run has written.
    void write_tiles(std::int64_t b, std::int64_t i, std::size_t s, bool has_run) {
        const Search& search = host_.searches[s];
        const Sample& sample = samples_[i];
        for (tile_.begin = 0; tile_.begin < search.num_targets; tile_.begin += search.tile_targets) {
            tile_.count = std::min(search.tile_targets, search.num_targets - tile_.begin);
            bool placed = false;
            for (const std::size_t c : search.columns) {
                if (has_run && host_.lane(sample.part, c).in_runs) continue;
                write_tile(b, i, s, c, placed);
                placed = true;
            }
        }
    }

    void write_tile(std::int64_t b, std::int64_t i, std::size_t s, std::size_t c, bool placed) {
        const std::int64_t num_targets = host_.searches[s].num_targets;
        const ColumnPlan& column = plan_.columns[c];
        const Output& output = outputs_[c];
        const Sample& sample = samples_[i];
        char* out = output.values + b * num_targets * output.row_bytes;
        bool* valid = output.padding == nullptr ? valid_.get() : output.padding + b * num_targets;
        align_detail::QueryRow<std::int64_t> query{&sample.anchor.time, 0,   column.deltas.data(), 1, num_targets,
                                                   sample.local,        out, {valid, 0, 1},        {}};
        query.hint = clamped(spot(i, s));
        if (column.scaled) {
            query.out = scratch_.data();
            query.first_out = tile_.begin;
        }
        align_detail::TileWriter<std::int64_t>(plan_.rows_of(sample.part, c).stream, query)
            .write(tile_, kernels_, placed);
        if (column.scaled) {
            host_.lane(sample.part, c)
                .of_written->apply(scratch_.data(), out + tile_.begin * output.row_bytes,
                                   tile_.count * column.num_channels);
        }
        for (std::int64_t k = tile_.begin; k < tile_.begin + tile_.count; ++k) valid[k] = !valid[k];
    }

    bool past_caches_;
    const HostBatch& host_;
    const BatchPlan& plan_;
    const align_detail::CpuKernels& kernels_;
    std::vector<Output> outputs_;
    std::vector<Spot> spots_;        // [sample * searches + search]
    std::vector<char> scratch_;      // of a tile that is scaled
    std::unique_ptr<bool[]> valid_;  // where nobody asks for the padding
    Place places_[samples_at_once];
    Sample samples_[samples_at_once];
    align_detail::Tile<std::int64_t> tile_;
};

}  // namespace

void HostBatch::read(const BatchPlan& plan, const BatchCall& told, Stream) const {
    BatchCall call = told;
    call.steps.apply(call.order, call.first_position);
    const bool alone = call.count * sample_bytes_ < parallel_bytes;
    parallel_for(call.count, alone ? call.count : samples_at_once, [&](std::int64_t begin, std::int64_t end) {
        SampleReader reader(*this, plan, call, call.count * sample_bytes_ > stream_bytes);
        for (std::int64_t b = begin; b < end; b += samples_at_once) {
            reader.read(call, b, std::min(b + samples_at_once, end));
        }
    });
}

}  // namespace robocache::loader_detail
