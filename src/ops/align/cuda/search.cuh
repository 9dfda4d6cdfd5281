// The search for one target in the times of an episode, in global memory. Every function stays inside the episode,
// whatever the times are.
#pragma once

#include "ops/align/cuda/device_stream.hpp"

namespace robocache::align_detail {

/// The neighbors of a target with their times: t_left if `left` is a row, t_right if `right` is one and not `exact`.
template <class Time>
struct Located {
    Neighbors near;
    Time t_left;
    Time t_right;
    bool found;
};

/// The row of a time among evenly spaced ones.
template <class Time>
__device__ __forceinline__ std::int64_t even_row(Time first, Time last, std::int64_t count, Time t) {
    if (!(first < t)) return 0;
    if (!(t < last)) return count - 1;
    const float share = __fdividef(static_cast<float>(distance(first, t)), static_cast<float>(distance(first, last)));
    const auto row = static_cast<std::int64_t>(share * static_cast<float>(count - 1));
    return row < 0 ? 0 : (row > count - 1 ? count - 1 : row);
}

/// Looks at `num` consecutive times from `begin` on, all loaded at once. Not found: the target is not between them, or
/// the time of its right neighbor may repeat behind them.
template <int num, class Time>
__device__ __forceinline__ Located<Time> locate_near(const EpisodeTimes<Time>& times, std::int64_t begin, Time t) {
    Located<Time> located{{-1, -1, false}, t, t, false};
    if (times.count < num) return located;
    begin = begin < 0 ? 0 : (begin > times.count - num ? times.count - num : begin);
    Time x[num];
#pragma unroll
    for (int i = 0; i < num; ++i) x[i] = times[begin + i];
    int right = num;
#pragma unroll
    for (int i = 0; i + 1 < num; ++i) {
        if (x[i] <= t && t < x[i + 1]) {
            right = i + 1;
            located = {{begin + i, begin + i + 1, x[i] == t}, x[i], x[i + 1], true};
        }
        if (i + 1 < num && right == i && x[i + 1] == x[i]) {
            right = i + 1;
            located.near.right = begin + i + 1;
        }
    }
    if (right == num - 1 && begin + num < times.count) located.found = false;
    return located;
}

/// last_at_or_before, from a guess: one wait for memory where the guess is near, about twice the logarithm at worst.
template <class Time>
__device__ inline std::int64_t search_near(const EpisodeTimes<Time>& times, Time t, std::int64_t guess) {
    const std::int64_t end = times.count - 1;
    const std::int64_t probe = guess < 0 ? 0 : (guess > end ? end : guess);
    const std::int64_t before = probe > 0 ? probe - 1 : 0;
    const std::int64_t after = probe + 1 < end ? probe + 1 : end;
    const std::int64_t beyond = probe + 2 < end ? probe + 2 : end;
    const Time t_before = times[before];
    const Time t_probe = times[probe];
    const Time t_after = times[after];
    const Time t_beyond = times[beyond];
    std::int64_t step = 2;
    if (t_before <= t) {
        if (t < t_beyond) return t < t_probe ? before : (t < t_after ? probe : after);
        std::int64_t low = beyond;  // times[low] <= t
        for (; low + step <= end && times[low + step] <= t; step *= 4) low += step;
        return first_after(times, low + 1, low + step <= end ? low + step : end + 1, t) - 1;
    }
    std::int64_t high = before;  // not times[high] <= t
    for (; high - step >= 0 && !(times[high - step] <= t); step *= 4) high -= step;
    return first_after(times, high - step >= 0 ? high - step : 0, high, t) - 1;
}

/// The same, from the row of evenly spaced times.
template <class Time>
__device__ inline std::int64_t search_by_guess(const EpisodeTimes<Time>& times, Time t) {
    const Time first = times[0];
    const Time last = times[times.count - 1];
    if (!(first <= t)) return -1;
    if (last <= t) return times.count - 1;
    return search_near(times, t, even_row(first, last, times.count, t));
}

/// The neighbors of a target from its left one.
template <class Time>
__device__ __forceinline__ Located<Time> located_at(const EpisodeTimes<Time>& times, Time t, std::int64_t left) {
    const Neighbors near = neighbors_of(times, t, left);
    return {near, near.left < 0 ? t : times[near.left], near.right < 0 ? t : times[near.right], true};
}

/// The search that finds every target of an episode with rows. Not inlined: its registers would be taken from every
/// warp.
template <class Time>
__device__ __noinline__ Located<Time> locate_far(const EpisodeTimes<Time>& times, Time t) {
    return located_at(times, t, search_by_guess(times, t));
}

/// Moves a target to a row that is at most `tolerance` away.
template <class Time>
__device__ __forceinline__ void snap(const EpisodeTimes<Time>& times, Time t, Gap<Time> tolerance,
                                     Located<Time>& located) {
    Neighbors& near = located.near;
    if (!(tolerance > 0) || near.exact) return;
    near = near.outside() ? snapped(times, t, near, tolerance)
                          : snapped(near, distance(located.t_left, t), distance(t, located.t_right), tolerance);
}

/// The sample of a located target. Times are read only to extrapolate.
template <class Compute, class Time>
__device__ __forceinline__ Sample sample_of(const EpisodeTimes<Time>& times, Time t, const Located<Time>& located,
                                            Method method, const Rules& rules) {
    return sample_located<Compute>(times, t, located.near, located.t_left, located.t_right, method, rules);
}

}  // namespace robocache::align_detail
