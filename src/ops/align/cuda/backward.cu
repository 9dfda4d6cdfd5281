// The gradient of align on CUDA: a block finds a tile of targets, one search each, then sends their gradients back to
// the rows with atomic additions.
#include "core/cuda/overlap.cuh"
#include "ops/align/contract/backward.hpp"
#include "ops/align/contract/values.hpp"
#include "ops/align/cuda/channels.cuh"

namespace robocache::align_detail {
namespace {

/// One target in shared memory.
template <class Time, class Sum>
struct Placed {
    Shares<Sum> shares;
    char* values;  // of the episode
    const char* inputs;
    const char* grad;
    EpisodeTimes<Time> times;
};

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

/// One channel of the targets [begin, end) of a tile, in their order.
template <int slots, class Grad, class Time, class Sum>
__device__ void add_channel(const BackwardTable& table, Method method, const Placed<Time, Sum>* placed,
                            std::int32_t begin, std::int32_t end, const ChannelOffsets& offsets) {
    RowSums<Sum, slots> sums;
    for (std::int32_t k = begin; k < end; ++k) {
        const Placed<Time, Sum>& p = placed[k];
        if (p.shares.count == 0) continue;
        const auto grad = static_cast<Sum>(widen(reinterpret_cast<const Grad*>(p.grad)[offsets.out]));
        const auto row_at = [&](std::int64_t row) {
            return reinterpret_cast<Sum*>(p.values + row * table.stream.value_row_stride) + offsets.value;
        };
        if (p.shares.window && gradient_reads_values(method)) {
            const char* input = p.inputs + offsets.input * table.input_bytes;
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
    const std::int64_t all = range.width * table.channels.outer_count;
    const std::int64_t end = all < first + table.part_width ? all : first + table.part_width;
    if (first >= end) return;
    const auto lanes = static_cast<std::int32_t>(end - first < block_threads ? end - first : block_threads);
    const std::int32_t groups = block_threads / lanes;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t group = thread / lanes;
    if (group >= groups) return;
    const std::int32_t targets = (count + groups - 1) / groups;
    const std::int32_t from = group * targets;
    const std::int32_t to = from + targets < count ? from + targets : count;
    for (std::int64_t c = first + (thread - group * lanes); c < end; c += lanes) {
        const std::int64_t outer = c / range.width;
        const ChannelOffsets offsets = offsets_of(table.channels, outer, range.begin + (c - outer * range.width));
        if (range.method == Method::cubic) {
            add_channel<4, Grad>(table, range.method, placed, from, to, offsets);
        } else {
            add_channel<2, Grad>(table, range.method, placed, from, to, offsets);
        }
    }
}

/// Two blocks of an SM are promised: without that, nvcc 13 allots 48 registers and spills.
template <class Time, class Sum>
__global__ __launch_bounds__(block_threads, 2) void align_backward_kernel(const __grid_constant__ BackwardTable table) {
    __shared__ Placed<Time, Sum> placed[block_threads];
    wait_for_earlier_work();
    const auto number = static_cast<std::int64_t>(blockIdx.x);
    const std::int64_t tile = number / table.parts;
    const auto part = static_cast<std::int32_t>(number - tile * table.parts);
    const std::int64_t first = tile * table.tile;
    const std::int64_t left = table.num_all - first;
    const auto count = static_cast<std::int32_t>(left < table.tile ? left : table.tile);
    const auto k = static_cast<std::int32_t>(threadIdx.x);
    const bool mine = k < count;
    FoundTarget<Time> found{};
    if (mine) {
        const std::int64_t b = (first + k) / table.query.num_targets;
        const std::int64_t j = first + k - b * table.query.num_targets;
        found = find_target<Time>(table.stream, table.query, b, j);
        Placed<Time, Sum>& p = placed[k];
        p.times = found.episode.times;
        p.values = const_cast<char*>(found.episode.values);
        p.inputs = inputs_of(table, found.number, found.episode.first_row);
        p.grad = table.grad + b * table.grad_row_stride + j * table.grad_target_stride;
        p.shares = {};
    }
    for (int i = 0; i < table.channels.num_ranges; ++i) {
        const RangePlan& range = table.channels.ranges[i];
        if (mine && found.has_rows()) {
            placed[k].shares = shares_of<Sum>(found.target, range.method, table.stream.rules);
        }
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

}  // namespace

BackwardKernels backward_kernels(DType times) {
    switch (times) {
        case DType::f32: return {align_backward_kernel<float, float>, align_backward_kernel<float, double>};
        case DType::f64: return {align_backward_kernel<double, float>, align_backward_kernel<double, double>};
        default: return {align_backward_kernel<std::int64_t, float>, align_backward_kernel<std::int64_t, double>};
    }
}

}  // namespace robocache::align_detail
