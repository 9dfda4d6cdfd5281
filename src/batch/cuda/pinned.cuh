// The kernel of BatchReader for windows in pinned host memory. What limits it is not the bus but finding out where a
// page of the host is: the windows of a batch lie anywhere, and 2 GB of them are all that is known at a time. So each
// block sorts its samples by place and copies them from the lowest to the highest. As all blocks do so at the same
// pace, they are near each other at any moment (docs/decisions/0009).
#pragma once

#include "batch/cuda/kernel.cuh"

namespace robocache::loader_detail {

constexpr int sample_bits = 10;
constexpr int max_sorted_samples = 1 << sample_bits;

/// The samples of a block, by their numbers in it.
struct SortedSamples {
    std::uint64_t keys[max_sorted_samples];  // place << sample_bits | number, ascending
    const char* runs[max_sorted_samples];    // null: no run

    __device__ std::uint32_t number(std::uint32_t i) const {
        return static_cast<std::uint32_t>(keys[i]) & (max_sorted_samples - 1);
    }
};

/// By all threads of a block: bitonic, over the next power of two.
__device__ inline void sort_keys(std::uint64_t* keys, std::uint32_t count) {
    std::uint32_t size = 2;
    while (size < count) size *= 2;
    for (std::uint32_t i = count + threadIdx.x; i < size; i += batch_threads) keys[i] = ~0ULL;
    __syncthreads();
    for (std::uint32_t run = 2; run <= size; run *= 2) {
        for (std::uint32_t step = run / 2; step > 0; step /= 2) {
            for (std::uint32_t i = threadIdx.x; i < size / 2; i += batch_threads) {
                const std::uint32_t low = 2 * i - (i & (step - 1));
                const std::uint64_t a = keys[low];
                const std::uint64_t b = keys[low + step];
                if ((a > b) == ((low & run) == 0)) {
                    keys[low] = b;
                    keys[low + step] = a;
                }
            }
            __syncthreads();
        }
    }
}

/// Finds the samples of a block and sorts them.
__device__ inline void find_sorted(const BatchTable& table, const DeviceColumn& column, const Task& task,
                                   SortedSamples& sorted) {
    constexpr int line_bits = 6;  // so that a place and a number fit into 64 bits
    for (std::uint32_t s = threadIdx.x; s < task.num_samples; s += batch_threads) {
        const SampleRows rows = find_sample(table, column, task.first_sample + s);
        const char* run = find_run(column, rows);
        const auto place = reinterpret_cast<std::uintptr_t>(run != nullptr ? run : rows.values);
        sorted.runs[s] = run;
        sorted.keys[s] = place >> line_bits << sample_bits | s;
    }
    sort_keys(sorted.keys, task.num_samples);
}

template <int bytes>
__device__ __forceinline__ void copy_sorted(const SortedSamples& sorted, std::uint32_t num_samples,
                                            const Divisor& by_items, char* out, Gate& gate) {
    using W = typename align_detail::Word<bytes>::type;
    constexpr std::uint32_t unroll = 8;
    const std::uint32_t items = by_items.divisor;
    const std::uint32_t count = num_samples * items;
    for (std::uint32_t begin = threadIdx.x; begin < count; begin += unroll * batch_threads) {
        W words[unroll];
        W* to[unroll];
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            const std::uint32_t i = begin + u * batch_threads;
            to[u] = nullptr;
            if (i >= count) continue;
            const std::uint32_t s = by_items.divide(i);
            const std::uint32_t number = sorted.number(s);
            const char* run = sorted.runs[number];
            if (run == nullptr) continue;
            const std::uint32_t item = i - s * items;
            words[u] = load_word<W>(reinterpret_cast<const W*>(run) + item);
            to[u] = reinterpret_cast<W*>(out) + static_cast<std::uint64_t>(number) * items + item;
        }
        gate.pass();
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            if (to[u] != nullptr) *to[u] = words[u];
        }
    }
}

__device__ inline void copy_sorted(const DeviceColumn& column, const Task& task, const SortedSamples& sorted,
                                   Gate& gate) {
    const std::int64_t first = task.first_sample * column.num_targets;
    char* out = column.out + first * column.out_row_bytes;
    const auto copy = [&]<int bytes>() {
        copy_sorted<bytes>(sorted, task.num_samples, column.by_run_items, out, gate);
    };
    with_bytes(column.format.in_bytes, copy);
    gate.pass();
    if (column.padding == nullptr) return;
    for (std::uint32_t k = threadIdx.x; k < task.num_samples * column.num_targets; k += batch_threads) {
        if (sorted.runs[column.by_targets.divide(k)] != nullptr) column.padding[first + k] = false;
    }
}

/// What is no run: each warp finds some samples again and moves them.
__device__ inline void move_unsorted(const BatchTable& table, const DeviceColumn& column, const Task& task,
                                     const SortedSamples& sorted, TeamSamples& samples, PlacedTarget* placed,
                                     Gate& gate) {
    constexpr std::uint32_t warp_size = align_detail::warp_size;
    static_assert(warp_size <= max_task_samples);
    const std::uint32_t lane = threadIdx.x % warp_size;
    for (std::uint32_t first = threadIdx.x - lane; first < task.num_samples; first += batch_threads) {
        const bool is_other = first + lane < task.num_samples && sorted.runs[first + lane] == nullptr;
        const std::uint32_t others = __ballot_sync(0xffffffffU, is_other);
        if (others == 0) continue;
        SampleRows rows{};
        if (is_other) rows = find_sample(table, column, task.first_sample + first + lane);
        Task some = task;
        some.first_sample += first;
        some.num_samples = warp_size;
        keep_others(some, rows, others, lane, samples);
        __syncwarp();
        move_others<AnyItems>(column, samples, placed, Team{lane, warp_size}, gate);
        __syncwarp();
    }
}

__global__ __launch_bounds__(batch_threads) void robocache_read_pinned(const __grid_constant__ BatchTable table) {
    __shared__ SortedSamples sorted;
    __shared__ TeamSamples all_samples[team_warps];
    __shared__ PlacedTarget all_placed[batch_threads * thread_targets];
    allow_next_kernel();
    // A step is somebody's earlier work; everything else that is read here was there before the reader.
    if (table.steps.step != nullptr) wait_for_earlier_work();
    if (write_index(table)) return;
    const DeviceColumn& column = column_of_block(table);
    const Task task = task_of(column, table.count, blockIdx.x - column.first_block);
    find_sorted(table, column, task, sorted);
    Gate gate(table.steps.step == nullptr);
    copy_sorted(column, task, sorted, gate);
    const std::uint32_t warp = threadIdx.x / align_detail::warp_size;
    PlacedTarget* placed = all_placed + warp * align_detail::warp_size * thread_targets;
    move_unsorted(table, column, task, sorted, all_samples[warp], placed, gate);
}

}  // namespace robocache::loader_detail
