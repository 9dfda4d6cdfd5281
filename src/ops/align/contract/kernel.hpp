// The math of align that decides a result: search, neighbors, weights, blends. One definition for CPU and CUDA.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/numeric.hpp"
#include "ops/align/contract/blends.hpp"
#include "ops/align/contract/methods.hpp"
#include "ops/align/contract/times.hpp"
#include "robocache/align.hpp"

namespace robocache::align_detail {

// ---- samples --------------------------------------------------------------------------------------------------------

enum class Kind : std::uint8_t {
    zero,    // the episode has no rows
    nan,     // outside, with the rule nan
    row,     // rows[0] as it is
    blend,   // rows[0] and rows[1] by weight; how is the method's business
    cubic,   // the same, and the outer rows
    window,  // rows [rows[0], rows[1])
};

/// What to write for one target: which rows, with which weight.
struct Sample {
    std::int64_t rows[2];
    double weight;  // of rows[1]
    Kind kind;
    bool valid;
};

/// The rows around a cubic sample, with their weights relative to the left row.
struct OuterRows {
    std::int64_t before;
    std::int64_t after;
    double weight_before;
    double weight_after;
};

/// The settings of a stream besides its method.
struct Rules {
    Duration max_gap;
    bool has_max_gap;
    bool outside_valid;
    Outside before;
    Outside after;

    template <class G>
    ROBOCACHE_HD bool allows(G gap) const {
        return !has_max_gap || within(gap, max_gap);
    }
    /// The same for a target that is `away` from the rows, and made of the row at that end.
    template <class G>
    ROBOCACHE_HD bool allows_outside(G away) const {
        return outside_valid && allows(away);
    }
    ROBOCACHE_HD Outside outside(bool is_before) const { return is_before ? before : after; }
};

ROBOCACHE_HD Sample row_sample(std::int64_t row, bool valid) {
    return {{row, row}, 0.0, Kind::row, valid};
}

ROBOCACHE_HD Sample blend_sample(std::int64_t a, std::int64_t b, double weight, bool valid) {
    return {{a, b}, weight, Kind::blend, valid};
}

/// `t_end`: the time of the row at that end.
template <class Time>
ROBOCACHE_HD Sample sample_outside(const EpisodeTimes<Time>& times, Time t, const Neighbors& near, Time t_end,
                                   const Rules& rules) {
    const bool before = near.left < 0;
    const Outside rule = rules.outside(before);
    const std::int64_t end = before ? near.right : near.left;
    const Gap<Time> away = before ? distance(t, t_end) : distance(t_end, t);
    const bool valid = rule != Outside::nan && rules.allows_outside(away);
    if (rule == Outside::nan) {
        Sample sample = row_sample(end, false);
        sample.kind = Kind::nan;
        return sample;
    }
    if (rule == Outside::linear) {
        const std::int64_t other = before ? next_time(times, end) : previous_time(times, end);
        if (other >= 0) {
            const std::int64_t a = before ? end : other;
            const std::int64_t b = before ? other : end;
            const auto span = static_cast<double>(distance(times[a], times[b]));
            const double from_a = before ? -static_cast<double>(away) : static_cast<double>(distance(times[a], t));
            return blend_sample(a, b, from_a / span, valid);
        }
    }
    return row_sample(end, valid);
}

/// Barry-Goldman: the parabolas through (before, left, right) and (left, right, after), blended by w. As weights of the
/// rows relative to left, so that the sum is left + Σ weight (row - left). Differences of times are exact before they
/// are float64. Turns a blend of two rows into a cubic where there is a third one.
template <class Time>
ROBOCACHE_HD OuterRows widen_to_cubic(const EpisodeTimes<Time>& times, Time t, Sample& sample) {
    const std::int64_t left = sample.rows[0];
    const std::int64_t right = sample.rows[1];
    const std::int64_t before = previous_time(times, left);
    const std::int64_t after = next_time(times, right);
    OuterRows outer{left, left, 0.0, 0.0};
    if (before < 0 && after < 0) return outer;
    const auto between = [](Time earlier, Time later) { return static_cast<double>(distance(earlier, later)); };
    const Time t_left = times[left];
    const Time t_right = times[right];
    const double from_left = between(t_left, t);
    const double to_right = between(t, t_right);
    const double span = between(t_left, t_right);
    // Where an outer row is missing, the other parabola counts in full.
    const double share_a = before < 0 ? 0.0 : (after < 0 ? 1.0 : 1.0 - from_left / span);
    const double share_b = 1.0 - share_a;
    double weight_right = 0.0;
    if (before >= 0) {
        const Time t_before = times[before];
        const double reach = between(t_before, t_right);
        outer.before = before;
        outer.weight_before = -share_a * (from_left * to_right / (between(t_before, t_left) * reach));
        weight_right += share_a * (from_left * between(t_before, t) / (span * reach));
    }
    if (after >= 0) {
        const Time t_after = times[after];
        const double beyond = between(t_right, t_after);
        outer.after = after;
        outer.weight_after = -share_b * (from_left * to_right / (between(t_left, t_after) * beyond));
        weight_right += share_b * (from_left * between(t, t_after) / (span * beyond));
    }
    sample.weight = weight_right;
    sample.kind = Kind::cubic;
    return outer;
}

/// part / span as the compute type sees it: divided in float64, then rounded. For float32 times and a float32 result
/// dividing in float32 gives the same bits (53 >= 2 * 24 + 2, so the first rounding cannot disturb the second).
template <class Compute, class G>
ROBOCACHE_HD double weight_of(G part, G span) {
    if constexpr (sizeof(Compute) == 4 && sizeof(G) == 4) {
        return static_cast<double>(part / span);
    } else {
        return static_cast<double>(part) / static_cast<double>(span);
    }
}

/// A target inside the rows, between `left` at t_left and `right` at t_right (meaningless if exact).
template <class Compute = double, class Time>
ROBOCACHE_HD Sample sample_inside(Time t, const Neighbors& near, Time t_left, Time t_right, Method method,
                                  const Rules& rules) {
    if (near.exact) return row_sample(near.left, true);
    const Gap<Time> from_left = distance(t_left, t);
    const Gap<Time> to_right = distance(t, t_right);
    if (method == Method::previous) return row_sample(near.left, rules.allows(from_left));
    if (method == Method::next) return row_sample(near.right, rules.allows(to_right));
    if (method == Method::nearest) {
        return from_left <= to_right ? row_sample(near.left, rules.allows(from_left))
                                     : row_sample(near.right, rules.allows(to_right));
    }
    const Gap<Time> span = distance(t_left, t_right);
    return blend_sample(near.left, near.right, weight_of<Compute>(from_left, span), rules.allows(span));
}

/// Every method but those of windows. A cubic is linear until widen_to_cubic. The times of the neighbors are given;
/// that of a neighbor that is not there, or of the right one if exact, has no meaning.
template <class Compute = double, class Time>
ROBOCACHE_HD Sample sample_located(const EpisodeTimes<Time>& times, Time t, const Neighbors& near, Time t_left,
                                   Time t_right, Method method, const Rules& rules) {
    if (near.outside()) return sample_outside(times, t, near, near.left < 0 ? t_right : t_left, rules);
    return sample_inside<Compute>(t, near, t_left, t_right, method, rules);
}

/// The same, with times read from the episode.
template <class Compute = double, class Time>
ROBOCACHE_HD Sample sample_at(const EpisodeTimes<Time>& times, Time t, const Neighbors& near, Method method,
                              const Rules& rules) {
    const Time t_left = near.left < 0 ? t : times[near.left];
    const Time t_right = near.exact || near.right < 0 ? t_left : times[near.right];
    return sample_located<Compute>(times, t, near, t_left, t_right, method, rules);
}

// ---- windows --------------------------------------------------------------------------------------------------------

/// The first moment of the later half of [a, b]. int64: the smallest time with 2 time >= a + b.
ROBOCACHE_HD std::int64_t midpoint(std::int64_t a, std::int64_t b) {
    if (b < a) return a;
    const std::uint64_t span = distance(a, b);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + span / 2 + span % 2);
}

ROBOCACHE_HD double midpoint(double a, double b) {
    return a + (b - a) / 2;
}

/// Half the distance from `other` to t > other, rounded up: how far after t the last window ends.
ROBOCACHE_HD std::uint64_t half_width(std::int64_t t, std::int64_t other) {
    const std::uint64_t span = distance(other, t);
    return span / 2 + span % 2;
}

/// Whether the window of t, the last target, ends after all times there are.
ROBOCACHE_HD bool has_no_end(std::int64_t t, std::int64_t earlier) {
    return earlier < t && half_width(t, earlier) > distance(t, INT64_MAX);
}

ROBOCACHE_HD bool has_no_end(double, double) {
    return false;
}

/// The edge as far from t on one side as the midpoint of t and `other` is on the other side. int64 saturates.
ROBOCACHE_HD std::int64_t mirrored(std::int64_t t, std::int64_t other) {
    if (other >= t) return add_time(t, -static_cast<std::int64_t>(distance(t, other) / 2));
    if (has_no_end(t, other)) return INT64_MAX;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(t) + half_width(t, other));
}

ROBOCACHE_HD double mirrored(double t, double other) {
    return t - ((other < t ? midpoint(other, t) : midpoint(t, other)) - t);
}

/// Of rows with one time the last stands for all: whether a window passes over this one.
template <class Time>
ROBOCACHE_HD bool is_passed_over(const EpisodeTimes<Time>& times, std::int64_t row) {
    return row + 1 < times.count && times[row + 1] == times[row];
}

/// The type window edges are compared in.
template <class Time>
struct EdgeOf {
    using type = double;
};
template <>
struct EdgeOf<std::int64_t> {
    using type = std::int64_t;
};

/// Methods of windows. `earlier` and `later` are the neighboring targets; t itself where there is none on that side.
template <class Time>
ROBOCACHE_HD Sample sample_window(const EpisodeTimes<Time>& times, Time t, Time earlier, Time later, bool has_earlier,
                                  bool has_later, const Neighbors& near, const Rules& rules) {
    using Edge = typename EdgeOf<Time>::type;
    if (near.outside()) return sample_at(times, t, near, Method::linear, rules);
    if (has_earlier || has_later) {
        const auto at = static_cast<Edge>(t);
        const Edge begin =
            has_earlier ? midpoint(static_cast<Edge>(earlier), at) : mirrored(at, static_cast<Edge>(later));
        const Edge end = has_later ? midpoint(at, static_cast<Edge>(later)) : mirrored(at, static_cast<Edge>(earlier));
        const std::int64_t first = first_not_before(times, begin);
        const bool open = !has_later && has_no_end(at, static_cast<Edge>(earlier));
        const std::int64_t last = open ? times.count : first_not_before(times, end);
        if (first < last) {
            const bool near_enough = near.exact || rules.allows(distance(times[near.left], times[near.right]));
            Sample sample = blend_sample(first, last, 0.0, near_enough);
            sample.kind = Kind::window;
            return sample;
        }
    }
    return row_sample(near.left, false);
}

}  // namespace robocache::align_detail
