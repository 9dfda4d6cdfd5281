// The contract of the data itself: checks that read times, offsets and episodes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "core/contract.hpp"
#include "core/interrupt.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/contract/episodes.hpp"
#include "ops/align/contract/methods.hpp"

namespace robocache::align_detail {
namespace {

constexpr std::int64_t check_at_once = 1 << 20;  // times between two looks for an interrupt
constexpr std::int64_t check_grain = 32768;      // times a thread looks at before it takes more

template <class Time>
bool finite(Time t) {
    if constexpr (std::is_floating_point_v<Time>) return std::isfinite(t);
    return true;
}

template <class Time>
std::string text(Time t) {
    if constexpr (std::is_floating_point_v<Time>) {
        return number_text(t);
    } else {
        return std::to_string(t);
    }
}

/// The first row whose time is not finite or is below the one before it, or -1.
template <class Time>
std::int64_t first_bad_row(const EpisodeTimes<Time>& times) {
    if (times.count == 0) return -1;
    // NaN fails every comparison, and sorted times are finite if the first and the last are.
    bool good = finite(times[0]) && finite(times[times.count - 1]);
    for (std::int64_t begin = 1; begin < times.count; begin += check_at_once) {
        const std::int64_t end = std::min(begin + check_at_once, times.count);
        for (std::int64_t row = begin; row < end; ++row) good &= times[row - 1] <= times[row];
        detail::poll_interrupt();
    }
    if (good) return -1;
    for (std::int64_t row = 0; row < times.count; ++row) {
        if (!finite(times[row]) || (row > 0 && !(times[row - 1] <= times[row]))) return row;
    }
    return -1;
}

/// Keeps the smallest value put into it, whatever the order and the thread.
class Smallest {
public:
    void put(std::int64_t value) {
        std::int64_t seen = value_.load();
        while (value < seen && !value_.compare_exchange_weak(seen, value)) {
        }
    }
    [[nodiscard]] bool any() const { return value_.load() != INT64_MAX; }
    [[nodiscard]] std::int64_t get() const { return value_.load(); }

private:
    std::atomic<std::int64_t> value_{INT64_MAX};
};

template <class Time>
void check_stream_times(const StreamPlan& stream, std::size_t i, const Names& names) {
    // Times shared by all episodes (stride 0) are looked at once.
    const bool shared = stream.offsets == nullptr && stream.time_episode_stride == 0;
    const std::int64_t episodes = shared && stream.num_episodes > 0 ? 1 : stream.num_episodes;
    const std::int64_t rows = stream.offsets == nullptr ? stream.num_rows : stream.num_rows / (episodes + 1) + 1;
    Smallest bad;
    parallel_for(episodes, check_grain / (rows + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t e = begin; e < end; ++e) {
            if (first_bad_row(episode_rows<Time>(stream, e).times) >= 0) return bad.put(e);
        }
    });
    if (!bad.any()) return;
    const EpisodeTimes<Time> times = episode_rows<Time>(stream, bad.get()).times;
    const std::int64_t row = first_bad_row(times);
    const std::string place = " at row " + std::to_string(row) + " of episode " + std::to_string(bad.get());
    if (!finite(times[row])) fail(names.op, names.times(i), "be finite", text(times[row]) + place);
    fail(names.op, names.times(i), "not decrease inside an episode",
         text(times[row]) + " after " + text(times[row - 1]) + place);
}

void check_offsets(const StreamPlan& stream, std::size_t i, const Names& names) {
    const auto at = [&](std::int64_t e) { return stream.offsets[e * stream.offsets_stride]; };
    const ArgumentName argument = names.field(i, "offsets");
    if (at(0) != 0) fail(names.op, argument, "begin with 0", std::to_string(at(0)));
    for (std::int64_t e = 0; e < stream.num_episodes; ++e) {
        if (at(e + 1) < at(e)) {
            fail(names.op, argument, "not decrease",
                 std::to_string(at(e + 1)) + " after " + std::to_string(at(e)) + " at position " +
                     std::to_string(e + 1));
        }
    }
    if (at(stream.num_episodes) != stream.num_rows) {
        fail(names.op, argument, "end with the number of rows " + std::to_string(stream.num_rows),
             std::to_string(at(stream.num_episodes)));
    }
}

void check_episodes(const CallPlan& plan, const Names& names) {
    if (plan.episode == nullptr) return;
    for (std::int64_t b = 0; b < plan.num_rows; ++b) {
        const std::int64_t episode = plan.episode[b * plan.episode_stride];
        for (std::size_t i = 0; i < plan.streams.size(); ++i) {
            if (episode >= 0 && episode < plan.streams[i].num_episodes) continue;
            fail(names.op, "episode",
                 "be in [0, " + std::to_string(plan.streams[i].num_episodes) + ") for " + names.values(i).text(),
                 std::to_string(episode) + " at row " + std::to_string(b));
        }
    }
}

std::string_view targets_name(const CallPlan& plan, const Names& names) {
    return plan.deltas == nullptr ? names.query_times : "anchor + deltas";
}

bool uses_windows(const StreamPlan& stream) {
    for (const RangePlan& range : stream.ranges) {
        if (is_window(range.method)) return true;
    }
    return false;
}

template <class Time>
void check_targets(const CallPlan& plan, const Names& names) {
    bool sorted = false;
    for (const StreamPlan& stream : plan.streams) sorted = sorted || uses_windows(stream);
    if (std::is_integral_v<Time> && !sorted) return;
    const auto bad_target = [&](std::int64_t b, std::int64_t j) {
        const Time t = target_time<Time>(plan, b, j);
        return !finite(t) || (sorted && j > 0 && t < target_time<Time>(plan, b, j - 1));
    };
    // Targets shared by all rows are looked at once.
    const std::int64_t rows = plan.time_row_stride == 0 ? std::min<std::int64_t>(plan.num_rows, 1) : plan.num_rows;
    Smallest bad;
    parallel_for(rows, check_grain / (plan.num_targets + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
            for (std::int64_t j = 0; j < plan.num_targets; ++j) {
                if (bad_target(b, j)) return bad.put(b);
                if (j % check_at_once == check_at_once - 1) detail::poll_interrupt();
            }
        }
    });
    if (!bad.any()) return;
    std::int64_t j = 0;
    while (!bad_target(bad.get(), j)) ++j;
    const std::string given = text(target_time<Time>(plan, bad.get(), j)) + " at row " + std::to_string(bad.get()) +
                              ", position " + std::to_string(j);
    const bool is_finite = finite(target_time<Time>(plan, bad.get(), j));
    fail(names.op, targets_name(plan, names),
         is_finite ? "not decrease along a row where a method uses windows" : "be finite", given);
}

/// outside = error: refuses before anything is written.
template <class Time>
void check_outside(const CallPlan& plan, const StreamPlan& stream, std::size_t i, const Names& names) {
    const bool before = stream.before == Outside::error;
    const bool after = stream.after == Outside::error;
    if (!before && !after) return;
    const auto is_outside = [&](std::int64_t b, std::int64_t j) {
        const EpisodeTimes<Time> times = episode_rows<Time>(stream, episode_of(plan, stream, b)).times;
        if (times.count == 0) return true;
        const Time t = add_time(target_time<Time>(plan, b, j), duration_as<Time>(stream.latency));
        const Time first = times[0];
        const Time last = times[times.count - 1];
        const auto is_far = [&](Gap<Time> away) { return !(away <= gap_as<Time>(stream.tolerance)); };
        return (before && t < first && is_far(distance(t, first))) || (after && t > last && is_far(distance(last, t)));
    };
    Smallest bad;
    parallel_for(plan.num_rows, check_grain / (plan.num_targets + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
            for (std::int64_t j = 0; j < plan.num_targets; ++j) {
                if (is_outside(b, j)) return bad.put(b);
                if (j % check_at_once == check_at_once - 1) detail::poll_interrupt();
            }
        }
    });
    if (!bad.any()) return;
    std::int64_t j = 0;
    while (!is_outside(bad.get(), j)) ++j;
    fail(names.op, targets_name(plan, names),
         "lie inside the rows of " + names.values(i).text() + " where outside is error",
         text(target_time<Time>(plan, bad.get(), j)) + " at row " + std::to_string(bad.get()) + ", position " +
             std::to_string(j));
}

}  // namespace

void check_data(const CallPlan& plan, const Names& names, bool check) {
    with_time_type(plan, [&]<class Time>() {
        for (std::size_t i = 0; i < plan.streams.size(); ++i) {
            const StreamPlan& stream = plan.streams[i];
            if (!check) continue;
            if (stream.offsets != nullptr) check_offsets(stream, i, names);
            check_stream_times<Time>(stream, i, names);
        }
        if (check) {
            check_episodes(plan, names);
            check_targets<Time>(plan, names);
        }
        for (std::size_t i = 0; i < plan.streams.size(); ++i) check_outside<Time>(plan, plan.streams[i], i, names);
    });
}

}  // namespace robocache::align_detail
