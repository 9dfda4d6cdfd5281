// The gradient of align on CUDA: a block finds a tile of targets, one search each, then sends their gradients back to
// the rows with atomic additions. Allocates nothing, waits for nothing.
#include <algorithm>
#include <cstdint>
#include <string>

#include "core/cuda/check.hpp"
#include "core/cuda/device.hpp"
#include "ops/align/contract/backward.hpp"
#include "ops/align/contract/values.hpp"
#include "ops/align/cuda/device_stream.cuh"
#include "ops/align/cuda/tuning.hpp"

namespace robocache::align_detail {
namespace {

constexpr int threads = 256;               // of a block, and the most targets of a tile
constexpr std::int64_t block_work = 4096;  // elements: enough of them to keep a block's loads in flight
constexpr std::int64_t least_work = 512;
constexpr std::int64_t blocks_per_sm = 4;
constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;

/// The stream whose gradient is added to, and the gradient of its output; passed to the kernel by value.
struct BackwardTable {
    DeviceQuery query;
    DeviceStream stream;   // `values` is the gradient that is added to
    std::int64_t num_all;  // targets of all rows
    const char* grad;
    std::int64_t grad_row_stride;     // bytes
    std::int64_t grad_target_stride;  // bytes
    DType grad_dtype;
    const char* inputs;                 // as in StreamPlan
    std::int64_t input_episode_stride;  // bytes
    std::int64_t input_row_stride;      // bytes
    DType inputs_dtype;
    RangePlan ranges[max_ranges];
    ChannelDim outer[TensorView::max_rank];
    ChannelDim inner;
    std::int64_t outer_count;
    std::int32_t num_ranges;
    std::int32_t num_outer;
    // the launch
    std::int64_t part_width;  // channels of one part of a row
    std::int32_t parts;
    std::int32_t tile;  // targets
};

/// One target in shared memory.
template <class Time, class Sum>
struct Placed {
    Shares<Sum> shares;
    char* values;  // of the episode
    const char* inputs;
    const char* grad;
    EpisodeTimes<Time> times;
};

// ---- one search per target ------------------------------------------------------------------------------------------

/// Places target n, counted over all query rows. `left` is where the search for an earlier range found it, else -1.
template <class Time, class Sum>
__device__ void place(const BackwardTable& table, Method method, std::int64_t n, std::int64_t& left,
                      Placed<Time, Sum>& placed) {
    const DeviceQuery& q = table.query;
    const std::int64_t b = n / q.num_targets;
    const std::int64_t j = n - b * q.num_targets;
    const std::int64_t e = q.episode_of(table.stream, b);
    const DeviceEpisode<Time> episode = table.stream.episode<Time>(e);
    const Time latency = duration_as<Time>(table.stream.latency);
    Target<Time> target{};
    target.times = episode.times;
    placed.times = target.times;
    placed.values = const_cast<char*>(episode.values);
    placed.grad = table.grad + b * table.grad_row_stride + j * table.grad_target_stride;
    placed.shares = {};
    if (target.times.count == 0) return;
    placed.inputs = inputs_of(table, e, episode.first_row);
    target.t = q.target<Time>(b, j, latency);
    target.has_earlier = j > 0;
    target.has_later = j + 1 < q.num_targets;
    target.earlier = target.has_earlier ? q.target<Time>(b, j - 1, latency) : target.t;
    target.later = target.has_later ? q.target<Time>(b, j + 1, latency) : target.t;
    left = left < 0 ? first_after(target.times, 0, target.times.count, target.t) - 1
                    : last_at_or_before(target.times, target.t, left);
    target.near = neighbors_of(target.times, target.t, left, gap_as<Time>(table.stream.tolerance));
    placed.shares = shares_of<Sum>(target, method, table.stream.rules);
}

// ---- gradients back to the rows -------------------------------------------------------------------------------------

/// The last rows a thread added to, in registers: neighboring targets mostly read the same rows, and so a row costs
/// one atomic addition for all of them. The oldest makes place for a new one, which is right for targets in order.
template <class Sum, int slots>
class RowSums {
public:
    __device__ void add(Sum* row, Sum x) {
#pragma unroll
        for (int i = 0; i < slots; ++i) {
            if (rows_[i] == row) {
                sums_[i] += x;
                return;
            }
        }
        flush(slots - 1);
#pragma unroll
        for (int i = slots - 1; i > 0; --i) {
            rows_[i] = rows_[i - 1];
            sums_[i] = sums_[i - 1];
        }
        rows_[0] = row;
        sums_[0] = x;
    }

    __device__ void flush_all() {
#pragma unroll
        for (int i = 0; i < slots; ++i) flush(i);
    }

private:
    __device__ void flush(int i) {
        if (rows_[i] != nullptr) atomicAdd(rows_[i], sums_[i]);
    }

    Sum* rows_[slots] = {};
    Sum sums_[slots] = {};
};

struct ChannelOffsets {
    std::int64_t value;
    std::int64_t grad;
    std::int64_t input;
};

/// Where channel c of a range is, counted over its outer dimensions too.
__device__ inline ChannelOffsets offsets_of(const BackwardTable& table, const RangePlan& range, std::int64_t c) {
    std::int64_t outer = c / range.width;
    const std::int64_t inner = range.begin + (c - outer * range.width);
    ChannelOffsets offsets{inner * table.inner.value_stride, inner * table.inner.out_stride,
                           inner * table.inner.input_stride};
    for (int d = table.num_outer - 1; d >= 0; --d) {
        const std::int64_t i = outer % table.outer[d].size;
        outer /= table.outer[d].size;
        offsets.value += i * table.outer[d].value_stride;
        offsets.grad += i * table.outer[d].out_stride;
        offsets.input += i * table.outer[d].input_stride;
    }
    return offsets;
}

/// One channel of the targets [begin, end) of a tile, in their order.
template <int slots, class Grad, class Time, class Sum>
__device__ void add_channel(const BackwardTable& table, Method method, const Placed<Time, Sum>* placed,
                            std::int32_t begin, std::int32_t end, const ChannelOffsets& offsets) {
    RowSums<Sum, slots> sums;
    for (std::int32_t k = begin; k < end; ++k) {
        const Placed<Time, Sum>& p = placed[k];
        if (p.shares.count == 0) continue;
        const auto grad = static_cast<Sum>(widen(reinterpret_cast<const Grad*>(p.grad)[offsets.grad]));
        const auto row_at = [&](std::int64_t row) {
            return reinterpret_cast<Sum*>(p.values + row * table.stream.value_row_stride) + offsets.value;
        };
        if (p.shares.window && gradient_reads_values(method)) {
            const char* input = p.inputs + offsets.input * element_bytes(table.inputs_dtype);
            each_window_weight(
                p.times, p.shares.rows[0], p.shares.rows[1], method,
                [&](std::int64_t row) { return wide_value(input + row * table.input_row_stride, table.inputs_dtype); },
                [&](std::int64_t row, double weight) { atomicAdd(row_at(row), static_cast<Sum>(weight) * grad); });
            continue;
        }
        if (p.shares.window) {
            for (std::int64_t row = p.shares.rows[0]; row < p.shares.rows[1]; ++row) {
                if (!is_passed_over(p.times, row)) atomicAdd(row_at(row), p.shares.weights[0] * grad);
            }
            continue;
        }
        for (std::int32_t i = 0; i < p.shares.count; ++i) {
            sums.add(row_at(p.shares.rows[i]), p.shares.weights[i] * grad);
        }
    }
    sums.flush_all();
}

/// A range's channels of this part: neighboring threads take neighboring channels, and what threads are left over
/// take other targets of the tile.
template <class Grad, class Time, class Sum>
__device__ void add_range(const BackwardTable& table, const RangePlan& range, std::int32_t part,
                          const Placed<Time, Sum>* placed, std::int32_t count) {
    const std::int64_t first = part * table.part_width;
    const std::int64_t all = range.width * table.outer_count;
    const std::int64_t end = all < first + table.part_width ? all : first + table.part_width;
    if (first >= end) return;
    const auto lanes = static_cast<std::int32_t>(end - first < threads ? end - first : threads);
    const std::int32_t groups = threads / lanes;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t group = thread / lanes;
    if (group >= groups) return;
    const std::int32_t targets = (count + groups - 1) / groups;
    const std::int32_t from = group * targets;
    const std::int32_t to = from + targets < count ? from + targets : count;
    for (std::int64_t c = first + (thread - group * lanes); c < end; c += lanes) {
        const ChannelOffsets offsets = offsets_of(table, range, c);
        if (range.method == Method::cubic) {
            add_channel<4, Grad>(table, range.method, placed, from, to, offsets);
        } else {
            add_channel<2, Grad>(table, range.method, placed, from, to, offsets);
        }
    }
}

/// Two blocks of a multiprocessor are promised: without that, nvcc 13 allots 48 registers and spills.
template <class Time, class Sum>
__global__ __launch_bounds__(threads, 2) void align_backward_kernel(const __grid_constant__ BackwardTable table) {
    __shared__ Placed<Time, Sum> placed[threads];
    const auto number = static_cast<std::int64_t>(blockIdx.x);
    const std::int64_t tile = number / table.parts;
    const auto part = static_cast<std::int32_t>(number - tile * table.parts);
    const std::int64_t first = tile * table.tile;
    const std::int64_t left = table.num_all - first;
    const auto count = static_cast<std::int32_t>(left < table.tile ? left : table.tile);
    const auto k = static_cast<std::int32_t>(threadIdx.x);
    const bool mine = k < count;
    std::int64_t found = -1;
    for (int i = 0; i < table.num_ranges; ++i) {
        const RangePlan& range = table.ranges[i];
        if (mine) place(table, range.method, first + k, found, placed[k]);
        __syncthreads();
        switch (table.grad_dtype) {
            case DType::f16: add_range<Half>(table, range, part, placed, count); break;
            case DType::bf16: add_range<BFloat16>(table, range, part, placed, count); break;
            case DType::f64: add_range<double>(table, range, part, placed, count); break;
            default: add_range<float>(table, range, part, placed, count); break;
        }
        __syncthreads();
    }
}

// ---- launch ---------------------------------------------------------------------------------------------------------

BackwardTable table_of(const CallPlan& plan, const StreamPlan& s) {
    BackwardTable table{};
    table.query = device_query(plan);
    table.stream = device_stream(s);
    table.num_all = plan.num_rows * plan.num_targets;
    table.grad = s.out;
    table.grad_row_stride = s.out_row_stride;
    table.grad_target_stride = s.out_target_stride;
    table.grad_dtype = s.out_dtype;
    table.inputs = s.inputs;
    table.input_episode_stride = s.input_episode_stride;
    table.input_row_stride = s.input_row_stride;
    table.inputs_dtype = s.inputs_dtype;
    table.num_ranges = static_cast<std::int32_t>(s.ranges.size());
    std::copy(s.ranges.begin(), s.ranges.end(), table.ranges);
    table.num_outer = static_cast<std::int32_t>(s.outer.size());
    std::copy(s.outer.begin(), s.outer.end(), table.outer);
    table.inner = s.inner;
    table.outer_count = 1;
    for (const ChannelDim& dim : s.outer) table.outer_count *= dim.size;
    return table;
}

template <class Time, class Sum>
void launch(const CallPlan& plan, const StreamPlan& s, cudaStream_t stream) {
    if (s.ranges.size() > max_ranges) {
        throw Unsupported("align_backward: at most " + std::to_string(max_ranges) + " channel ranges on CUDA, got " +
                          std::to_string(s.ranges.size()));
    }
    BackwardTable table = table_of(plan, s);
    const std::int64_t width = s.inner.size * table.outer_count;
    if (width == 0) return;
    table.part_width = std::min(width, block_work);
    table.parts = static_cast<std::int32_t>((width + table.part_width - 1) / table.part_width);
    std::int64_t tile = std::clamp<std::int64_t>(block_work / table.part_width, 1, threads);
    const auto blocks = [&] { return (table.num_all + tile - 1) / tile * table.parts; };
    while (tile > 1 && tile * table.part_width > least_work && blocks() < blocks_per_sm * num_multiprocessors())
        tile = (tile + 1) / 2;
    table.tile = static_cast<std::int32_t>(tile);
    if (blocks() > most_blocks) {
        throw Unsupported("align_backward: the gradient has more tiles than a CUDA grid has blocks");
    }
    align_backward_kernel<Time, Sum><<<static_cast<unsigned>(blocks()), threads, 0, stream>>>(table);
    check_cuda(cudaGetLastError(), "align_backward: launching align_backward_kernel");
}

template <class Time>
void launch_all(const CallPlan& plan, cudaStream_t stream) {
    for (const StreamPlan& s : plan.streams) {
        if (s.values_dtype == DType::f64) {
            launch<Time, double>(plan, s, stream);
        } else {
            launch<Time, float>(plan, s, stream);
        }
    }
}

}  // namespace

void align_backward_cuda(const CallPlan& plan, CudaQueue stream) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    switch (plan.time_dtype) {
        case DType::f32: return launch_all<float>(plan, handle);
        case DType::f64: return launch_all<double>(plan, handle);
        default: return launch_all<std::int64_t>(plan, handle);
    }
}

}  // namespace robocache::align_detail
