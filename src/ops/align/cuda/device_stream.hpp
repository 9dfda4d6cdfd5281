// One view of a stream and of a query in kernel parameters, for every kernel of align, its gradient and the batch
// reader. episodes.hpp reads them.
#pragma once

#include <cstdint>

#include "ops/align/contract/episodes.hpp"

namespace robocache::align_detail {

constexpr int warp_size = 32;

/// A stream: where its episodes are, and the rules by which its rows are read. Strides of values in bytes, else
/// elements.
struct DeviceStream {
    const char* values;
    const char* times;
    const std::int64_t* offsets;  // null unless ragged
    std::int64_t num_rows;        // of an episode; of the whole stream if ragged
    std::int64_t num_episodes;
    std::int64_t value_episode_stride;
    std::int64_t value_row_stride;
    std::int64_t time_episode_stride;
    std::int64_t time_row_stride;
    std::int64_t offsets_stride;
    Duration latency;
    Duration tolerance;
    Rules rules;
    Plane valid;
    Plane index;

    ROBOCACHE_HD void write_valid(std::int64_t b, std::int64_t j, bool is_valid) const {
        if (valid.data == nullptr) return;
        static_cast<bool*>(valid.data)[b * valid.row_stride + j * valid.target_stride] = is_valid;
    }

    /// `left`: the last row at or before the target, -1 for none.
    ROBOCACHE_HD void write_index(std::int64_t b, std::int64_t j, std::int64_t first_row, std::int64_t left) const {
        if (index.data == nullptr) return;
        static_cast<std::int64_t*>(index.data)[b * index.row_stride + j * index.target_stride] =
            left < 0 ? -1 : first_row + left;
    }
};

struct DeviceQuery {
    std::int64_t num_rows;     // B
    std::int64_t num_targets;  // T
    const char* times;
    std::int64_t time_row_stride;
    std::int64_t time_target_stride;
    const char* deltas;  // null: times are targets
    std::int64_t delta_stride;
    const std::int64_t* episode;  // null: episode b, or the only one
    std::int64_t episode_stride;
};

inline DeviceStream device_stream(const StreamPlan& s) {
    return {s.values,
            s.times,
            s.offsets,
            s.num_rows,
            s.num_episodes,
            s.value_episode_stride,
            s.value_row_stride,
            s.time_episode_stride,
            s.time_row_stride,
            s.offsets_stride,
            s.latency,
            s.tolerance,
            rules_of(s),
            s.valid,
            s.index};
}

inline DeviceQuery device_query(const CallPlan& plan) {
    return {plan.num_rows, plan.num_targets,  plan.times,   plan.time_row_stride, plan.time_target_stride,
            plan.deltas,   plan.delta_stride, plan.episode, plan.episode_stride};
}

}  // namespace robocache::align_detail
