// align on the CPU: tiles of targets, searched once per stream, written by the best instruction set, in parallel.
#include <algorithm>
#include <vector>

#include "core/cpu_features.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/cpu_kernels.hpp"
#include "ops/align/episodes.hpp"
#include "robocache/threads.hpp"

namespace robocache::align_detail {
namespace {

constexpr std::int64_t tile_size = 64;                 // targets at most; their samples stay in the first-level cache
constexpr std::int64_t tile_bytes_fetched = 16 << 10;  // of rows that are fetched ahead and must still be there later
constexpr std::int64_t parallel_bytes = 1 << 20;       // less output than this is not worth waking a thread for
constexpr std::int64_t least_stretch_bytes = 64 << 10;
constexpr std::int64_t stretch_bytes = 2 << 20;
constexpr std::int64_t stream_bytes = 32 << 20;  // an output larger than this goes past the caches
constexpr std::int64_t scratch_bytes = 16 << 10;

bool is_window(Method method) {
    return method == Method::mean || method == Method::min || method == Method::max;
}

/// Whether the output is large and each tile of it is one block of memory.
bool goes_past_caches(const AlignPlan& plan, const StreamPlan& s) {
    const std::int64_t row_bytes = s.inner.size * size_bytes(s.out_dtype);
    return s.ranges.size() == 1 && s.outer.empty() && s.inner.out_stride == 1 && s.out_target_stride == row_bytes &&
           row_bytes > 0 && row_bytes <= scratch_bytes && plan.num_rows * plan.num_targets >= stream_bytes / row_bytes;
}

/// Whether such an output is written without a stop in the scratch buffer: whole vectors of float32, each half aligned.
bool goes_direct(const StreamPlan& s) {
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
    Neighbours near[tile_size];
    Sample samples[tile_size];
    OuterRows outer[tile_size];
    bool valid[tile_size];
    alignas(64) char scratch[scratch_bytes];
    std::int64_t begin;  // first target
    std::int64_t count;
};

template <class Time>
class TileWriter {
public:
    TileWriter(const AlignPlan& plan, const StreamPlan& stream, std::int64_t b)
        : plan_(plan),
          stream_(stream),
          b_(b),
          episode_(episode_rows<Time>(stream, episode_of(plan, stream, b))),
          rules_{stream.max_gap, stream.has_max_gap, stream.outside_valid, stream.before, stream.after},
          streams_(goes_past_caches(plan, stream)),
          goes_direct_(streams_ && goes_direct(stream)) {}

    /// `placed`: the tile still holds the neighbours and samples of a stream with the same search.
    void write(Tile<Time>& tile, const CpuKernels& kernels, bool placed) {
        if (placed) {
            write_range(tile, stream_.ranges[0], kernels);
            return write_planes(tile);
        }
        if (goes_direct_ && episode_.times.count > 0 && episode_.times.stride == 1) {
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
        return add_time(target_time<Time>(plan_, b_, j), duration_as<Time>(stream_.latency));
    }

    void read_targets(Tile<Time>& tile) const {
        if (plan_.deltas != nullptr) {
            for (std::int64_t k = 0; k < tile.count; ++k) tile.t[k] = target(tile.begin + k);
            return;
        }
        const std::int64_t stride = plan_.time_target_stride;
        const Time* from =
            reinterpret_cast<const Time*>(plan_.times) + b_ * plan_.time_row_stride + tile.begin * stride;
        const Time latency = duration_as<Time>(stream_.latency);
        for (std::int64_t k = 0; k < tile.count; ++k) tile.t[k] = add_time(from[k * stride], latency);
    }

    /// Neighbours, and samples by `method` unless that uses windows.
    void place(Tile<Time>& tile, Method method, const CpuKernels& kernels) const {
        read_targets(tile);
        std::fill_n(tile.valid, tile.count, episode_.times.count > 0);
        if (episode_.times.count == 0) {
            Sample zero = row_sample(0, false);
            zero.kind = Kind::zero;
            std::fill_n(tile.near, tile.count, Neighbours{-1, -1, false});
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
                stream_.value_row_stride + row_bytes};
    }

    /// What place() has not done: windows, cubics, and the methods of further channel ranges.
    void sample(Tile<Time>& tile, Method method, bool again) const {
        if (!again && !is_window(method) && method != Method::cubic && stream_.valid.data == nullptr) return;
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
        const bool has_later = j + 1 < plan_.num_targets;
        return sample_window(episode_.times, tile.t[k], has_earlier ? target(j - 1) : tile.t[k],
                             has_later ? target(j + 1) : tile.t[k], has_earlier, has_later, tile.near[k], rules_);
    }

    static bool is_replaced(const void* times, std::int64_t row) {
        const auto& episode = *static_cast<const EpisodeTimes<Time>*>(times);
        return row + 1 < episode.count && episode[row + 1] == episode[row];
    }

    RowJob row_job(const Tile<Time>& tile, const RangePlan& range) const {
        const StreamPlan& s = stream_;
        char* out = s.out + b_ * s.out_row_stride + tile.begin * s.out_target_stride;
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
        if (!streams_) return kernels.write_rows(job);
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
        const Plane& valid = stream_.valid;
        const Plane& index = stream_.index;
        if (valid.data == nullptr && index.data == nullptr) return;
        for (std::int64_t k = 0; k < tile.count; ++k) {
            const std::int64_t j = tile.begin + k;
            if (valid.data != nullptr) {
                static_cast<bool*>(valid.data)[b_ * valid.row_stride + j * valid.target_stride] = tile.valid[k];
            }
            if (index.data != nullptr) {
                const std::int64_t left = tile.near[k].left;
                static_cast<std::int64_t*>(index.data)[b_ * index.row_stride + j * index.target_stride] =
                    left < 0 ? -1 : episode_.first_row + left;
            }
        }
    }

    const AlignPlan& plan_;
    const StreamPlan& stream_;
    std::int64_t b_;
    EpisodeRows<Time> episode_;
    Rules rules_;
    bool streams_;
    bool goes_direct_;
};

const CpuKernels& best_kernels() {
#ifdef ROBOCACHE_X86_64_V3
    if (has_x86_64_v3()) return kernels_x86_64_v3();
#endif
    return kernels_baseline();
}

/// Whether two streams find the same rows with the same weights for every target: one recording, several quantities.
bool search_alike(const StreamPlan& a, const StreamPlan& b) {
    const Method method = a.ranges[0].method;
    if (a.ranges.size() != 1 || b.ranges.size() != 1 || b.ranges[0].method != method) return false;
    if (is_window(method) || method == Method::cubic) return false;
    return a.times == b.times && a.time_episode_stride == b.time_episode_stride &&
           a.time_row_stride == b.time_row_stride && a.offsets == b.offsets && a.offsets_stride == b.offsets_stride &&
           a.num_episodes == b.num_episodes && a.num_rows == b.num_rows && a.latency.ns == b.latency.ns &&
           a.latency.seconds == b.latency.seconds && a.has_max_gap == b.has_max_gap && a.max_gap.ns == b.max_gap.ns &&
           a.max_gap.seconds == b.max_gap.seconds && a.before == b.before && a.after == b.after &&
           a.outside_valid == b.outside_valid && (a.valid.data == nullptr) == (b.valid.data == nullptr);
}

std::int64_t output_bytes_per_target(const AlignPlan& plan) {
    std::int64_t bytes = 16;  // the search
    for (const StreamPlan& stream : plan.streams) {
        std::int64_t width = stream.inner.size;
        for (const ChannelDim& dim : stream.outer) width *= dim.size;
        bytes += width * size_bytes(stream.out_dtype);
    }
    return bytes;
}

/// Fewer targets at a time where the rows of a tile are fetched ahead and wide.
std::int64_t targets_per_tile(const AlignPlan& plan) {
    std::int64_t widest = 1;
    for (const StreamPlan& stream : plan.streams) {
        if (goes_past_caches(plan, stream) && goes_direct(stream)) continue;
        widest = std::max(widest, stream.inner.size * size_bytes(stream.values_dtype));
    }
    return std::clamp<std::int64_t>(tile_bytes_fetched / (2 * widest), 8, tile_size);
}

}  // namespace

void align_cpu(const AlignPlan& plan) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    const CpuKernels& kernels = best_kernels();
    const std::int64_t tile_targets = targets_per_tile(plan);
    const std::int64_t tiles_per_row = (plan.num_targets + tile_targets - 1) / tile_targets;
    const std::int64_t tile_bytes = output_bytes_per_target(plan) * std::min(tile_targets, plan.num_targets);
    const std::int64_t num_tiles = plan.num_rows * tiles_per_row;
    // Long stretches let the hardware see a stream of memory; enough of them keep every thread busy to the end.
    const std::int64_t stretch =
        std::clamp(num_tiles * tile_bytes / (16 * num_threads()), least_stretch_bytes, stretch_bytes);
    const bool alone = num_tiles * tile_bytes < parallel_bytes;
    std::vector<bool> placed(plan.streams.size());
    for (std::size_t s = 1; s < placed.size(); ++s) placed[s] = search_alike(plan.streams[s - 1], plan.streams[s]);
    const std::int64_t grain = alone ? num_tiles : std::max<std::int64_t>(1, stretch / tile_bytes);
    with_time_type(plan, [&]<class Time>() {
        parallel_for(num_tiles, grain, [&](std::int64_t begin, std::int64_t end) {
            Tile<Time> tile;
            for (std::int64_t i = begin; i < end; ++i) {
                tile.begin = i % tiles_per_row * tile_targets;
                tile.count = std::min(tile_targets, plan.num_targets - tile.begin);
                for (std::size_t s = 0; s < placed.size(); ++s) {
                    TileWriter<Time>(plan, plan.streams[s], i / tiles_per_row).write(tile, kernels, placed[s]);
                }
            }
        });
    });
}

}  // namespace robocache::align_detail
