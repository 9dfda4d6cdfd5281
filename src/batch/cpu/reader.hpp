// What a BatchReader knows on the CPU besides its plan: which columns are searched together, where their rows are, and
// the shortcut for windows that lie on the rows themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch/plan.hpp"
#include "batch/scaling.hpp"

namespace robocache::loader_detail {

/// Columns that find the same rows for every sample.
struct Search {
    std::vector<std::size_t> columns;
    std::vector<std::int64_t> shifts;  // ns from an anchor to each row asked for; empty: no shortcut
    std::int64_t shift_step = 0;       // from each of them to the next; 0: not always the same
    std::int64_t tolerance = 0;        // ns; less than half of every step between shifts
    std::int64_t num_targets = 0;
    std::int64_t tile_targets = 0;
    bool held = false;       // outside the rows the edge is repeated, and every such target is alike in `is_pad`
    bool held_pads = false;  // what it is there
};

/// Where the rows of a search are, in one part: a guess.
struct Guess {
    std::int64_t first = 0;  // from the row of the anchor to that of the first target
    std::int64_t span = 1;   // rows from there to the last one
};

/// The times of one episode of a search where they need not be read: row k has first + k * step.
struct EvenTimes {
    std::int64_t first = 0;
    std::int64_t step = 0;  // ns; 0: not even
};

/// One episode, as the columns of one search see it: what there is to know of a sample's place, in one line of the
/// caches. Tables of their own for each of these are six random reads for every sample.
struct alignas(64) EpisodeEntry {
    std::int64_t first_anchor = 0;  // in its table
    std::int64_t num_anchors = 0;
    std::int64_t part = 0;
    std::int64_t local = 0;      // its number there
    std::int64_t first_row = 0;  // there
    std::int64_t num_rows = 0;
    EvenTimes even;
};

/// How one column is written in one part.
struct Lane {
    const char* values = nullptr;
    std::int64_t row_stride = 0;  // bytes
    bool in_runs = false;         // a run of rows is a run of the output
    std::unique_ptr<const Scaling> of_rows;
    std::unique_ptr<const Scaling> of_written;
};

class HostBatch final : public BatchBackend {
public:
    explicit HostBatch(const BatchPlan& plan);
    void read(const BatchPlan& plan, const BatchCall& call, CudaQueue stream) const override;
    [[nodiscard]] PendingBatch read_ahead(const BatchPlan& plan, const BatchCall& call) const override;

    [[nodiscard]] const Guess& guess(std::int64_t part, std::size_t search) const {
        return guesses_[static_cast<std::size_t>(part) * searches.size() + search];
    }
    [[nodiscard]] const Lane& lane(std::int64_t part, std::size_t column) const {
        return lanes_[static_cast<std::size_t>(part) * num_columns_ + column];
    }

    /// An entry for each search. `episode` counts through all tables.
    [[nodiscard]] const EpisodeEntry* entries(std::int64_t episode) const {
        return entries_.data() + static_cast<std::size_t>(episode) * searches.size();
    }

    std::vector<Search> searches;
    std::size_t anchor_search = 0;   // whose rows are the anchors; searches.size(): of none
    std::int64_t scratch_bytes = 0;  // of a tile that is scaled
    std::int64_t most_targets = 0;

private:
    /// Samples that one thread reads at a time.
    [[nodiscard]] std::int64_t samples_of_part(std::int64_t count) const;
    void index_episodes(const BatchPlan& plan);

    std::size_t num_columns_;
    std::int64_t sample_bytes_ = 0;  // of the outputs
    std::int64_t sample_work_ = 0;   // the time of a sample: that of reading so many bytes
    std::vector<Guess> guesses_;
    std::vector<Lane> lanes_;
    std::vector<EpisodeEntry, HugePageAllocator<EpisodeEntry>> entries_;  // [episode * searches + search]
};

[[nodiscard]] inline std::int64_t row_bytes(const ColumnPlan& column, DType dtype) {
    return column.num_channels * size_bytes(dtype);
}

/// Times nearer to 0 than this are added without saturation.
[[nodiscard]] inline bool is_near(std::int64_t ns) {
    constexpr std::int64_t far_ns = std::int64_t{1} << 60;
    return ns > -far_ns && ns < far_ns;
}

/// The window of one sample, where it lies on the rows: `before` targets before the first row, then `count` targets
/// at rows row ... row + count - 1, then the others after the last row.
struct Run {
    std::int64_t row = 0;
    std::int64_t before = 0;
    std::int64_t count = 0;  // 0: it does not lie on the rows
};

/// The run that begins at `row` (where the first target is thought to be; below 0 where that is before the rows), if
/// its rows are at the targets.
[[nodiscard]] inline Run candidate_run(std::int64_t num_rows, std::int64_t anchor, const Search& search,
                                       std::int64_t row) {
    const auto num_targets = static_cast<std::int64_t>(search.shifts.size());
    const std::int64_t before = row < 0 ? -row : 0;
    row += before;
    const std::int64_t count = num_rows - row < num_targets - before ? num_rows - row : num_targets - before;
    if (count < 1 || !is_near(anchor) || (count < num_targets && !search.held)) return {};
    return {row, before, count};
}

/// The run, if every row of it is within the tolerance of its target and no row beside it is. Targets are more than two
/// tolerances apart, so that inside the run no other row is either, and those outside the rows stay outside.
template <class TimeOf>
[[nodiscard]] Run near_run(const TimeOf& time_of, std::int64_t num_rows, std::int64_t anchor, const Search& search,
                           const Run& run) {
    const auto tolerance = static_cast<std::uint64_t>(search.tolerance);
    if (tolerance == 0) return {};
    const auto is_near_to = [&](std::int64_t row, std::int64_t j) {  // nothing wraps around: see is_near
        const std::int64_t target = anchor + search.shifts[static_cast<std::size_t>(j)];
        return static_cast<std::uint64_t>(time_of(row)) - static_cast<std::uint64_t>(target) + tolerance <=
               2 * tolerance;
    };
    const std::int64_t last = run.before + run.count - 1;
    const std::int64_t end = run.row + run.count;
    if ((run.row > 0 && is_near_to(run.row - 1, run.before)) || (end < num_rows && is_near_to(end, last))) return {};
    bool all = true;
    for (std::int64_t j = 0; j < run.count; ++j) all = all && is_near_to(run.row + j, run.before + j);
    return all ? run : Run{};
}

/// Every method but the windows takes a row at its target as it is, of rows with one time the last (sample_inside,
/// neighbors_of in ops/align/kernel.hpp); shifts ascend, so that there is one time for each row.
///   times 0 10 20, shifts -10 0 10 20 30, anchor 0  ->  row 0, before 1, count 3
[[nodiscard]] inline Run find_run(const std::int64_t* times, std::int64_t num_rows, std::int64_t anchor,
                                  const Search& search, std::int64_t row) {
    const Run run = candidate_run(num_rows, anchor, search, row);
    if (run.count == 0) return {};
    const std::int64_t* from = times + run.row;
    const std::int64_t* shifts = search.shifts.data() + run.before;
    std::int64_t difference = 0;
    for (std::int64_t j = 0; j < run.count; ++j) difference |= from[j] ^ (anchor + shifts[j]);
    if (difference != 0) {
        return near_run([&](std::int64_t k) { return times[k]; }, num_rows, anchor, search, run);
    }
    const std::int64_t end = run.row + run.count;
    return end < num_rows && from[run.count] == from[run.count - 1] ? Run{} : run;
}

/// The same for even times, none of which is read: if the first row is at its target and both go on by the same step,
/// so are the others.
[[nodiscard]] inline Run find_run(const EvenTimes& even, std::int64_t num_rows, std::int64_t anchor,
                                  const Search& search, std::int64_t row) {
    const Run run = candidate_run(num_rows, anchor, search, row);
    if (run.count == 0) return {};
    const std::int64_t target = anchor + search.shifts[static_cast<std::size_t>(run.before)];
    const std::int64_t first = even.first + run.row * even.step;
    if (first == target && (run.count == 1 || search.shift_step == even.step)) return run;
    return near_run([&](std::int64_t k) { return even.first + k * even.step; }, num_rows, anchor, search, run);
}

}  // namespace robocache::loader_detail
