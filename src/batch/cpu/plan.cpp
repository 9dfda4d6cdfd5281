// What a BatchReader prepares on the CPU.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "batch/cpu/reader.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/cpu/tile.hpp"

namespace robocache::loader_detail {
namespace {

using align_detail::StreamPlan;

constexpr std::int64_t byte_ps = 100;  // reading one takes about as long

/// Ascending shifts that nothing saturates, more than two tolerances apart, of a stream whose methods take an exact row
/// as it is.
std::vector<std::int64_t> shifts_of(const ColumnPlan& column, const StreamPlan& stream) {
    const std::int64_t latency = stream.latency.ns;
    const bool has_windows = std::any_of(stream.ranges.begin(), stream.ranges.end(),
                                         [](const auto& range) { return align_detail::is_window(range.method); });
    const std::int64_t tolerance = stream.tolerance.ns;
    if (has_windows || !is_near(latency) || !is_near(tolerance)) return {};
    std::vector<std::int64_t> shifts;
    for (const std::int64_t delta : column.deltas) {
        if (!is_near(delta) || (!shifts.empty() && delta + latency - shifts.back() <= 2 * tolerance)) return {};
        shifts.push_back(delta + latency);
    }
    return shifts;
}

/// The difference of all neighbors; 0 where they are not alike, or there are none.
std::int64_t step_of(const std::vector<std::int64_t>& numbers) {
    const std::int64_t step = numbers.size() > 1 ? numbers[1] - numbers[0] : 0;
    for (std::size_t i = 2; i < numbers.size(); ++i) {
        if (numbers[i] - numbers[i - 1] != step) return 0;
    }
    return step;
}

EvenTimes even_times_of(const align_detail::EpisodeTimes<std::int64_t>& times) {
    if (times.count < 2 || !is_near(times[0]) || !is_near(times[times.count - 1])) return {};
    const std::uint64_t step = align_detail::distance(times[0], times[1]);
    for (std::int64_t k = 2; k < times.count; ++k) {
        if (align_detail::distance(times[k - 1], times[k]) != step) return {};
    }
    return {times[0], times[0] < times[1] ? static_cast<std::int64_t>(step) : 0};
}

bool same_search(const BatchPlan& plan, std::size_t a, std::size_t b) {
    if (plan.columns[a].deltas != plan.columns[b].deltas) return false;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        if (!align_detail::search_alike(plan.rows_of(p, a).stream, plan.rows_of(p, b).stream)) return false;
    }
    return true;
}

std::vector<Search> searches_of(const BatchPlan& plan) {
    std::vector<Search> searches;
    for (std::size_t c = 0; c < plan.columns.size(); ++c) {
        const auto same = std::find_if(searches.begin(), searches.end(),
                                       [&](const Search& s) { return same_search(plan, s.columns[0], c); });
        Search& search = same == searches.end() ? searches.emplace_back() : *same;
        search.columns.push_back(c);
    }
    for (Search& search : searches) {
        const ColumnPlan& column = plan.columns[search.columns[0]];
        const StreamPlan& stream = plan.rows_of(0, search.columns[0]).stream;
        search.num_targets = column.num_targets();
        search.shifts = shifts_of(column, stream);
        search.shift_step = step_of(search.shifts);
        search.tolerance = stream.tolerance.ns;
        for (std::int64_t p = 0; p < plan.num_parts; ++p) {  // find_run reads times side by side
            if (plan.rows_of(p, search.columns[0]).stream.time_row_stride != 1) search.shifts.clear();
        }
        search.held = stream.before == Outside::hold && stream.after == Outside::hold &&
                      !(stream.outside_valid && stream.has_max_gap);
        search.held_pads = !stream.outside_valid;
        std::int64_t widest = 1;
        for (const std::size_t c : search.columns) {
            widest = std::max(widest, row_bytes(plan.columns[c], plan.rows_of(0, c).stream.values_dtype));
        }
        search.tile_targets = std::min(align_detail::targets_per_tile(widest), search.num_targets);
    }
    return searches;
}

/// From the rate of the first episode that has one.
Guess guess_of(const ColumnPlan& column, const StreamPlan& stream) {
    for (std::int64_t e = 0; e < stream.num_episodes; ++e) {
        const auto times = align_detail::episode_rows<std::int64_t>(stream, e).times;
        if (times.count < 2 || times[0] >= times[times.count - 1]) continue;
        const double rate = static_cast<double>(times.count - 1) /
                            (static_cast<double>(times[times.count - 1]) - static_cast<double>(times[0]));
        const auto rows = [&](double ns) {
            return static_cast<std::int64_t>(std::llrint(std::clamp(ns * rate, -1e15, 1e15)));
        };
        const auto first = static_cast<double>(column.deltas.front());
        const auto last = static_cast<double>(column.deltas.back());
        return {rows(first + static_cast<double>(stream.latency.ns)),
                std::max<std::int64_t>(rows(last - first) + 1, 1)};
    }
    return {};
}

Lane lane_of(const ColumnPlan& column, const RowsPlan& rows) {
    const StreamPlan& s = rows.stream;
    Lane lane;
    lane.values = s.values;
    lane.row_stride = s.value_row_stride;
    lane.in_runs = s.outer.empty() && s.inner.value_stride == 1 &&
                   s.value_row_stride == row_bytes(column, s.values_dtype) &&
                   (column.scaled || column.dtype == s.values_dtype);
    if (column.scaled) {
        const auto scaling = [&](DType from) {
            return std::make_unique<const Scaling>(rows.offset.data(), rows.scale.data(),
                                                   static_cast<std::int64_t>(rows.offset.size()), from, column.dtype);
        };
        lane.of_rows = scaling(s.values_dtype);
        lane.of_written = scaling(column.written);
    }
    return lane;
}

}  // namespace

HostBatch::HostBatch(const BatchPlan& plan) : searches(searches_of(plan)), num_columns_(plan.columns.size()) {
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        for (const Search& search : searches) {
            const std::size_t c = search.columns[0];
            guesses_.push_back(guess_of(plan.columns[c], plan.rows_of(p, c).stream));
        }
        for (std::size_t c = 0; c < num_columns_; ++c) lanes_.push_back(lane_of(plan.columns[c], plan.rows_of(p, c)));
    }
    for (const Search& search : searches) {
        for (const std::size_t c : search.columns) {
            const ColumnPlan& column = plan.columns[c];
            const std::int64_t bytes = search.num_targets * row_bytes(column, column.dtype);
            sample_work_ += bytes;
            if (!column.hidden) sample_bytes_ += bytes;
            if (!column.scaled) continue;
            scratch_bytes = std::max(scratch_bytes, search.tile_targets * row_bytes(column, column.written));
        }
        most_targets = std::max(most_targets, search.num_targets);
    }
    for (const ReaderFeature& feature : plan.features) {
        sample_bytes_ += feature.num_moments * feature.width * size_bytes(feature.dtype);
        for (const FeatureUnit& unit : feature.units) sample_work_ += feature.num_moments * moment_ps(unit) / byte_ps;
    }
    index_episodes(plan);
}

/// Where episodes are, which of them have even times, and whether the anchors are the rows of a search: all of it
/// compared, once.
void HostBatch::index_episodes(const BatchPlan& plan) {
    const auto num_episodes = static_cast<std::int64_t>(plan.part.size());
    entries_.resize(plan.part.size() * searches.size());
    std::vector<std::atomic<bool>> anchored(searches.size());
    for (std::atomic<bool>& flag : anchored) flag = true;
    constexpr std::int64_t grain = 64;  // episodes
    parallel_for(num_episodes, grain, [&](std::int64_t begin, std::int64_t end) {
        std::size_t t = 0;
        for (std::int64_t e = begin; e < end; ++e) {
            while (e >= plan.tables[t].first_episode + plan.tables[t].num_episodes) ++t;
            const TablePlan& table = plan.tables[t];
            const std::int64_t* prefix = table.prefix + (e - table.first_episode);
            for (std::size_t s = 0; s < searches.size(); ++s) {
                const auto i = static_cast<std::size_t>(e);
                const StreamPlan& stream = plan.rows_of(plan.part[i], searches[s].columns[0]).stream;
                const auto rows = align_detail::episode_rows<std::int64_t>(stream, plan.local[i]);
                const auto times = rows.times;
                entries_[i * searches.size() + s] = {prefix[0],
                                                     prefix[1] - prefix[0],
                                                     plan.part[i],
                                                     plan.local[i],
                                                     rows.first_row,
                                                     times.count,
                                                     times.stride == 1 ? even_times_of(times) : EvenTimes{}};
                if (!anchored[s]) continue;
                anchored[s] = !(table.period_ns > 0) && times.stride == 1 && prefix[1] - prefix[0] == times.count &&
                              std::equal(times.data, times.data + times.count, table.times + prefix[0]);
            }
        }
    });
    anchor_search = 0;
    while (anchor_search < searches.size() && !anchored[anchor_search]) ++anchor_search;
}

std::unique_ptr<BatchBackend> make_host_batch(const BatchPlan& plan) {
    return std::make_unique<HostBatch>(plan);
}

}  // namespace robocache::loader_detail
