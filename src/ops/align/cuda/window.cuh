// The times around the targets of a warp, in shared memory, and the search there. The window is placed where the rows
// would be if times and targets were evenly spaced. Targets that are not in it (after a gap, in a burst, with random
// times) are bracketed by the whole warp, and the window is placed again.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/align/cuda/search.cuh"
#include "ops/align/cuda/tile.cuh"

namespace robocache::align_detail {

constexpr unsigned all_lanes = 0xffffffffU;

/// Times of the rows begin, begin + stride, ... of an episode.
template <class Time>
struct TimeWindow {
    const Time* times;
    std::int64_t begin;
    std::int32_t count;
    std::int32_t stride;
};

/// The last place of [first, count) of sorted times that is not after t, given that `first` is not.
template <class Time>
__device__ __forceinline__ std::int32_t last_place(const Time* times, std::int32_t first, std::int32_t count, Time t) {
    for (std::int32_t left = count - first; left > 1;) {
        const std::int32_t half = left / 2;
        if (times[first + half] <= t) first += half;
        left -= half;
    }
    return first;
}

/// The last place that has the time of this one.
template <class Time>
__device__ __forceinline__ std::int32_t last_of_time(const Time* times, std::int32_t place, std::int32_t count) {
    if (place + 1 >= count || times[place + 1] != times[place]) return place;
    return last_place(times, place, count, times[place]);
}

/// One target in a window of consecutive rows. Not found: it is not in the window, or the time of its right neighbor
/// may repeat behind it.
template <class Time>
__device__ __forceinline__ Located<Time> locate_in(const TimeWindow<Time>& window, std::int64_t num_rows, Time t) {
    const Time* times = window.times;
    const bool at_end = window.begin + window.count == num_rows;
    if (window.count == 0) return {{-1, -1, false}, t, t, false};
    if (times[0] <= t) {
        const std::int32_t low = last_place(times, 0, window.count, t);
        const std::int64_t left = window.begin + low;
        const Time t_left = times[low];
        if (low + 1 == window.count) return {{left, -1, t_left == t}, t_left, t, at_end};
        const std::int32_t right = last_of_time(times, low + 1, window.count);
        const bool found = right + 1 < window.count || at_end;
        return {{left, window.begin + right, t_left == t}, t_left, times[right], found};
    }
    // Before the window. A NaN compares like a target before the first row.
    const std::int32_t right = last_of_time(times, 0, window.count);
    const bool found = window.begin == 0 && (right + 1 < window.count || at_end);
    return {{-1, window.begin + right, false}, t, times[right], found};
}

/// Starts the copy of a window into the shared memory of a warp; wait_for_window returns when it is there.
template <class Time>
__device__ __forceinline__ TimeWindow<Time> fetch_window(const EpisodeTimes<Time>& times, std::int64_t begin,
                                                         std::int32_t count, std::int32_t stride, std::int32_t lane,
                                                         Time* shared) {
    for (std::int32_t i = lane; i < count; i += warp_size) {
        const Time* from = times.data + begin + static_cast<std::int64_t>(i) * stride;
        copy_async<static_cast<int>(sizeof(Time))>(shared + i, from);
    }
    return {shared, begin, count, stride};
}

__device__ __forceinline__ void wait_for_window() {
    wait_for_copies();
    __syncwarp();
}

/// Rows [begin, begin + count) of an episode.
struct RowSpan {
    std::int64_t begin;
    std::int32_t count;
};

/// The rows that the targets of a tile need if times and targets are both evenly spaced, with a margin; none if that is
/// more than a window holds. Does not wait for the targets.
__device__ __forceinline__ RowSpan expected_rows(std::int64_t num_targets, const RowsTile& tile, std::int64_t count,
                                                 std::int32_t margin) {
    const float rows_per_target = __fdividef(static_cast<float>(count), static_cast<float>(num_targets));
    const float from = static_cast<float>(tile.first_target) * rows_per_target - static_cast<float>(margin);
    const float size = static_cast<float>(tile.count) * rows_per_target + 2 * static_cast<float>(margin);
    if (!(size < static_cast<float>(count))) return {0, count <= staged_times ? static_cast<std::int32_t>(count) : 0};
    if (!(size <= static_cast<float>(staged_times))) return {0, 0};
    const auto whole = static_cast<std::int32_t>(size);
    auto begin = static_cast<std::int64_t>(from);
    begin = begin > count - whole ? count - whole : begin;
    return {begin < 0 ? 0 : begin, whole};
}

/// For each half of a warp, rows around its own `end`: times[low] <= end < times[high], or the ends of the episode.
struct Bracket {
    std::int64_t low;
    std::int64_t high;
};

/// Divides the rows into sixteen parts per round, until at most `enough` remain.
template <class Time>
__device__ __forceinline__ Bracket narrow_down(const EpisodeTimes<Time>& times, Bracket rows, Time end, int lane,
                                               std::int64_t enough) {
    constexpr int half = warp_size / 2;
    while (__any_sync(all_lanes, rows.high - rows.low > enough)) {
        const std::int64_t step = (rows.high - rows.low + half - 1) / half;
        const std::int64_t row = rows.low + (lane % half) * step;
        const bool before = row <= rows.high && times[row] <= end;
        const unsigned all = __ballot_sync(all_lanes, before);
        const int parts = __popc(lane < half ? all & 0xffffU : all >> half);
        const std::int64_t low = rows.low + (parts > 0 ? parts - 1 : 0) * step;
        rows.high = parts == 0 ? low : (low + step < rows.high ? low + step : rows.high);
        rows.low = low;
    }
    return rows;
}

/// The first round where times are nearly even: sixteen probes `pitch` rows apart around the guess of each half. The
/// whole episode if they miss.
template <class Time>
__device__ __forceinline__ Bracket probe_around(const EpisodeTimes<Time>& times, std::int64_t guess, Time end, int lane,
                                                std::int64_t pitch) {
    constexpr int half = warp_size / 2;
    const std::int64_t last = times.count - 1;
    std::int64_t row = guess + (lane % half - half / 2) * pitch;
    row = row < 0 ? 0 : (row > last ? last : row);
    const bool before = times[row] <= end;
    const unsigned all = __ballot_sync(all_lanes, before);
    const int parts = __popc(lane < half ? all & 0xffffU : all >> half);
    const int base = lane < half ? 0 : half;
    const std::int64_t low = __shfl_sync(all_lanes, row, base + (parts > 0 ? parts - 1 : 0));
    const std::int64_t high = __shfl_sync(all_lanes, row, base + (parts < half ? parts : half - 1));
    return {parts > 0 ? low : 0, parts < half ? high : last};
}

constexpr int near_times = 6;                // that a lane loads at once around its guess
constexpr std::int64_t narrow_bracket = 32;  // rows
constexpr std::int64_t beyond_bracket = 4;   // rows that are staged too: a time may repeat there

/// The targets of the lanes in `missing`, whose rows are in `rows` for the first and the last of them; by a whole warp.
template <class Time>
__device__ __forceinline__ Located<Time> locate_again(const EpisodeTimes<Time>& times, const Bracket& rows, Time t,
                                                      unsigned missing, int lane, Time* shared) {
    const std::int64_t low = __shfl_sync(all_lanes, rows.low, 0);
    std::int64_t high = __shfl_sync(all_lanes, rows.high, warp_size - 1) + beyond_bracket;
    high = high < times.count - 1 ? high : times.count - 1;
    const std::int64_t num_rows = high - low + 1;
    std::int32_t stride = 1;
    while (num_rows > static_cast<std::int64_t>(stride) * staged_times && stride < 8) stride *= 2;
    Located<Time> located{{-1, -1, false}, t, t, false};
    if (num_rows > 0 && stride <= 4) {
        const auto count = static_cast<std::int32_t>((num_rows + stride - 1) / stride);
        __syncwarp();  // the window before this one has been read
        const TimeWindow<Time> window = fetch_window(times, low, count, stride, lane, shared);
        wait_for_window();
        if ((missing >> lane & 1) != 0) {
            if (stride == 1) {
                located = locate_in(window, times.count, t);
            } else if (window.times[0] <= t) {
                const std::int32_t place = last_place(window.times, 0, count, t);
                located = locate_near<near_times>(times, low + static_cast<std::int64_t>(place) * stride, t);
            }
        }
    }
    if ((missing >> lane & 1) != 0 && !located.found) located = locate_far(times, t);
    return located;
}

/// The time of a lane's target before the stream's latency. Loaded, not waited for.
template <class Time>
struct RawTarget {
    Time time;
    Time delta;

    __device__ __forceinline__ RawTarget(const DeviceQuery& q, std::int64_t b, std::int64_t j) : delta{} {
        const Time* row = reinterpret_cast<const Time*>(q.times) + b * q.time_row_stride;
        time = __ldg(q.deltas == nullptr ? row + j * q.time_target_stride : row);
        if (q.deltas != nullptr) delta = __ldg(reinterpret_cast<const Time*>(q.deltas) + j * q.delta_stride);
    }
    __device__ __forceinline__ Time with(const DeviceQuery& q, Time latency) const {
        return add_time(q.deltas == nullptr ? time : add_time(time, delta), latency);
    }
};

/// Locates the targets of a tile in an episode with rows, one per lane, by a whole warp. `t` is set to the target.
template <class Time>
__device__ __forceinline__ Located<Time> locate(const RowsStream& s, const DeviceQuery& q, const RowsTile& tile,
                                                const EpisodeTimes<Time>& times, const RawTarget<Time>& raw,
                                                bool active, int lane, Time* shared, Time& t) {
    constexpr int half = warp_size / 2;
    const std::int64_t last_row = times.count - 1;
    const Time latency = duration_as<Time>(s.stream.latency);
    const RowSpan span = expected_rows(q.num_targets, tile, times.count, s.window_margin);
    Located<Time> located{{-1, -1, false}, Time{}, Time{}, !active};
    Bracket rows{0, last_row};
    if (span.count > 0) {
        const TimeWindow<Time> window = fetch_window(times, span.begin, span.count, 1, lane, shared);
        wait_for_window();
        t = raw.with(q, latency);
        if (active) located = locate_in(window, times.count, t);
    } else {
        const Time first = times[0];
        const Time last = times[last_row];
        t = raw.with(q, latency);
        const Time end = __shfl_sync(all_lanes, t, lane < half ? 0 : tile.count - 1);
        rows =
            probe_around(times, even_row(first, last, times.count, end), end, lane, s.window_margin / (half / 2) + 1);
        if (active) located = locate_near<near_times>(times, even_row(first, last, times.count, t) - 2, t);
    }
    const unsigned missing = __ballot_sync(all_lanes, !located.found);
    if (missing == 0) return located;
    const Time end =
        __shfl_sync(all_lanes, t, lane < half ? __ffs(static_cast<int>(missing)) - 1 : 31 - __clz(missing));
    rows = narrow_down(times, rows, end, lane, narrow_bracket);
    const Located<Time> again = locate_again(times, rows, t, missing, lane, shared);
    return located.found ? located : again;
}

}  // namespace robocache::align_detail
