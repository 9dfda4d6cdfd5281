// The math of align that decides a result: search, neighbours, weights, blends. One definition for CPU and CUDA.
#pragma once

#include <cmath>
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
struct Neighbours {
    std::int64_t left;   // last row with time <= t, or -1
    std::int64_t right;  // the next later time's row, or -1
    bool exact;

    ROBOCACHE_HD bool outside() const { return left < 0 || (right < 0 && !exact); }
};

/// `left` is last_at_or_before(times, t, any hint).
template <class Time>
ROBOCACHE_HD Neighbours neighbours_of(const EpisodeTimes<Time>& times, Time t, std::int64_t left) {
    return {left, next_time(times, left), left >= 0 && times[left] == t};
}

// ---- samples --------------------------------------------------------------------------------------------------------

enum class Kind : std::uint8_t {
    zero,    // the episode has no rows
    nan,     // outside, and NaN was asked for
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

/// What a stream asks for besides its method.
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
};

ROBOCACHE_HD Sample row_sample(std::int64_t row, bool valid) {
    return {{row, row}, 0.0, Kind::row, valid};
}

ROBOCACHE_HD Sample blend_sample(std::int64_t a, std::int64_t b, double weight, bool valid) {
    return {{a, b}, weight, Kind::blend, valid};
}

template <class Time>
ROBOCACHE_HD Sample sample_outside(const EpisodeTimes<Time>& times, Time t, const Neighbours& near,
                                   const Rules& rules) {
    const bool before = near.left < 0;
    const Outside rule = before ? rules.before : rules.after;
    const std::int64_t end = before ? near.right : near.left;
    const Gap<Time> away = before ? distance(t, times[end]) : distance(times[end], t);
    const bool valid = rules.outside_valid && rule != Outside::nan && rules.allows(away);
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
ROBOCACHE_HD Sample sample_inside(Time t, const Neighbours& near, Time t_left, Time t_right, Method method,
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

/// Every method but mean, min and max. A cubic is linear until widen_to_cubic.
template <class Time>
ROBOCACHE_HD Sample sample_at(const EpisodeTimes<Time>& times, Time t, const Neighbours& near, Method method,
                              const Rules& rules) {
    if (near.outside()) return sample_outside(times, t, near, rules);
    const Time t_left = times[near.left];
    return sample_inside(t, near, t_left, near.exact ? t_left : times[near.right], method, rules);
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

/// The edge as far from t on one side as the midpoint of t and `other` is on the other side.
ROBOCACHE_HD std::int64_t mirrored(std::int64_t t, std::int64_t other) {
    const std::int64_t away = add_time(t, other == INT64_MIN ? INT64_MAX : -other);  // t - other, saturating
    const std::int64_t reflected = add_time(t, away);
    return other < t ? midpoint(t, reflected) : midpoint(reflected, t);
}

ROBOCACHE_HD double mirrored(double t, double other) {
    return t - ((other < t ? midpoint(other, t) : midpoint(t, other)) - t);
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

/// mean, min, max. `earlier` and `later` are the neighbouring targets; t itself where there is none on that side.
template <class Time>
ROBOCACHE_HD Sample sample_window(const EpisodeTimes<Time>& times, Time t, Time earlier, Time later, bool has_earlier,
                                  bool has_later, const Neighbours& near, const Rules& rules) {
    using Edge = typename EdgeOf<Time>::type;
    if (near.outside()) return sample_outside(times, t, near, rules);
    if (has_earlier || has_later) {
        const auto at = static_cast<Edge>(t);
        const Edge begin =
            has_earlier ? midpoint(static_cast<Edge>(earlier), at) : mirrored(at, static_cast<Edge>(later));
        const Edge end = has_later ? midpoint(at, static_cast<Edge>(later)) : mirrored(at, static_cast<Edge>(earlier));
        const std::int64_t first = first_not_before(times, begin);
        const std::int64_t last = first_not_before(times, end);
        if (first < last) {
            const bool near_enough = near.exact || rules.allows(distance(times[near.left], times[near.right]));
            Sample sample = blend_sample(first, last, 0.0, near_enough);
            sample.kind = Kind::window;
            return sample;
        }
    }
    return row_sample(near.left, false);
}

// ---- blends, one channel (or one quaternion) ------------------------------------------------------------------------

template <class Compute>
ROBOCACHE_HD Compute blend_linear(Compute a, Compute b, Compute w) {
    return fused_multiply_add(w, b - a, a);
}

template <class Compute>
ROBOCACHE_HD Compute blend_cubic(Compute left, Compute right, Compute before, Compute after, Compute w_right,
                                 Compute w_before, Compute w_after) {
    Compute result = fused_multiply_add(w_before, before - left, left);
    result = fused_multiply_add(w_right, right - left, result);
    return fused_multiply_add(w_after, after - left, result);
}

ROBOCACHE_HD float round_even(float x) {
    return __builtin_rintf(x);
}

ROBOCACHE_HD double round_even(double x) {
    return __builtin_rint(x);
}

ROBOCACHE_HD float round_down(float x) {
    return __builtin_floorf(x);
}

ROBOCACHE_HD double round_down(double x) {
    return __builtin_floor(x);
}

template <class Compute>
ROBOCACHE_HD Compute blend_angle(Compute a, Compute b, Compute w, Compute period) {
    const Compute raw = b - a;
    const Compute way = fused_multiply_add(-round_even(raw / period), period, raw);
    const Compute result = fused_multiply_add(w, way, a);
    const Compute low = a < b ? a : b;
    const Compute high = a < b ? b : a;
    const Compute half = period / 2;
    // The range both rows are in is the range of the result.
    if (low >= -half && high <= half) {
        if (result >= -half && result <= half) return result;
        return fused_multiply_add(-round_even(result / period), period, result);
    }
    if (low >= 0 && high <= period && (result < 0 || result > period)) {
        return fused_multiply_add(-round_down(result / period), period, result);
    }
    return result;
}

// Sine and arc tangent of our own, from operations that every machine rounds alike: the libraries of CPU and GPU differ
// in the last places, and slerp divides by the sine of a small angle. Taylor series on intervals where their rest is
// below 2^-58.

/// sin(x): exact to a few units in the last place for |x| up to some thousands.
ROBOCACHE_HD double sine(double x) {
    constexpr double pi_high = 3.141592653589793116;
    constexpr double pi_low = 1.2246467991473532e-16;
    const double turns = round_even(x / pi_high);
    const double y = fused_multiply_add(-turns, pi_low, fused_multiply_add(-turns, pi_high, x));  // |y| <= pi / 2
    const double z = y * y;
    double p = 1.0 / 51090942171709440000.0;  // 1 / 21!
    p = fused_multiply_add(p, z, -1.0 / 121645100408832000.0);
    p = fused_multiply_add(p, z, 1.0 / 355687428096000.0);
    p = fused_multiply_add(p, z, -1.0 / 1307674368000.0);
    p = fused_multiply_add(p, z, 1.0 / 6227020800.0);
    p = fused_multiply_add(p, z, -1.0 / 39916800.0);
    p = fused_multiply_add(p, z, 1.0 / 362880.0);
    p = fused_multiply_add(p, z, -1.0 / 5040.0);
    p = fused_multiply_add(p, z, 1.0 / 120.0);
    p = fused_multiply_add(p, z, -1.0 / 6.0);
    const double result = fused_multiply_add(y * z, p, y);
    const bool odd = round_down(turns * 0.5) != turns * 0.5;
    return odd ? -result : result;
}

/// The angle of the point (x, y), neither coordinate negative: 0 ... pi / 2.
ROBOCACHE_HD double angle_of(double x, double y) {
    const bool steep = y > x;
    const double tangent = steep ? x / y : y / x;
    const double half = tangent / (1.0 + sqrt(fused_multiply_add(tangent, tangent, 1.0)));
    const double quarter = half / (1.0 + sqrt(fused_multiply_add(half, half, 1.0)));  // <= tan(pi / 16)
    const double z = quarter * quarter;
    double p = -1.0 / 23.0;
    p = fused_multiply_add(p, z, 1.0 / 21.0);
    p = fused_multiply_add(p, z, -1.0 / 19.0);
    p = fused_multiply_add(p, z, 1.0 / 17.0);
    p = fused_multiply_add(p, z, -1.0 / 15.0);
    p = fused_multiply_add(p, z, 1.0 / 13.0);
    p = fused_multiply_add(p, z, -1.0 / 11.0);
    p = fused_multiply_add(p, z, 1.0 / 9.0);
    p = fused_multiply_add(p, z, -1.0 / 7.0);
    p = fused_multiply_add(p, z, 1.0 / 5.0);
    p = fused_multiply_add(p, z, -1.0 / 3.0);
    const double angle = 4.0 * fused_multiply_add(quarter * z, p, quarter);
    return steep ? 1.5707963267948966 - angle : angle;
}

/// Quaternions in any order of components, the short way round, normalised.
ROBOCACHE_HD void blend_slerp(const double a[4], const double b[4], double w, double result[4]) {
    double aa = 0;
    double bb = 0;
    double ab = 0;
    for (int i = 0; i < 4; ++i) {
        aa += a[i] * a[i];
        bb += b[i] * b[i];
        ab += a[i] * b[i];
    }
    const double scale_a = 1.0 / sqrt(aa);
    const double scale_b = (ab < 0 ? -1.0 : 1.0) / sqrt(bb);
    double difference = 0;
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
        const double d = b[i] * scale_b - a[i] * scale_a;
        const double s = b[i] * scale_b + a[i] * scale_a;
        difference += d * d;
        sum += s * s;
    }
    // Twice the half angle: accurate for near and for far quaternions, unlike acos of the dot product.
    const double angle = 2.0 * angle_of(sqrt(sum), sqrt(difference));
    double w_a = 1.0 - w;
    double w_b = w;
    if (angle > 1e-7) {
        const double whole = sine(angle);
        w_a = sine(w_a * angle) / whole;
        w_b = sine(w_b * angle) / whole;
    }
    double norm = 0;
    for (int i = 0; i < 4; ++i) {
        result[i] = w_a * scale_a * a[i] + w_b * scale_b * b[i];
        norm += result[i] * result[i];
    }
    norm = 1.0 / sqrt(norm);
    for (int i = 0; i < 4; ++i) result[i] *= norm;
}

}  // namespace robocache::align_detail
