// Times of an episode: their distances, and the search for the rows around a target. A part of kernel.hpp.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "robocache/align.hpp"

namespace robocache::align_detail {

// ---- time -----------------------------------------------------------------------------------------------------------

/// The type in which the distance of two times is exact (int64) or as given (floating).
template <class Time>
struct GapOf {
    using type = Time;
};
template <>
struct GapOf<std::int64_t> {
    using type = std::uint64_t;
};
template <class Time>
using Gap = typename GapOf<Time>::type;

template <class Time>
ROBOCACHE_HD Time add_time(Time a, Time b) {
    return a + b;
}

template <>
ROBOCACHE_HD std::int64_t add_time(std::int64_t a, std::int64_t b) {
    const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    const bool overflow = ((a ^ sum) & (b ^ sum)) < 0;
    return overflow ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}

/// later - earlier, for later >= earlier.
template <class Time>
ROBOCACHE_HD Gap<Time> distance(Time earlier, Time later) {
    return static_cast<Gap<Time>>(later) - static_cast<Gap<Time>>(earlier);
}

template <class Time>
ROBOCACHE_HD Time duration_as(const Duration& duration) {
    return static_cast<Time>(duration.seconds);
}

template <>
ROBOCACHE_HD std::int64_t duration_as<std::int64_t>(const Duration& duration) {
    return duration.ns;
}

ROBOCACHE_HD bool within(std::uint64_t gap, const Duration& limit) {
    return gap <= static_cast<std::uint64_t>(limit.ns);
}

ROBOCACHE_HD bool within(double gap, const Duration& limit) {
    return gap <= limit.seconds;
}

ROBOCACHE_HD bool within(float gap, const Duration& limit) {
    return gap <= static_cast<float>(limit.seconds);  // 0.1 seconds between float32 times are 0.1F
}

/// A length of time as distances are compared with it.
template <class Time>
ROBOCACHE_HD Gap<Time> gap_as(const Duration& duration) {
    return static_cast<Gap<Time>>(duration_as<Time>(duration));
}

// ---- rows of an episode --------------------------------------------------------------------------------------------

struct RowRange {
    std::int64_t begin;
    std::int64_t end;

    ROBOCACHE_HD std::int64_t count() const { return end - begin; }
};

/// Offsets of an episode as rows of the stream; those out of order or out of range are clamped, so that memory stays
/// safe without checks.
ROBOCACHE_HD RowRange clamped_rows(std::int64_t begin, std::int64_t end, std::int64_t num_rows) {
    begin = begin < 0 ? 0 : (begin > num_rows ? num_rows : begin);
    end = end < begin ? begin : (end > num_rows ? num_rows : end);
    return {begin, end};
}

// ---- search ---------------------------------------------------------------------------------------------------------

/// The times of one episode. Every function below stays inside [0, count) whatever the times are.
template <class Time>
struct EpisodeTimes {
    const Time* data;
    std::int64_t stride;
    std::int64_t count;

    ROBOCACHE_HD Time operator[](std::int64_t row) const { return data[row * stride]; }
};

/// The number of rows in [lo, hi) + lo whose time is <= t: the first row after t.
template <class Time>
ROBOCACHE_HD std::int64_t first_after(const EpisodeTimes<Time>& times, std::int64_t lo, std::int64_t hi, Time t) {
    while (lo < hi) {
        const std::int64_t middle = lo + (hi - lo) / 2;
        if (times[middle] <= t) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/// The first row whose time is not before `edge`.
template <class Time, class Edge>
ROBOCACHE_HD std::int64_t first_not_before(const EpisodeTimes<Time>& times, Edge edge) {
    std::int64_t lo = 0;
    std::int64_t hi = times.count;
    while (lo < hi) {
        const std::int64_t middle = lo + (hi - lo) / 2;
        if (static_cast<Edge>(times[middle]) < edge) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/// The last row with time <= t, or -1. `hint` (-1 ... count-1) is where a nearby target was found.
template <class Time>
ROBOCACHE_HD std::int64_t last_at_or_before(const EpisodeTimes<Time>& times, Time t, std::int64_t hint) {
    if (hint >= 0 && times[hint] > t) return first_after(times, 0, hint, t) - 1;
    std::int64_t known = hint;  // times[known] <= t, or -1
    for (std::int64_t step = 1;; step *= 2) {
        const std::int64_t probe = known + step;
        if (probe >= times.count) return first_after(times, known + 1, times.count, t) - 1;
        if (!(times[probe] <= t)) return first_after(times, known + 1, probe, t) - 1;
        known = probe;
    }
}

/// The last row that has the time of `row`: where times repeat, the last one stands for all.
template <class Time>
ROBOCACHE_HD std::int64_t last_of_same_time(const EpisodeTimes<Time>& times, std::int64_t row) {
    if (row + 1 >= times.count || times[row + 1] != times[row]) return row;
    return first_after(times, row + 1, times.count, times[row]) - 1;
}

/// The row that stands for the next later time after `row`, or -1.
template <class Time>
ROBOCACHE_HD std::int64_t next_time(const EpisodeTimes<Time>& times, std::int64_t row) {
    return row + 1 < times.count ? last_of_same_time(times, row + 1) : -1;
}

/// The row that stands for the time before that of `row`, or -1.
template <class Time>
ROBOCACHE_HD std::int64_t previous_time(const EpisodeTimes<Time>& times, std::int64_t row) {
    if (row > 0 && times[row - 1] < times[row]) return row - 1;
    return first_not_before(times, times[row]) - 1;
}

/// Where a target lies among the rows of a (not empty) episode.
struct Neighbors {
    std::int64_t left;   // last row with time <= t, or -1
    std::int64_t right;  // the next later time's row, or -1
    bool exact;

    ROBOCACHE_HD bool outside() const { return left < 0 || (right < 0 && !exact); }
};

/// `left` is last_at_or_before(times, t, any hint).
template <class Time>
ROBOCACHE_HD Neighbors neighbors_of(const EpisodeTimes<Time>& times, Time t, std::int64_t left) {
    return {left, next_time(times, left), left >= 0 && times[left] == t};
}

/// A target between two rows, moved to the nearer one that is at most `tolerance` away, to the left one at a tie. It is
/// then exact; the row after the right one is not looked for.
template <class G>
ROBOCACHE_HD Neighbors snapped(const Neighbors& near, G from_left, G to_right, G tolerance) {
    if (to_right <= tolerance && to_right < from_left) return {near.right, -1, true};
    return {near.left, near.right, near.exact || from_left <= tolerance};
}

/// The same for a target anywhere.
template <class Time>
ROBOCACHE_HD Neighbors snapped(const EpisodeTimes<Time>& times, Time t, const Neighbors& near, Gap<Time> tolerance) {
    if (near.exact || !(tolerance > 0)) return near;
    if (near.left < 0) {  // before the first row
        if (near.right < 0 || !(distance(t, times[near.right]) <= tolerance)) return near;
        return {near.right, next_time(times, near.right), true};
    }
    const Gap<Time> from_left = distance(times[near.left], t);
    if (near.right < 0) return {near.left, -1, from_left <= tolerance};  // after the last one
    Neighbors moved = snapped(near, from_left, distance(t, times[near.right]), tolerance);
    if (moved.right < 0) moved.right = next_time(times, moved.left);
    return moved;
}

/// Both at once.
template <class Time>
ROBOCACHE_HD Neighbors neighbors_of(const EpisodeTimes<Time>& times, Time t, std::int64_t left, Gap<Time> tolerance) {
    return snapped(times, t, neighbors_of(times, t, left), tolerance);
}

}  // namespace robocache::align_detail
