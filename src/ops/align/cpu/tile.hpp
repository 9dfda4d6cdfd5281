// One row of a query and one stream on the CPU: tiles of targets, searched once, written by the best instruction set.
#pragma once

#include <algorithm>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/cpu_features.hpp"
#include "ops/align/contract/episodes.hpp"
#include "ops/align/cpu/kernels.hpp"

namespace robocache::align_detail {

/// Orders the non-temporal stores of CpuKernels::stream_out before later stores, for other threads.
inline void stream_fence() {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

inline constexpr std::int64_t tile_size = 64;  // targets at most; their samples stay in the first-level cache
inline constexpr std::int64_t scratch_bytes = 16 << 10;

/// Whether a large output is written without a stop in the scratch buffer: whole vectors of float32, each half aligned.
inline bool goes_direct(const StreamPlan& s) {
    constexpr std::int64_t vector = 32;
    constexpr std::int64_t half = 16;
    return s.out_dtype == DType::f32 && s.values_dtype == DType::f32 && s.inner.value_stride == 1 &&
           s.ranges[0].method == Method::linear && reinterpret_cast<std::uintptr_t>(s.out) % half == 0 &&
           s.out_row_stride % half == 0 && s.out_target_stride % vector == 0;
}

/// What is known of up to tile_size targets of one query row and one stream.
template <class Time>
struct Tile {
    Time t[tile_size];  // with the stream's latency
    Neighbors near[tile_size];
    Sample samples[tile_size];
    OuterRows outer[tile_size];
    bool valid[tile_size];
    alignas(64) char scratch[scratch_bytes];
    std::int64_t begin;  // first target
    std::int64_t count;
};

/// One row of a query: its targets, and where the results of one stream go.
template <class Time>
struct QueryRow {
    const Time* times;  // of the targets; the anchor where there are deltas
    std::int64_t time_stride;
    const Time* deltas;  // null: targets are `times`
    std::int64_t delta_stride;
    std::int64_t num_targets;
    std::int64_t episode;
    char* out;
    Plane valid;  // of this row
    Plane index;
    bool non_temporal = false;
    std::int64_t hint = no_hint;  // for the search of the first target
    std::int64_t first_out = 0;   // the target that `out` is for
};

template <class Time>
class TileWriter {
public:
    TileWriter(const StreamPlan& stream, const QueryRow<Time>& row)
        : stream_(stream), row_(row), episode_(episode_rows<Time>(stream, row.episode)), rules_(rules_of(stream)) {}

    /// `placed`: the tile still holds the neighbors and samples of a stream with the same search.
    void write(Tile<Time>& tile, const CpuKernels& kernels, bool placed) {
        if (placed) {
            write_range(tile, stream_.ranges[0], kernels);
            return write_planes(tile);
        }
        if (row_.non_temporal && goes_direct(stream_) && episode_.times.count > 0 && episode_.times.stride == 1) {
            read_targets(tile);
            std::fill_n(tile.valid, tile.count, true);
            kernels.place_and_write<Time>()(place_job(tile, Method::linear), row_job(tile, stream_.ranges[0]),
                                            tile.near, tile.samples);
            sample(tile, Method::linear, false);
            return write_planes(tile);
        }
        place(tile, stream_.ranges[0].method, kernels);
        for (const RangePlan& range : stream_.ranges) {
            sample(tile, range.method, &range != &stream_.ranges[0]);
            write_range(tile, range, kernels);
        }
        write_planes(tile);
    }

private:
    Time target(std::int64_t j) const {
        const Time asked = row_.deltas == nullptr ? row_.times[j * row_.time_stride]
                                                  : add_time(row_.times[0], row_.deltas[j * row_.delta_stride]);
        return add_time(asked, duration_as<Time>(stream_.latency));
    }

    void read_targets(Tile<Time>& tile) const {
        if (row_.deltas != nullptr) {
            for (std::int64_t k = 0; k < tile.count; ++k) tile.t[k] = target(tile.begin + k);
            return;
        }
        const std::int64_t stride = row_.time_stride;
        const Time* from = row_.times + tile.begin * stride;
        const Time latency = duration_as<Time>(stream_.latency);
        for (std::int64_t k = 0; k < tile.count; ++k) tile.t[k] = add_time(from[k * stride], latency);
    }

    /// Neighbors, and samples by `method` unless that uses windows.
    void place(Tile<Time>& tile, Method method, const CpuKernels& kernels) const {
        read_targets(tile);
        std::fill_n(tile.valid, tile.count, episode_.times.count > 0);
        if (episode_.times.count == 0) {
            Sample zero = row_sample(0, false);
            zero.kind = Kind::zero;
            std::fill_n(tile.near, tile.count, Neighbors{-1, -1, false});
            std::fill_n(tile.samples, tile.count, zero);
            return;
        }
        kernels.place<Time>()(place_job(tile, method), tile.near, tile.samples);
    }

    PlaceJob<Time> place_job(const Tile<Time>& tile, Method method) const {
        const std::int64_t row_bytes = stream_.outer.empty() ? width_bytes(stream_.values_dtype) : 0;
        return {episode_.times,
                tile.t,
                tile.count,
                method,
                rules_,
                episode_.values,
                stream_.value_row_stride,
                stream_.value_row_stride + row_bytes,
                tile.begin == 0 ? row_.hint : no_hint,
                gap_as<Time>(stream_.tolerance)};
    }

    /// What place() has not done: windows, cubics, and the methods of further channel ranges.
    void sample(Tile<Time>& tile, Method method, bool again) const {
        if (!again && !is_window(method) && method != Method::cubic && row_.valid.data == nullptr) return;
        const EpisodeTimes<Time>& times = episode_.times;
        for (std::int64_t k = 0; k < tile.count && times.count > 0; ++k) {
            Sample& out = tile.samples[k];
            if (is_window(method)) {
                out = sample_window_of(tile, k);
            } else if (again) {
                out = sample_at(times, tile.t[k], tile.near[k], method, rules_);
            }
            if (method == Method::cubic && out.kind == Kind::blend && !tile.near[k].outside()) {
                tile.outer[k] = widen_to_cubic(times, tile.t[k], out);
            }
            tile.valid[k] = tile.valid[k] && out.valid;
        }
    }

    Sample sample_window_of(const Tile<Time>& tile, std::int64_t k) const {
        const std::int64_t j = tile.begin + k;
        const bool has_earlier = j > 0;
        const bool has_later = j + 1 < row_.num_targets;
        return sample_window(episode_.times, tile.t[k], has_earlier ? target(j - 1) : tile.t[k],
                             has_later ? target(j + 1) : tile.t[k], has_earlier, has_later, tile.near[k], rules_);
    }

    static bool is_replaced(const void* times, std::int64_t row) {
        const auto& episode = *static_cast<const EpisodeTimes<Time>*>(times);
        return is_passed_over(episode, row);
    }

    RowJob row_job(const Tile<Time>& tile, const RangePlan& range) const {
        const StreamPlan& s = stream_;
        char* out = row_.out + (tile.begin - row_.first_out) * s.out_target_stride;
        return {episode_.values + range.begin * s.inner.value_stride * size_bytes(s.values_dtype),
                s.value_row_stride,
                s.inner.value_stride,
                s.values_dtype,
                out + range.begin * s.inner.out_stride * size_bytes(s.out_dtype),
                s.out_target_stride,
                s.inner.out_stride,
                s.out_dtype,
                range.width,
                range.method,
                s.period,
                tile.samples,
                tile.outer,
                tile.count,
                &is_replaced,
                &episode_.times};
    }

    void write_range(Tile<Time>& tile, const RangePlan& range, const CpuKernels& kernels) const {
        const StreamPlan& s = stream_;
        RowJob job = row_job(tile, range);
        if (!s.outer.empty()) return write_outer(job, 0, kernels);
        if (!row_.non_temporal) return kernels.write_rows(job);
        const std::int64_t row_bytes = s.out_target_stride;
        char* out = job.out;
        const std::int64_t batch = scratch_bytes / row_bytes;
        job.out = tile.scratch;
        for (std::int64_t k = 0; k < tile.count; k += batch) {
            job.samples = tile.samples + k;
            job.outer = tile.outer + k;
            job.count = std::min(batch, tile.count - k);
            kernels.write_rows(job);
            kernels.stream_out(tile.scratch, job.count * row_bytes, out + k * row_bytes);
        }
        stream_fence();
    }

    std::int64_t width_bytes(DType dtype) const { return stream_.inner.size * size_bytes(dtype); }

    void write_outer(RowJob job, std::size_t depth, const CpuKernels& kernels) const {
        if (depth == stream_.outer.size()) return kernels.write_rows(job);
        const ChannelDim& dim = stream_.outer[depth];
        for (std::int64_t i = 0; i < dim.size; ++i) {
            write_outer(job, depth + 1, kernels);
            job.values += dim.value_stride * size_bytes(stream_.values_dtype);
            job.out += dim.out_stride * size_bytes(stream_.out_dtype);
        }
    }

    void write_planes(const Tile<Time>& tile) const {
        const Plane& valid = row_.valid;
        const Plane& index = row_.index;
        for (std::int64_t k = 0; valid.data != nullptr && k < tile.count; ++k) {
            static_cast<bool*>(valid.data)[(tile.begin + k) * valid.target_stride] = tile.valid[k];
        }
        for (std::int64_t k = 0; index.data != nullptr && k < tile.count; ++k) {
            const std::int64_t left = tile.near[k].left;
            static_cast<std::int64_t*>(index.data)[(tile.begin + k) * index.target_stride] =
                left < 0 ? -1 : episode_.first_row + left;
        }
    }

    const StreamPlan& stream_;
    const QueryRow<Time>& row_;
    EpisodeRows<Time> episode_;
    Rules rules_;
};

inline const CpuKernels& best_kernels() {
#ifdef ROBOCACHE_X86_64_V3
    if (has_x86_64_v3()) return kernels_x86_64_v3();
#endif
    return kernels_baseline();
}

/// Whether two streams find the same rows with the same weights for every target: one recording, several quantities.
inline bool search_alike(const StreamPlan& a, const StreamPlan& b) {
    const Method method = a.ranges[0].method;
    if (a.ranges.size() != 1 || b.ranges.size() != 1 || b.ranges[0].method != method) return false;
    if (is_window(method) || method == Method::cubic) return false;
    return a.times == b.times && a.time_episode_stride == b.time_episode_stride &&
           a.time_row_stride == b.time_row_stride && a.offsets == b.offsets && a.offsets_stride == b.offsets_stride &&
           a.num_episodes == b.num_episodes && a.num_rows == b.num_rows && a.latency.ns == b.latency.ns &&
           a.latency.seconds == b.latency.seconds && a.tolerance.ns == b.tolerance.ns &&
           a.tolerance.seconds == b.tolerance.seconds && a.has_max_gap == b.has_max_gap &&
           a.max_gap.ns == b.max_gap.ns && a.max_gap.seconds == b.max_gap.seconds && a.before == b.before &&
           a.after == b.after && a.outside_valid == b.outside_valid;
}

/// Fewer targets at a time where the rows of a tile are fetched ahead and wide.
inline std::int64_t targets_per_tile(std::int64_t widest_row_bytes) {
    constexpr std::int64_t tile_bytes_fetched = 16
                                                << 10;  // of rows that are fetched ahead and must still be there later
    return std::clamp<std::int64_t>(tile_bytes_fetched / (2 * widest_row_bytes), 8, tile_size);
}

}  // namespace robocache::align_detail
