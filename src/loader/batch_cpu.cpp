// Batches on the CPU: samples side by side. Rows that lie exactly at the moments asked for are copied as one run;
// everything else is read by the tiles of align.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "core/thread_pool.hpp"
#include "loader/batch.hpp"
#include "loader/scaling.hpp"
#include "ops/align/cpu_tile.hpp"

namespace robocache::loader_detail {
namespace {

using align_detail::EpisodeRows;
using align_detail::StreamPlan;
using Times = align_detail::EpisodeTimes<std::int64_t>;

constexpr std::int64_t samples_at_once = 32;            // their anchors and times are on the way from memory together
constexpr std::int64_t samples_ahead = 3;               // their rows are on the way while one is written
constexpr std::int64_t parallel_bytes = 64 << 10;       // less output than this is not worth waking a thread for
constexpr std::int64_t far_ns = std::int64_t{1} << 60;  // moments nearer to 0 than this are added without saturation

/// Columns that find the same rows for every sample: searched once.
struct Search {
    std::vector<std::size_t> columns;
    std::vector<std::int64_t> shifts;  // ns from an anchor to each row asked for; empty where there are no runs
    std::int64_t num_targets = 0;
    std::int64_t tile_targets = 0;
};

/// Where the rows of a search are, in one part: a guess.
struct Guess {
    std::int64_t first = 0;  // from the row of the anchor to that of the first target
    std::int64_t span = 1;   // rows from there to the last one
};

/// How one column is written in one part.
struct Writing {
    bool in_runs = false;  // a run of rows is a run of the output
    std::optional<Scaling> of_rows;
    std::optional<Scaling> of_written;
};

/// What a step that is told in memory means: the order of its epoch and its first position.
BatchCall at_step(BatchCall call) {
    if (call.step == nullptr) return call;
    const std::int64_t epoch = *call.step / call.num_steps;
    const auto begin = static_cast<std::uint64_t>(*call.step % call.num_steps * call.stride);
    call.order.key = key_of(call.order.seed, static_cast<std::uint64_t>(epoch), 1);
    call.first_position += begin + static_cast<std::uint64_t>(epoch) * static_cast<std::uint64_t>(call.epoch_size);
    return call;
}

bool is_near(std::int64_t ns) {
    return ns > -far_ns && ns < far_ns;
}

bool has_windows(const StreamPlan& stream) {
    return std::any_of(stream.ranges.begin(), stream.ranges.end(),
                       [](const auto& range) { return align_detail::is_window(range.method); });
}

/// Ascending shifts that nothing saturates, of a stream whose methods take an exact row as it is.
std::vector<std::int64_t> shifts_of(const ColumnPlan& column, const StreamPlan& stream) {
    const std::int64_t latency = stream.latency.ns;
    if (has_windows(stream) || !is_near(latency)) return {};
    std::vector<std::int64_t> shifts;
    for (const std::int64_t delta : column.deltas) {
        if (!is_near(delta) || (!shifts.empty() && delta + latency <= shifts.back())) return {};
        shifts.push_back(delta + latency);
    }
    return shifts;
}

bool same_search(const BatchPlan& plan, std::size_t a, std::size_t b) {
    if (plan.columns[a].deltas != plan.columns[b].deltas) return false;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        if (!align_detail::search_alike(plan.rows_of(p, a).stream, plan.rows_of(p, b).stream)) return false;
    }
    return true;
}

std::int64_t row_bytes(const ColumnPlan& column, DType dtype) {
    return column.num_channels * size_bytes(dtype);
}

std::vector<Search> searches_of(const BatchPlan& plan) {
    std::vector<Search> searches;
    for (std::size_t c = 0; c < plan.columns.size(); ++c) {
        const auto same = std::find_if(searches.begin(), searches.end(),
                                       [&](const Search& s) { return same_search(plan, s.columns[0], c); });
        Search& search = same == searches.end() ? searches.emplace_back() : *same;
        search.columns.push_back(c);
    }
    for (Search& search : searches) {
        const ColumnPlan& first = plan.columns[search.columns[0]];
        search.num_targets = first.num_targets();
        search.shifts = shifts_of(first, plan.rows_of(0, search.columns[0]).stream);
        std::int64_t widest = 1;
        for (const std::size_t c : search.columns) {
            widest = std::max(widest, row_bytes(plan.columns[c], plan.rows_of(0, c).stream.values_dtype));
        }
        search.tile_targets = std::min(align_detail::targets_per_tile(widest), search.num_targets);
    }
    return searches;
}

/// From the rate of the first episode that has one.
Guess guess_of(const ColumnPlan& column, const StreamPlan& stream) {
    for (std::int64_t e = 0; e < stream.num_episodes; ++e) {
        const Times times = align_detail::episode_rows<std::int64_t>(stream, e).times;
        if (times.count < 2 || times[0] >= times[times.count - 1]) continue;
        const double rate = static_cast<double>(times.count - 1) /
                            (static_cast<double>(times[times.count - 1]) - static_cast<double>(times[0]));
        const auto rows = [&](double ns) { return std::llrint(std::clamp(ns * rate, -1e15, 1e15)); };
        const auto first = static_cast<double>(column.deltas.front());
        const auto last = static_cast<double>(column.deltas.back());
        return {rows(first + static_cast<double>(stream.latency.ns)),
                std::max<std::int64_t>(rows(last - first) + 1, 1)};
    }
    return {};
}

Writing writing_of(const ColumnPlan& column, const RowsPlan& rows) {
    const StreamPlan& s = rows.stream;
    Writing writing;
    writing.in_runs = s.outer.empty() && s.inner.value_stride == 1 && s.time_row_stride == 1 &&
                      s.value_row_stride == row_bytes(column, s.values_dtype) &&
                      (column.scaled || column.dtype == s.values_dtype);
    if (column.scaled) {
        const auto channels = static_cast<std::int64_t>(rows.offset.size());
        const auto scaling = [&](DType from) {
            return Scaling(rows.offset.data(), rows.scale.data(), channels, from, column.dtype);
        };
        writing.of_rows = scaling(s.values_dtype);
        writing.of_written = scaling(column.written);
    }
    return writing;
}

class HostBatch final : public DeviceBatch {
public:
    explicit HostBatch(const BatchPlan& plan) : searches(searches_of(plan)) {
        for (std::int64_t p = 0; p < plan.num_parts; ++p) {
            for (const Search& search : searches) {
                const std::size_t c = search.columns[0];
                guesses.push_back(guess_of(plan.columns[c], plan.rows_of(p, c).stream));
            }
            for (std::size_t c = 0; c < plan.columns.size(); ++c) {
                writings.push_back(writing_of(plan.columns[c], plan.rows_of(p, c)));
            }
        }
        for (const Search& search : searches) {
            for (const std::size_t c : search.columns) {
                const ColumnPlan& column = plan.columns[c];
                sample_bytes += search.num_targets * row_bytes(column, column.dtype);
                if (!column.scaled) continue;
                scratch_bytes = std::max(scratch_bytes, search.tile_targets * row_bytes(column, column.written));
            }
            most_targets = std::max(most_targets, search.num_targets);
        }
    }

    void read(const BatchPlan& plan, const BatchCall& call, Stream stream) const override;

    std::vector<Search> searches;
    std::vector<Guess> guesses;     // [part * searches + search]
    std::vector<Writing> writings;  // [part * columns + column]
    std::int64_t sample_bytes = 0;
    std::int64_t scratch_bytes = 0;
    std::int64_t most_targets = 0;
};

/// Asks for some bytes. The hardware finds the rest of a longer run by itself.
void fetch(const void* begin, std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t most = 32 * line;
    const auto* from = static_cast<const char*>(begin);
    for (std::int64_t at = 0; at < std::min(bytes, most); at += line) __builtin_prefetch(from + at);
}

/// From a guess to the last row at or before t, as far as that is a few steps away. The episode has rows.
std::int64_t step_to(const Times& times, std::int64_t t, std::int64_t row) {
    constexpr int most = 8;
    for (int i = 0; i < most && row > 0 && times[row] > t; ++i) --row;
    for (int i = 0; i < most && row + 1 < times.count && times[row + 1] <= t; ++i) ++row;
    return row;
}

/// Whether the rows from `row` on are those that every method takes as they are: each exactly at its target and, where
/// times repeat, the last of its time. Times are `stride` 1.
bool is_run(const Times& times, std::int64_t anchor, const std::vector<std::int64_t>& shifts, std::int64_t row) {
    const auto count = static_cast<std::int64_t>(shifts.size());
    if (count == 0 || row + count > times.count || !is_near(anchor)) return false;
    const std::int64_t* from = times.data + row;
    std::int64_t difference = 0;
    for (std::int64_t j = 0; j < count; ++j) difference |= from[j] ^ (anchor + shifts[static_cast<std::size_t>(j)]);
    return difference == 0 && (row + count == times.count || from[count] != from[count - 1]);
}

/// Reads some samples of a call on one thread.
class SampleReader {
public:
    SampleReader(const HostBatch& host, const BatchPlan& plan, const BatchCall& call)
        : host_(host),
          plan_(plan),
          call_(call),
          kernels_(align_detail::best_kernels()),
          rows_(static_cast<std::size_t>(samples_at_once) * host.searches.size()),
          scratch_(static_cast<std::size_t>(host.scratch_bytes)),
          valid_(new bool[static_cast<std::size_t>(host.most_targets)]) {}

    void read(std::int64_t begin, std::int64_t end) {
        const std::int64_t count = end - begin;
        for (std::int64_t i = 0; i < count; ++i) {
            places_[i] = place_of_position(plan_.tables.data(), call_.order,
                                           call_.first_position + static_cast<std::uint64_t>(begin + i));
            const TablePlan& table = plan_.tables[static_cast<std::size_t>(places_[i].table)];
            if (!(table.period_ns > 0)) fetch(table.times + places_[i].number, 1);
        }
        for (std::int64_t i = 0; i < count; ++i) locate(i);
        for (std::int64_t i = 0; i < std::min(samples_ahead, count); ++i) fetch_rows(i);
        for (std::int64_t i = 0; i < count; ++i) {
            if (i + samples_ahead < count) fetch_rows(i + samples_ahead);
            for (std::size_t s = 0; s < host_.searches.size(); ++s) write(begin + i, i, s);
        }
    }

private:
    [[nodiscard]] std::int64_t& row_of(std::int64_t i, std::size_t s) {
        return rows_[static_cast<std::size_t>(i) * host_.searches.size() + s];
    }

    [[nodiscard]] EpisodeRows<std::int64_t> episode_of(std::int64_t i, std::size_t column) const {
        const auto e = static_cast<std::size_t>(anchors_[i].episode);
        return align_detail::episode_rows<std::int64_t>(plan_.rows_of(plan_.part[e], column).stream, plan_.local[e]);
    }

    /// The anchor of sample i, and where its rows probably are; asks for their times.
    void locate(std::int64_t i) {
        const TablePlan& table = plan_.tables[static_cast<std::size_t>(places_[i].table)];
        anchors_[i] = anchor_at(table, places_[i].number);
        const std::int64_t* prefix = table.prefix + (anchors_[i].episode - table.first_episode);
        const std::int64_t number = static_cast<std::int64_t>(places_[i].number) - prefix[0];
        const std::int64_t num_anchors = prefix[1] - prefix[0];
        const std::int64_t part = plan_.part[static_cast<std::size_t>(anchors_[i].episode)];
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const Guess& guess = host_.guesses[static_cast<std::size_t>(part) * host_.searches.size() + s];
            const Times times = episode_of(i, host_.searches[s].columns[0]).times;
            const std::int64_t near_anchor =
                times.count == num_anchors
                    ? number
                    : static_cast<std::int64_t>(static_cast<double>(number) * static_cast<double>(times.count) /
                                                static_cast<double>(num_anchors));
            const std::int64_t last = std::max<std::int64_t>(times.count - 1, 0);
            const std::int64_t row = row_of(i, s) = std::clamp<std::int64_t>(near_anchor + guess.first, 0, last);
            if (times.count > 0) fetch(&times.data[row * times.stride], guess.span * times.stride * 8);
        }
    }

    void fetch_rows(std::int64_t i) {
        const std::int64_t part = plan_.part[static_cast<std::size_t>(anchors_[i].episode)];
        for (std::size_t s = 0; s < host_.searches.size(); ++s) {
            const Guess& guess = host_.guesses[static_cast<std::size_t>(part) * host_.searches.size() + s];
            for (const std::size_t c : host_.searches[s].columns) {
                const std::int64_t stride = plan_.rows_of(part, c).stream.value_row_stride;
                fetch(episode_of(i, c).values + row_of(i, s) * stride, guess.span * stride);
            }
        }
    }

    void write(std::int64_t b, std::int64_t i, std::size_t s) {
        const Search& search = host_.searches[s];
        const std::int64_t part = plan_.part[static_cast<std::size_t>(anchors_[i].episode)];
        const Times times = episode_of(i, search.columns[0]).times;
        bool run = false;
        std::int64_t& row = row_of(i, s);
        if (times.count > 0 && !search.shifts.empty() && is_near(anchors_[i].time)) {
            row = step_to(times, anchors_[i].time + search.shifts[0], row);
            run = times.stride == 1 && is_run(times, anchors_[i].time, search.shifts, row);
        }
        bool all = run;
        for (const std::size_t c : search.columns) {
            if (run && writing_of_column(part, c).in_runs) {
                copy_run(b, i, c, row);
            } else {
                all = false;
            }
        }
        if (!all) write_tiles(b, i, search, row, run);
    }

    [[nodiscard]] const Writing& writing_of_column(std::int64_t part, std::size_t c) const {
        return host_.writings[static_cast<std::size_t>(part) * plan_.columns.size() + c];
    }

    [[nodiscard]] char* out_of(std::int64_t b, std::size_t c) const {
        const ColumnPlan& column = plan_.columns[c];
        return static_cast<char*>(call_.outputs[c].values.data) +
               b * column.num_targets() * row_bytes(column, column.dtype);
    }

    [[nodiscard]] bool* padding_of(std::int64_t b, std::size_t c) const {
        const std::optional<TensorView>& padding = call_.outputs[c].padding;
        return padding ? static_cast<bool*>(padding->data) + b * plan_.columns[c].num_targets() : nullptr;
    }

    void copy_run(std::int64_t b, std::int64_t i, std::size_t c, std::int64_t row) const {
        const ColumnPlan& column = plan_.columns[c];
        const auto e = static_cast<std::size_t>(anchors_[i].episode);
        const RowsPlan& rows = plan_.rows_of(plan_.part[e], c);
        const char* from = episode_of(i, c).values + row * rows.stream.value_row_stride;
        const std::int64_t elements = column.num_targets() * column.num_channels;
        if (column.scaled) {
            writing_of_column(plan_.part[e], c).of_rows->apply(from, out_of(b, c), elements);
        } else {
            std::memcpy(out_of(b, c), from, static_cast<std::size_t>(elements * size_bytes(column.dtype)));
        }
        bool* padding = padding_of(b, c);
        if (padding != nullptr) std::memset(padding, 0, static_cast<std::size_t>(column.num_targets()));
    }

    /// Columns that copy_run has not written.
    void write_tiles(std::int64_t b, std::int64_t i, const Search& search, std::int64_t row, bool run) {
        const auto e = static_cast<std::size_t>(anchors_[i].episode);
        const std::int64_t part = plan_.part[e];
        for (tile_.begin = 0; tile_.begin < search.num_targets; tile_.begin += search.tile_targets) {
            tile_.count = std::min(search.tile_targets, search.num_targets - tile_.begin);
            bool placed = false;
            for (const std::size_t c : search.columns) {
                const Writing& writing = writing_of_column(part, c);
                if (run && writing.in_runs) continue;
                const ColumnPlan& column = plan_.columns[c];
                bool* padding = padding_of(b, c);
                align_detail::QueryRow<std::int64_t> query{&anchors_[i].time,
                                                           0,
                                                           column.deltas.data(),
                                                           1,
                                                           search.num_targets,
                                                           plan_.local[e],
                                                           out_of(b, c),
                                                           {padding != nullptr ? padding : valid_.get(), 0, 1},
                                                           {}};
                query.hint = row;
                if (column.scaled) {
                    query.out = scratch_.data();
                    query.first_out = tile_.begin;
                }
                align_detail::TileWriter<std::int64_t>(plan_.rows_of(part, c).stream, query)
                    .write(tile_, kernels_, placed);
                placed = true;
                finish_tile(column, writing, out_of(b, c), padding);
            }
        }
    }

    void finish_tile(const ColumnPlan& column, const Writing& writing, char* out, bool* padding) const {
        if (column.scaled) {
            writing.of_written->apply(scratch_.data(), out + tile_.begin * row_bytes(column, column.dtype),
                                      tile_.count * column.num_channels);
        }
        for (std::int64_t k = 0; padding != nullptr && k < tile_.count; ++k) {
            padding[tile_.begin + k] = !padding[tile_.begin + k];
        }
    }

    const HostBatch& host_;
    const BatchPlan& plan_;
    const BatchCall& call_;
    const align_detail::CpuKernels& kernels_;
    Place places_[samples_at_once];
    Anchor anchors_[samples_at_once];
    std::vector<std::int64_t> rows_;  // of the first target, a guess: [sample * searches + search]
    std::vector<char> scratch_;       // of a tile that is scaled
    std::unique_ptr<bool[]> valid_;   // where nobody asks for the padding
    align_detail::Tile<std::int64_t> tile_;
};

void HostBatch::read(const BatchPlan& plan, const BatchCall& told, Stream) const {
    const BatchCall call = at_step(told);
    const bool alone = call.count * sample_bytes < parallel_bytes;
    parallel_for(call.count, alone ? call.count : samples_at_once, [&](std::int64_t begin, std::int64_t end) {
        SampleReader reader(*this, plan, call);
        for (std::int64_t b = begin; b < end; b += samples_at_once) reader.read(b, std::min(b + samples_at_once, end));
    });
}

}  // namespace

std::unique_ptr<DeviceBatch> make_host_batch(const BatchPlan& plan) {
    return std::make_unique<HostBatch>(plan);
}

}  // namespace robocache::loader_detail
