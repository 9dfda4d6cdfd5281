// Finding on the GPU: the anchor and the episode of a sample, and the rows of each of its targets.
#pragma once

#include "batch/cuda/table.hpp"
#include "ops/align/cuda/search.cuh"
#include "ops/align/cuda/tile.cuh"

namespace robocache::loader_detail {

using align_detail::EpisodeTimes;

/// The rows of a sample's episode.
struct SampleRows {
    std::int64_t anchor;
    std::int64_t first_time;
    std::int64_t pivot_time;  // of a row near the anchor, from which rows are guessed
    std::int64_t pivot_row;
    const std::int64_t* times;
    const char* values;
    std::int64_t max_gap;
    std::int64_t num_rows;
    double away;      // ns from the first row to the anchor, with latency
    double last_row;  // -1: targets are not placed by the period
    double period;
    double rate;  // 1 / period
    float rows_per_ns;
    std::uint32_t part;

    /// Of a row of an episode with a period.
    __device__ std::int64_t time_of(std::int64_t row) const {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(first_time) +
                                         static_cast<std::uint64_t>(__double2ll_rn(static_cast<double>(row) * period)));
    }
};

/// What is written for one target.
struct alignas(16) PlacedTarget : align_detail::PlacedRow {
    std::uint32_t row;  // of the output, from the task's first
    std::uint32_t part_and_valid;

    __device__ std::uint32_t part() const { return part_and_valid >> 1; }
    __device__ bool valid() const { return (part_and_valid & 1) != 0; }
};

/// Sets `away` and `last_row` where place_by_period can count nanoseconds and rows.
__device__ inline void count_from_first_row(const DeviceColumn& column, SampleRows& rows) {
    constexpr std::int64_t far = std::int64_t{1} << 61;   // from here on times may saturate
    constexpr std::int64_t most = std::int64_t{1} << 50;  // twice that and `whole` is below 2^53
    const auto within = [](std::int64_t t, std::int64_t limit) { return t <= limit && t >= -limit; };
    rows.last_row = -1;
    if (!(rows.period > 0) || rows.num_rows > INT32_MAX || !within(rows.anchor, far) || !within(rows.first_time, far))
        return;
    const std::int64_t away = rows.anchor + column.latency - rows.first_time;
    if (static_cast<double>(rows.num_rows) * rows.period > static_cast<double>(most) || !within(away, most)) return;
    rows.away = static_cast<double>(away);
    rows.last_row = static_cast<double>(rows.num_rows - 1);
}

/// The row of a moment if rows were evenly spaced around the pivot. Not clamped to the episode.
__device__ __forceinline__ std::int64_t guessed_row(const SampleRows& rows, std::int64_t t) {
    const bool before = t < rows.pivot_time;
    const std::uint64_t gap =
        before ? align_detail::distance(t, rows.pivot_time) : align_detail::distance(rows.pivot_time, t);
    // A little later, so that rounding does not put a row's own time before it.
    float away = static_cast<float>(gap) * rows.rows_per_ns;
    away = floorf((before ? -away : away) + 0.01F);
    away = away < -1e18F ? -1e18F : (away > 1e18F ? 1e18F : away);
    return rows.pivot_row + static_cast<std::int64_t>(away);
}

/// Searches for the row of the anchor itself, so that the rows of all its moments are guessed from nearby.
__device__ inline void find_pivot(std::int64_t latency, SampleRows& rows) {
    const EpisodeTimes<std::int64_t> times{rows.times, 1, rows.num_rows};
    const std::int64_t t = align_detail::add_time(rows.anchor, latency);
    const std::int64_t row = align_detail::search_near(times, t, guessed_row(rows, t));
    rows.pivot_row = row < 0 ? 0 : row;
    rows.pivot_time = times[rows.pivot_row];
}

__device__ inline SampleRows find_sample(const BatchTable& table, const DeviceColumn& column, std::int64_t i) {
    std::uint64_t position = table.first_position + static_cast<std::uint64_t>(i);
    OrderPlan order = table.order;
    table.steps.apply(order, position);
    const bool mixed = order.num_tables > 1;
    Place place{0, position};
    if (mixed) {
        place = place_of_position(table.tables, order, position);
    } else if (table.has_rounds) {
        const auto count = static_cast<std::uint64_t>(table.table.num_anchors);
        place.number = permute(position, count, table.table.bits, table.rounds);
    } else {
        place.number = number_at_position(table.table, order, position);
    }
    const TablePlan& anchors = mixed ? table.tables[place.table] : table.table;
    const auto number = static_cast<std::int64_t>(place.number);
    const std::int64_t e = episode_of_anchor(anchors, number);
    const EpisodeIndex episode = column.episodes[anchors.first_episode + e];
    PartRows rows = column.rows;
    if (column.parts != nullptr) rows = column.parts[episode.part * column.parts_step];
    const std::int64_t anchor_row = column.anchors_are_rows ? number - episode.first_row : -1;
    SampleRows found{0,
                     episode.first_time,
                     episode.first_time,
                     0,
                     rows.times + episode.first_row,
                     rows.values + episode.first_row * column.value_row_bytes,
                     rows.max_gap,
                     episode.num_rows,
                     0.0,
                     -1.0,
                     episode.period,
                     episode.rate,
                     episode.rows_per_ns,
                     static_cast<std::uint32_t>(episode.part)};
    const bool computed = anchor_row >= 0 && episode.period > 0;
    found.anchor = computed ? found.time_of(anchor_row) : anchor_time(anchors, e, number);
    count_from_first_row(column, found);
    if (anchor_row >= 0) {
        found.pivot_row = anchor_row;
        found.pivot_time = found.anchor;
    } else if (found.last_row < 0 && found.num_rows > 0) {
        find_pivot(column.latency, found);
    }
    return found;
}

/// Whether the moments of a window are as far apart as the rows of its episode and on them, or would be if the episode
/// went on at both ends; then `first` is the row of the first one. Every method takes a row at its own time as it is.
__device__ inline bool find_first_row(const DeviceColumn& column, const SampleRows& rows, std::int64_t& first) {
    constexpr std::int64_t far = std::int64_t{1} << 61;  // from here on times may saturate
    constexpr double exact = 9007199254740992.0;         // up to here float64 counts nanoseconds
    const auto is_far = [](std::int64_t t) { return t > far || t < -far; };
    if (!(column.run_step > 0) || rows.period != column.run_step || is_far(rows.anchor) || is_far(rows.first_time)) {
        return false;
    }
    if (static_cast<double>(rows.num_rows) * rows.period >= exact) return false;
    const std::int64_t away = rows.anchor + column.run_first - rows.first_time;
    first = __double2ll_rn(static_cast<double>(away) * rows.rate);
    return first * static_cast<std::int64_t>(column.run_step) == away;
}

/// The first row of a window that is one piece of memory; else null.
__device__ inline const char* find_run(const DeviceColumn& column, const SampleRows& rows) {
    std::int64_t first = 0;
    if (!find_first_row(column, rows, first)) return nullptr;
    if (first < 0 || first > rows.num_rows - column.num_targets) return nullptr;
    return rows.values + first * column.value_row_bytes;
}

/// A window on the rows of an episode, of which the first and the last stand for what is before and after them.
struct Window {
    std::int64_t first;   // row; below 0 before the episode
    std::uint32_t head;   // moments before the first row that is read
    std::uint32_t count;  // rows that are read; 0: it is no such window

    /// The first row that is read.
    __device__ std::int64_t first_inside(std::int64_t num_rows) const {
        return first < 0 ? 0 : (first < num_rows ? first : num_rows - 1);
    }
};

__device__ inline Window find_window(const DeviceColumn& column, const SampleRows& rows) {
    Window window{};
    if (!find_first_row(column, rows, window.first)) return window;
    const std::int64_t last_row = rows.num_rows - 1;
    const std::int64_t last = window.first + column.num_targets - 1;
    if ((window.first < 0 && column.rules.before != Outside::hold) ||
        (last > last_row && column.rules.after != Outside::hold)) {
        return window;
    }
    const std::int64_t last_inside = last < 0 ? 0 : (last < last_row ? last : last_row);
    const std::int64_t before = window.first < 0 ? -window.first : 0;
    window.head = before < column.num_targets ? static_cast<std::uint32_t>(before) : column.num_targets - 1;
    window.count = static_cast<std::uint32_t>(last_inside - window.first_inside(rows.num_rows)) + 1;
    return window;
}

/// The sample of a target in an episode with rows. Nearly always they are at the guess.
__device__ inline align_detail::Sample sample_near(const EpisodeTimes<std::int64_t>& times, std::int64_t t,
                                                   std::int64_t guess, Method method, const align_detail::Rules& rules,
                                                   std::uint64_t tolerance) {
    constexpr int num_times = 4;
    auto located = align_detail::locate_near<num_times>(times, guess - 1, t);
    if (!located.found) located = align_detail::located_at(times, t, align_detail::search_near(times, t, guess));
    align_detail::snap(times, t, tolerance, located);
    return align_detail::sample_of<double>(times, t, located, method, rules);
}

__device__ inline align_detail::Sample sample_target(const DeviceColumn& column, const SampleRows& rows,
                                                     std::int64_t t) {
    const EpisodeTimes<std::int64_t> times{rows.times, 1, rows.num_rows};
    align_detail::Rules rules = column.rules;
    rules.max_gap.ns = rows.max_gap;
    return sample_near(times, t, guessed_row(rows, t), column.method, rules, column.tolerance);
}

/// Float64 has no fractions from here on (1.5 * 2^52), so that adding it rounds: conversions are eight times as slow.
constexpr double whole = 6755399441055744.0;

/// The usual target of an episode with a period: inside, and where multiplying says. Its rows' times are computed, not
/// read; they are ns from the first row, with `whole` added.
__device__ __forceinline__ bool place_by_period(const DeviceColumn& column, const SampleRows& rows, std::uint32_t j,
                                                PlacedTarget& placed) {
    using align_detail::Kind;
    if (rows.last_row < 0) return false;
    const double away = rows.away + __ldg(column.near_deltas + j);
    const double t = away + whole;
    // A little later, so that rounding does not put a row's own time before it.
    double left_and_whole = __dadd_rd((away + 0.75) * rows.rate, whole);
    double left = left_and_whole - whole;
    double t_left = left * rows.period + whole;
    double t_right = (left + 1) * rows.period + whole;
    if (t_left > t) {
        left_and_whole -= 1;
        left -= 1;
        t_right = t_left;
        t_left = left * rows.period + whole;
    }
    if (!(left >= 0 && left < rows.last_row && t_left <= t && t < t_right)) return false;
    align_detail::Rules rules = column.rules;
    if (rules.has_max_gap) rules.max_gap.seconds = static_cast<double>(rows.max_gap);  // ns, as the times are
    const auto row = static_cast<std::uint32_t>(__double2loint(left_and_whole));
    const align_detail::Neighbors near =
        align_detail::snapped({0, 1, t_left == t}, t - t_left, t_right - t, column.near_tolerance);
    const align_detail::Sample sample = align_detail::sample_inside(t, near, t_left, t_right, column.method, rules);
    const auto row_bytes = static_cast<std::uint32_t>(column.value_row_bytes);
    placed.a = rows.values + static_cast<std::uint64_t>(row) * row_bytes + (sample.rows[0] != 0 ? row_bytes : 0);
    if (sample.kind == Kind::blend) placed.b = placed.a + row_bytes;
    placed.set_weight(sample.weight, column.format.in == DType::f64);
    placed.part_and_valid |= sample.valid ? 1U : 0U;
    return true;
}

/// `row`: where it is written.
__device__ __forceinline__ PlacedTarget place_target(const DeviceColumn& column, const SampleRows& rows,
                                                     std::uint32_t j, std::uint32_t row) {
    PlacedTarget placed{{}, row, rows.part << 1};
    if (place_by_period(column, rows, j, placed) || rows.num_rows == 0) return placed;
    const std::int64_t t =
        align_detail::add_time(align_detail::add_time(rows.anchor, __ldg(column.deltas + j)), column.latency);
    const align_detail::Sample sample = sample_target(column, rows, t);
    placed.set(sample, rows.values, column.value_row_bytes, column.format.in == DType::f64);
    placed.part_and_valid |= sample.valid ? 1U : 0U;
    return placed;
}

}  // namespace robocache::loader_detail
