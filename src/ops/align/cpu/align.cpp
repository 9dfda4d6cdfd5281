// align on the CPU: which tiles there are, spread over the threads.
#include <algorithm>
#include <vector>

#include "core/interrupt.hpp"
#include "core/thread_pool.hpp"
#include "ops/align/cpu/tile.hpp"
#include "robocache/threads.hpp"

namespace robocache::align_detail {
namespace {

constexpr std::int64_t parallel_bytes = 1 << 20;  // less output than this is not worth waking a thread for
constexpr std::int64_t least_stretch_bytes = 64 << 10;
constexpr std::int64_t stretch_bytes = 2 << 20;
constexpr std::int64_t stream_bytes = 32 << 20;  // larger outputs are written with non-temporal stores

/// Whether the output is large and each tile of it is one block of memory.
bool is_non_temporal(const CallPlan& plan, const StreamPlan& s) {
    const std::int64_t row_bytes = s.inner.size * size_bytes(s.out_dtype);
    return s.ranges.size() == 1 && s.outer.empty() && s.inner.out_stride == 1 && s.out_target_stride == row_bytes &&
           row_bytes > 0 && row_bytes <= scratch_bytes && plan.num_rows * plan.num_targets >= stream_bytes / row_bytes;
}

std::int64_t output_bytes_per_target(const CallPlan& plan) {
    std::int64_t bytes = 16;  // the search
    for (const StreamPlan& stream : plan.streams) {
        std::int64_t width = stream.inner.size;
        for (const ChannelDim& dim : stream.outer) width *= dim.size;
        bytes += width * size_bytes(stream.out_dtype);
    }
    return bytes;
}

/// Bytes of the widest row that is fetched ahead for a whole tile.
std::int64_t widest_fetched(const CallPlan& plan) {
    std::int64_t widest = 1;
    for (const StreamPlan& stream : plan.streams) {
        if (is_non_temporal(plan, stream) && goes_direct(stream)) continue;
        widest = std::max(widest, stream.inner.size * size_bytes(stream.values_dtype));
    }
    return widest;
}

Plane plane_of(const Plane& plane, std::int64_t b, std::int64_t element_bytes) {
    if (plane.data == nullptr) return {};
    return {static_cast<char*>(plane.data) + b * plane.row_stride * element_bytes, 0, plane.target_stride};
}

template <class Time>
QueryRow<Time> row_of(const CallPlan& plan, const StreamPlan& stream, std::int64_t b, bool non_temporal) {
    return {reinterpret_cast<const Time*>(plan.times) + b * plan.time_row_stride,
            plan.time_target_stride,
            reinterpret_cast<const Time*>(plan.deltas),
            plan.delta_stride,
            plan.num_targets,
            episode_of(plan, stream, b),
            stream.out + b * stream.out_row_stride,
            plane_of(stream.valid, b, sizeof(bool)),
            plane_of(stream.index, b, sizeof(std::int64_t)),
            non_temporal};
}

}  // namespace

void align_cpu(const CallPlan& plan) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    const CpuKernels& kernels = best_kernels();
    const std::int64_t tile_targets = targets_per_tile(widest_fetched(plan));
    const std::int64_t tiles_per_row = (plan.num_targets + tile_targets - 1) / tile_targets;
    const std::int64_t tile_bytes = output_bytes_per_target(plan) * std::min(tile_targets, plan.num_targets);
    const std::int64_t num_tiles = plan.num_rows * tiles_per_row;
    // Long stretches let the hardware see a stream of memory; enough of them keep every thread busy to the end.
    const std::int64_t stretch =
        std::clamp(num_tiles * tile_bytes / (16 * num_threads()), least_stretch_bytes, stretch_bytes);
    const bool alone = num_tiles * tile_bytes < parallel_bytes;
    struct Way {
        bool non_temporal;
        bool placed;  // by the stream before
    };
    std::vector<Way> ways;
    for (const StreamPlan& stream : plan.streams) {
        const StreamPlan* before = ways.empty() ? nullptr : &stream - 1;
        ways.push_back(
            {is_non_temporal(plan, stream), before != nullptr && search_alike(*before, stream) &&
                                                (before->valid.data == nullptr) == (stream.valid.data == nullptr)});
    }
    // Between two looks for an interrupt. A window may be a whole episode.
    const bool has_windows = std::ranges::any_of(plan.streams, [](const StreamPlan& stream) {
        return std::ranges::any_of(stream.ranges, [](const RangePlan& range) { return is_window(range.method); });
    });
    const std::int64_t tiles_at_once = has_windows ? 1 : 64;
    const std::int64_t grain = alone ? num_tiles : std::max<std::int64_t>(1, stretch / tile_bytes);
    with_time_type(plan, [&]<class Time>() {
        parallel_for(num_tiles, grain, [&](std::int64_t begin, std::int64_t end) {
            Tile<Time> tile;
            for (std::int64_t i = begin; i < end; ++i) {
                tile.begin = i % tiles_per_row * tile_targets;
                tile.count = std::min(tile_targets, plan.num_targets - tile.begin);
                for (std::size_t s = 0; s < ways.size(); ++s) {
                    const StreamPlan& stream = plan.streams[s];
                    const QueryRow<Time> row = row_of<Time>(plan, stream, i / tiles_per_row, ways[s].non_temporal);
                    TileWriter<Time>(stream, row).write(tile, kernels, ways[s].placed);
                }
                if (i % tiles_at_once == 0) detail::poll_interrupt();
            }
        });
    });
}

}  // namespace robocache::align_detail
