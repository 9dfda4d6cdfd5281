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
    const void* scales;
    std::int64_t max_gap;
    std::int64_t num_rows;
    std::int64_t anchor_row;  // -1: the anchor is no row of this stream
    double period;
    double rate;  // 1 / period
    float rows_per_ns;

    /// Of a row of an episode with a period.
    __device__ std::int64_t time_of(std::int64_t row) const {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(first_time) +
                                         static_cast<std::uint64_t>(__double2ll_rn(static_cast<double>(row) * period)));
    }
};

/// What is written for one target: a, or a and b by weight; a null: the weight, which is 0 or NaN.
struct PlacedTarget {
    const char* a;
    const char* b;
    const void* scales;
    double weight;
};

__device__ inline SampleRows find_sample(const BatchTable& table, const DeviceColumn& column, std::int64_t i) {
    std::uint64_t position = table.first_position + static_cast<std::uint64_t>(i);
    OrderPlan order = table.order;
    table.steps.apply(order, position);
    Anchor anchor;
    std::int64_t row = -1;
    if (order.num_tables > 1) {
        anchor = anchor_of_position(table.tables, order, position);
    } else {
        const std::uint64_t number = number_at_position(table.table, order, position);
        anchor = anchor_at(table.table, number);
        if (column.row_steps != nullptr) row = static_cast<std::int64_t>(number);
    }
    const EpisodeIndex episode = column.episodes[anchor.episode];
    PartRows rows = column.rows;
    if (column.parts != nullptr) rows = column.parts[episode.part * column.parts_step];
    return {anchor.time,
            episode.first_time,
            rows.times + episode.first_row,
            rows.values + episode.first_row * column.value_row_bytes,
            rows.scales,
            rows.max_gap,
            episode.num_rows,
            row < 0 ? row : row - episode.first_row,
            episode.period,
            episode.period > 0 ? 1.0 / episode.period : 0.0,
            episode.rows_per_ns};
}

/// Where a moment would be among evenly spaced rows.
__device__ __forceinline__ std::int64_t guessed_row(const SampleRows& rows, std::int64_t t) {
    if (t <= rows.first_time) return 0;
    // A little more, so that rounding does not put a row's own time before it.
    const float away = static_cast<float>(align_detail::distance(rows.first_time, t)) * rows.rows_per_ns + 0.01F;
    return static_cast<std::int64_t>(away < 1e18F ? away : 1e18F);
}

__device__ __forceinline__ void fetch_line(std::uint64_t address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Asks for the lines of memory that some samples will most likely need, without waiting for them: enough of them are
/// on their way then, however few registers there are to wait with. Never outside an episode.
__device__ inline void fetch_samples(const DeviceColumn& column, const SampleRows* samples, std::uint32_t count) {
    constexpr std::uint64_t line = 128;
    const std::uint32_t lines = column.by_fetched_lines.divisor;
    for (std::uint32_t k = threadIdx.x; k < count * lines; k += batch_threads) {
        const std::uint32_t s = column.by_fetched_lines.divide(k);
        const std::uint32_t i = k - s * lines;
        const SampleRows& rows = samples[s];
        const bool values = i < column.value_lines;
        if (!values && rows.period > 0) continue;  // its times are known
        const std::int64_t begin = guessed_row(rows, align_detail::add_time(rows.anchor, column.first_delta));
        const std::int64_t all = begin + column.fetched_rows;
        const std::int64_t end = all < rows.num_rows ? all : rows.num_rows;
        const std::int64_t row_bytes = values ? column.value_row_bytes : 8;
        const char* base = values ? rows.values : reinterpret_cast<const char*>(rows.times);
        const auto first = reinterpret_cast<std::uint64_t>(base + begin * row_bytes) / line * line;
        const std::uint64_t at = first + (values ? i : i - column.value_lines) * line;
        if (begin < end && at < reinterpret_cast<std::uint64_t>(base + end * row_bytes)) fetch_line(at);
    }
}

/// The rows of one target, where they are whole lines: of narrower ones half of each line would be for nothing.
__device__ inline void fetch_rows(const DeviceColumn& column, const char* row) {
    constexpr std::int64_t line = 128;
    constexpr std::int64_t most = 1024;
    if (row == nullptr || column.on_host || column.value_row_bytes < line || column.value_row_bytes > most) return;
    for (std::int64_t i = 0; i < column.value_row_bytes; i += line) {
        fetch_line(reinterpret_cast<std::uint64_t>(row + i));
    }
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

__device__ inline PlacedTarget place_target(const DeviceColumn& column, const SampleRows& rows, std::uint32_t j,
                                            bool& valid) {
    using align_detail::Kind;
    valid = false;
    if (rows.num_rows == 0) return {nullptr, nullptr, rows.scales, 0.0};
    const std::int64_t t =
        align_detail::add_time(align_detail::add_time(rows.anchor, __ldg(column.deltas + j)), column.latency);
    const align_detail::Sample sample = sample_target(column, rows, j, t);
    valid = sample.valid;
    if (sample.kind == Kind::nan) {
        return {nullptr, nullptr, rows.scales, __longlong_as_double(0x7ff8000000000000LL)};
    }
    const char* a = rows.values + sample.rows[0] * column.value_row_bytes;
    const char* b = sample.kind == Kind::blend ? rows.values + sample.rows[1] * column.value_row_bytes : nullptr;
    if (column.fetched_rows == 0) {
        fetch_rows(column, a);
        fetch_rows(column, b);
    }
    return {a, b, rows.scales, sample.weight};
}

}  // namespace robocache::loader_detail
