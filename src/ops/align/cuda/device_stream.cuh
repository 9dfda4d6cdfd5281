// One view of a stream and of a query on the device, for every kernel of align, its gradient and the batch reader.
#pragma once

#include <cstdint>

#include "core/cuda/divisor.hpp"
#include "ops/align/contract/kernel.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::align_detail {

constexpr int warp_size = 32;

__device__ __forceinline__ std::int64_t element_bytes(DType dtype) {
    switch (dtype) {
        case DType::boolean:
        case DType::u8:
        case DType::i8: return 1;
        case DType::u16:
        case DType::i16:
        case DType::f16:
        case DType::bf16: return 2;
        case DType::u32:
        case DType::i32:
        case DType::f32: return 4;
        default: return 8;
    }
}

/// The rows of one episode.
template <class Time>
struct DeviceEpisode {
    EpisodeTimes<Time> times;
    const char* values;
    std::int64_t first_row;  // what the index output counts from
};

/// A stream: where its episodes are, and the rules by which its rows are read. Strides of values in bytes, else
/// elements.
struct DeviceStream {
    const char* values;
    const void* times;
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

    /// Episodes out of range have no rows; offsets out of order are clamped: memory stays safe without checks.
    template <class Time>
    __device__ __forceinline__ DeviceEpisode<Time> episode(std::int64_t e) const {
        const Time* all = static_cast<const Time*>(times);
        if (e < 0 || e >= num_episodes) return {{all, time_row_stride, 0}, values, 0};
        if (offsets == nullptr) {
            return {{all + e * time_episode_stride, time_row_stride, num_rows}, values + e * value_episode_stride, 0};
        }
        const RowRange rows =
            clamped_rows(__ldg(offsets + e * offsets_stride), __ldg(offsets + (e + 1) * offsets_stride), num_rows);
        return {{all + rows.begin * time_row_stride, time_row_stride, rows.count()},
                values + rows.begin * value_row_stride,
                rows.begin};
    }

    __device__ __forceinline__ void write_valid(std::int64_t b, std::int64_t j, bool is_valid) const {
        if (valid.data == nullptr) return;
        static_cast<bool*>(valid.data)[b * valid.row_stride + j * valid.target_stride] = is_valid;
    }

    /// `left`: the last row at or before the target, -1 for none.
    __device__ __forceinline__ void write_index(std::int64_t b, std::int64_t j, std::int64_t first_row,
                                                std::int64_t left) const {
        if (index.data == nullptr) return;
        static_cast<std::int64_t*>(index.data)[b * index.row_stride + j * index.target_stride] =
            left < 0 ? -1 : first_row + left;
    }
};

struct DeviceQuery {
    std::int64_t num_rows;     // B
    std::int64_t num_targets;  // T
    const void* times;
    std::int64_t time_row_stride;
    std::int64_t time_target_stride;
    const void* deltas;  // null: times are targets
    std::int64_t delta_stride;
    const std::int64_t* episode;  // null: episode b, or the only one
    std::int64_t episode_stride;

    __device__ __forceinline__ std::int64_t episode_of(const DeviceStream& s, std::int64_t b) const {
        if (episode != nullptr) return __ldg(episode + b * episode_stride);
        return s.num_episodes == 1 ? 0 : b;
    }

    /// Target j of row b for a stream with this latency.
    template <class Time>
    __device__ __forceinline__ Time target(std::int64_t b, std::int64_t j, Time latency) const {
        const Time* row = static_cast<const Time*>(times) + b * time_row_stride;
        const Time t = deltas == nullptr
                           ? __ldg(row + j * time_target_stride)
                           : add_time(__ldg(row), __ldg(static_cast<const Time*>(deltas) + j * delta_stride));
        return add_time(t, latency);
    }
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
            {s.max_gap, s.has_max_gap, s.outside_valid, s.before, s.after},
            s.valid,
            s.index};
}

inline DeviceQuery device_query(const CallPlan& plan) {
    return {plan.num_rows, plan.num_targets,  plan.times,   plan.time_row_stride, plan.time_target_stride,
            plan.deltas,   plan.delta_stride, plan.episode, plan.episode_stride};
}

}  // namespace robocache::align_detail
