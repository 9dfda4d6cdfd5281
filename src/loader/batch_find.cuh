// Finding on the GPU: the anchor and the episode of a sample, and the rows of each of its targets.
#pragma once

#include "loader/batch_table.cuh"
#include "ops/align/cuda_place.cuh"

namespace robocache::loader_detail {

using align_detail::EpisodeTimes;

/// The rows of a sample's episode.
struct SampleRows {
    std::int64_t anchor;
    std::int64_t first_time;
    const std::int64_t* times;
    const char* values;
    std::int64_t max_gap;
    std::int64_t num_rows;
    std::int64_t anchor_row;  // -1: the anchor is no row of this stream
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

/// What is written for one target: a, or a and b by weight; a null: the weight, which is 0 or NaN.
struct alignas(16) PlacedTarget {
    const char* a;
    const char* b;
    double weight;
    std::uint32_t row;  // of the output, from the task's first
    std::uint32_t part_and_valid;

    __device__ std::uint32_t part() const { return part_and_valid >> 1; }
    __device__ bool valid() const { return (part_and_valid & 1) != 0; }
};

__device__ inline SampleRows find_sample(const BatchTable& table, const DeviceColumn& column, std::int64_t i) {
    std::uint64_t position = table.first_position + static_cast<std::uint64_t>(i);
    OrderPlan order = table.order;
    table.steps.apply(order, position);
    const bool mixed = order.num_tables > 1;
    const Place place = mixed ? place_of_position(table.tables, order, position)
                              : Place{0, number_at_position(table.table, order, position)};
    const TablePlan& anchors = mixed ? table.tables[place.table] : table.table;
    const auto number = static_cast<std::int64_t>(place.number);
    const std::int64_t e = episode_of_anchor(anchors, number);
    const EpisodeIndex episode = column.episodes[anchors.first_episode + e];
    PartRows rows = column.rows;
    if (column.parts != nullptr) rows = column.parts[episode.part * column.parts_step];
    SampleRows found{0,
                     episode.first_time,
                     rows.times + episode.first_row,
                     rows.values + episode.first_row * column.value_row_bytes,
                     rows.max_gap,
                     episode.num_rows,
                     column.row_steps == nullptr ? -1 : number - episode.first_row,
                     episode.period,
                     episode.rate,
                     episode.rows_per_ns,
                     static_cast<std::uint32_t>(episode.part)};
    const bool told = found.anchor_row >= 0 && episode.period > 0;
    found.anchor = told ? found.time_of(found.anchor_row) : anchor_time(anchors, e, number);
    return found;
}

/// The first row of a window whose moments are all rows of the episode, one after the other; else null. Every method
/// takes a row at its own time as it is.
__device__ inline const char* find_run(const DeviceColumn& column, const SampleRows& rows) {
    constexpr std::int64_t far = std::int64_t{1} << 61;  // from here on times may saturate
    constexpr double exact = 9007199254740992.0;         // up to here float64 counts nanoseconds
    if (!(column.run_step > 0) || rows.period != column.run_step || rows.anchor > far || rows.anchor < -far) {
        return nullptr;
    }
    if (static_cast<double>(rows.num_rows) * rows.period >= exact) return nullptr;
    const std::int64_t t = rows.anchor + __ldg(column.deltas) + column.latency;
    if (t < rows.first_time) return nullptr;
    const std::int64_t row =
        __double2ll_rn(static_cast<double>(align_detail::distance(rows.first_time, t)) * rows.rate);
    if (row > rows.num_rows - column.num_targets || rows.time_of(row) != t) return nullptr;
    return rows.values + row * column.value_row_bytes;
}

/// Where a moment would be among evenly spaced rows.
__device__ __forceinline__ std::int64_t guessed_row(const SampleRows& rows, std::int64_t t) {
    if (t <= rows.first_time) return 0;
    // A little more, so that rounding does not put a row's own time before it.
    const float away = static_cast<float>(align_detail::distance(rows.first_time, t)) * rows.rows_per_ns + 0.01F;
    return static_cast<std::int64_t>(away < 1e18F ? away : 1e18F);
}

/// last_at_or_before, from where an evenly spaced episode would have it: one wait for memory where that is near.
__device__ inline std::int64_t search_near(const EpisodeTimes<std::int64_t>& times, std::int64_t t,
                                           std::int64_t guess) {
    const std::int64_t end = times.count - 1;
    const std::int64_t probe = guess < 0 ? 0 : (guess > end ? end : guess);
    const std::int64_t before = probe > 0 ? probe - 1 : 0;
    const std::int64_t after = probe + 1 < end ? probe + 1 : end;
    const std::int64_t beyond = probe + 2 < end ? probe + 2 : end;
    const std::int64_t t_before = times[before];
    const std::int64_t t_probe = times[probe];
    const std::int64_t t_after = times[after];
    const std::int64_t t_beyond = times[beyond];
    if (t_before <= t) {
        if (t < t_beyond) return t < t_probe ? before : (t < t_after ? probe : after);
        std::int64_t low = beyond;  // times[low] <= t
        std::int64_t step = 2;
        for (; low + step <= end && times[low + step] <= t; step *= 4) low += step;
        return align_detail::first_after(times, low + 1, low + step <= end ? low + step : end + 1, t) - 1;
    }
    std::int64_t high = before;  // times[high] > t
    std::int64_t step = 2;
    for (; high - step >= 0 && !(times[high - step] <= t); step *= 4) high -= step;
    return align_detail::first_after(times, high - step >= 0 ? high - step : 0, high, t) - 1;
}

/// What to write for a target among the (at least one) rows of an episode: search, neighbours and sample of kernel.hpp.
/// Nearly always the rows are where the guess says and inside the episode; then four times, read at once, tell it all.
__device__ inline align_detail::Sample sample_near(const EpisodeTimes<std::int64_t>& times, std::int64_t t,
                                                   std::int64_t guess, Method method,
                                                   const align_detail::Rules& rules) {
    const std::int64_t last = times.count - 1;
    if (guess > 0 && guess + 2 <= last) {
        const std::int64_t t0 = times[guess - 1];
        const std::int64_t t1 = times[guess];
        const std::int64_t t2 = times[guess + 1];
        const std::int64_t t3 = times[guess + 2];
        if (t0 <= t && t < t2) {
            // left is guess - 1 or guess; the row after it stands for its time where the next one is later.
            const bool second = t1 <= t;
            const std::int64_t left = second ? guess : guess - 1;
            const std::int64_t t_left = second ? t1 : t0;
            const std::int64_t t_right = second ? t2 : t1;
            const bool exact = t_left == t;
            if (exact || t_right < (second ? t3 : t2)) {
                return align_detail::sample_inside(t, {left, left + 1, exact}, t_left, t_right, method, rules);
            }
        }
    }
    const auto near = align_detail::neighbours_of(times, t, search_near(times, t, guess));
    return align_detail::sample_at(times, t, near, method, rules);
}

/// The same for an episode with a period: its times are computed, not read.
__device__ inline bool sample_by_period(const SampleRows& rows, std::int64_t t, Method method,
                                        const align_detail::Rules& rules, align_detail::Sample& sample) {
    if (t < rows.first_time) return false;
    const double away = static_cast<double>(align_detail::distance(rows.first_time, t));
    std::int64_t left = __double2ll_rd(away * rows.rate);
    std::int64_t t_left = rows.time_of(left);
    if (t_left > t) t_left = rows.time_of(--left);
    std::int64_t t_right = rows.time_of(left + 1);
    if (t_right <= t) {
        t_left = t_right;
        t_right = rows.time_of(++left + 1);
    }
    if (left < 0 || left + 1 >= rows.num_rows || t_left > t || t_right <= t) return false;  // an edge
    sample = align_detail::sample_inside(t, {left, left + 1, t_left == t}, t_left, t_right, method, rules);
    return true;
}

__device__ inline align_detail::Sample sample_target(const DeviceColumn& column, const SampleRows& rows,
                                                     std::uint32_t j, std::int64_t t) {
    const EpisodeTimes<std::int64_t> times{rows.times, 1, rows.num_rows};
    if (rows.anchor_row >= 0) {
        // Windows on the rows themselves: the last row with just this time.
        const std::int64_t row = rows.anchor_row + __ldg(column.row_steps + j);
        if (row >= 0 && row + 1 < rows.num_rows) {
            const bool exact = rows.period > 0 ? rows.time_of(row) == t : times[row] == t && times[row + 1] > t;
            if (exact) return align_detail::row_sample(row, true);
        }
    }
    align_detail::Rules rules = column.rules;
    rules.max_gap.ns = rows.max_gap;
    align_detail::Sample sample;
    if (rows.period > 0 && sample_by_period(rows, t, column.method, rules, sample)) return sample;
    return sample_near(times, t, guessed_row(rows, t), column.method, rules);
}

/// `row`: where it is written.
__device__ inline PlacedTarget place_target(const DeviceColumn& column, const SampleRows& rows, std::uint32_t j,
                                            std::uint32_t row) {
    using align_detail::Kind;
    if (rows.num_rows == 0) return {nullptr, nullptr, 0.0, row, rows.part << 1};
    const std::int64_t t =
        align_detail::add_time(align_detail::add_time(rows.anchor, __ldg(column.deltas + j)), column.latency);
    const align_detail::Sample sample = sample_target(column, rows, j, t);
    if (sample.kind == Kind::nan) {
        return {nullptr, nullptr, __longlong_as_double(0x7ff8000000000000LL), row, rows.part << 1};
    }
    const char* a = rows.values + sample.rows[0] * column.value_row_bytes;
    const char* b = sample.kind == Kind::blend ? rows.values + sample.rows[1] * column.value_row_bytes : nullptr;
    return {a, b, sample.weight, row, rows.part << 1 | (sample.valid ? 1U : 0U)};
}

}  // namespace robocache::loader_detail
