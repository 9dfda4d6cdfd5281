// A second kernel of BatchReader, for columns that are copied and whose windows mostly lie on the rows. A warp finds
// some samples and asks for the windows of all of them at once, by bulk copies into shared memory (compute
// capability 9.0 on). Rows on their way take no registers: the windows of the next batches are on theirs while one
// batch is written.
#pragma once

#include "batch/cuda/kernel.cuh"
#include "core/cuda/bulk.cuh"

namespace robocache::loader_detail {

/// What is in shared memory when samples are moved target by target, after the windows have left it.
struct OtherSamples {
    TeamSamples samples;
    PlacedTarget placed[window_threads * thread_targets];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// Bytes that bulk copies bring into shared memory; used once.
class Arrivals {
public:
    __device__ explicit Arrivals(std::uint64_t& barrier) : barrier_(shared_address(&barrier)) {}

    /// By one lane, before all other calls.
    __device__ void begin() const {
        init_barrier(barrier_, 1);
        publish_barriers();
        show_to_copies();
    }
    /// By one lane.
    __device__ void expect(std::uint32_t bytes) const { arrive_and_expect(barrier_, bytes); }
    __device__ void ask(void* to, const void* from, std::uint32_t bytes) const { copy_in(to, from, bytes, barrier_); }
    __device__ void wait() const { await_barrier(barrier_, 0); }

private:
    std::uint32_t barrier_;
};

/// A warp's windows in shared memory, a lane for each.
struct Windows {
    const DeviceColumn& column;
    char* shared;
    std::uint32_t lane;
    std::uint32_t row_bytes;
    std::uint32_t window_bytes;
    std::uint32_t windows;  // lanes that have one
    std::uint32_t edges;    // those where not all rows are read

    __device__ Windows(const DeviceColumn& column, char* shared, std::uint32_t lane, const Window& window)
        : column(column),
          shared(shared),
          lane(lane),
          row_bytes(column.num_items * static_cast<std::uint32_t>(sizeof(uint4))),
          window_bytes(column.num_targets * row_bytes),
          windows(__ballot_sync(~0U, window.count > 0)),
          edges(__ballot_sync(~0U, window.count > 0 && window.count < column.num_targets)) {}

    /// Reads them.
    __device__ void read(const SampleRows& rows, const Window& window, const Arrivals& arrivals) const {
        const std::uint32_t bytes = window.count * row_bytes;
        const std::uint32_t all_bytes = __reduce_add_sync(~0U, bytes);
        if (lane == 0) arrivals.expect(all_bytes);
        __syncwarp();
        if (bytes > 0) {
            char* to = shared + lane * window_bytes + window.head * row_bytes;
            arrivals.ask(to, rows.values + window.first_inside(rows.num_rows) * row_bytes, bytes);
        }
        arrivals.wait();
        for (std::uint32_t left = edges; left != 0; left &= left - 1) {
            const int s = __ffs(static_cast<int>(left)) - 1;
            hold_ends(shared + static_cast<std::uint32_t>(s) * window_bytes, __shfl_sync(~0U, window.head, s),
                      __shfl_sync(~0U, window.count, s));
        }
        if (edges != 0) show_to_copies();
        __syncwarp();
    }

    /// Rows before the first and after the last are those themselves.
    __device__ void hold_ends(char* window, std::uint32_t head, std::uint32_t count) const {
        auto* items = reinterpret_cast<uint4*>(window);
        const std::uint32_t row = column.num_items;
        const std::uint32_t begin = head * row;
        const std::uint32_t end = begin + count * row;
        for (std::uint32_t i = lane; i < begin; i += window_threads) items[i] = items[begin + i % row];
        for (std::uint32_t i = end + lane; i < column.num_targets * row; i += window_threads) {
            items[i] = items[end - row + (i - end) % row];
        }
    }

    __device__ bool is_whole(const Task& task) const {
        return static_cast<std::uint32_t>(__popc(windows)) == task.num_samples;
    }

    __device__ void write(const Task& task) const {
        char* out = column.out + task.first_sample * window_bytes;
        if (is_whole(task)) {
            if (lane == 0) copy_out(out, shared, task.num_samples * window_bytes);
        } else if ((windows >> lane & 1) != 0) {
            copy_out(out + lane * window_bytes, shared + lane * window_bytes, window_bytes);
        }
    }

    __device__ void write_padding(const Task& task, const SampleRows& rows, const Window& window) const {
        bool* padding = column.padding + task.first_sample * column.num_targets;
        if (edges == 0 && is_whole(task)) {
            return clear_padding(padding, task.num_samples * column.num_targets, Team{lane, window_threads});
        }
        for (std::uint32_t left = windows; left != 0; left &= left - 1) {
            const int s = __ffs(static_cast<int>(left)) - 1;
            const std::int64_t first = __shfl_sync(~0U, window.first, s);
            const std::int64_t last = __shfl_sync(~0U, rows.num_rows, s) - 1;
            const std::int64_t max_gap = __shfl_sync(~0U, rows.max_gap, s);
            for (std::uint32_t j = lane; j < column.num_targets; j += window_threads) {
                const std::int64_t row = first + j;
                const std::int64_t away = row < 0 ? -row : (row > last ? row - last : 0);
                padding[static_cast<std::uint32_t>(s) * column.num_targets + j] = is_padding(away, max_gap);
            }
        }
    }

    /// Whether a moment so many rows away from the episode is padding.
    __device__ bool is_padding(std::int64_t rows_away, std::int64_t max_gap) const {
        if (rows_away == 0) return false;
        align_detail::Rules rules = column.rules;
        rules.max_gap.ns = max_gap;
        const auto away = static_cast<std::uint64_t>(rows_away) * static_cast<std::uint64_t>(column.run_step);
        return !rules.allows_outside(away);
    }
};

#endif

template <class Mover>
__global__ __launch_bounds__(window_threads,
                             window_blocks) void robocache_copy_windows(const __grid_constant__ BatchTable table) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    __shared__ std::uint64_t barrier;
    allow_next_kernel();
    // Earlier work in the stream may write the step. Everything else read here existed before the reader was made.
    if (table.is_told_earlier) wait_for_earlier_work();
    if (write_index(table)) return;
    const std::uint32_t lane = threadIdx.x;
    const Arrivals arrivals(barrier);
    if (lane == 0) arrivals.begin();
    const DeviceColumn& column = column_of_block(table);
    const Task task = task_of(column, table.count, blockIdx.x - column.first_block);
    SampleRows rows{};
    Window window{};
    if (lane < task.num_samples) {
        rows = find_sample(table, column, task.first_sample + lane);
        window = find_window(column, rows);
    }
    Gate gate(!table.is_told_earlier);
    const Windows windows(column, shared, lane, window);
    if (windows.windows != 0) {
        windows.read(rows, window, arrivals);
        gate.pass();
        windows.write(task);
        if (column.padding != nullptr) windows.write_padding(task, rows, window);
        commit_copies();
        await_written();
    }
    const bool is_other = lane < task.num_samples && window.count == 0;
    const std::uint32_t others = __ballot_sync(~0U, is_other);
    if (others == 0) return;
    auto& moved = *reinterpret_cast<OtherSamples*>(shared);
    keep_others(task, rows, others, lane, moved.samples);
    __syncwarp();
    move_others<Mover>(column, moved.samples, moved.placed, Team{lane, window_threads}, gate);
#endif
}

}  // namespace robocache::loader_detail
