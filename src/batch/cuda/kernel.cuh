// The kernel of BatchReader. A team of threads, a warp or a block, takes some samples of one column: a lane for each
// finds its anchor, its episode and whether its rows are one piece of memory. Such samples are copied. For the others,
// some targets at a time, a thread for each finds its rows, and all threads move them.
#pragma once

#include "batch/cuda/move.cuh"
#include "batch/cuda/sample_index.cuh"

namespace robocache::loader_detail {

/// What a team works on.
struct Task {
    std::int64_t first_sample;
    std::uint32_t num_samples;
    std::uint32_t first_target;
    std::uint32_t num_targets;  // of each sample; all of them where there are several samples
    std::uint32_t first_item;
    std::uint32_t num_items;  // of each row
};

__device__ inline const DeviceColumn& column_of_block(const BatchTable& table) {
    int c = 0;
    while (c + 1 < table.num_columns && blockIdx.x >= table.columns[c + 1].first_block) ++c;
    return table.columns[c];
}

__device__ inline Task task_of(const DeviceColumn& column, std::int64_t count, std::uint32_t number) {
    const std::uint32_t cut = column.by_chunks.divide(number);
    const std::uint32_t first_item = (number - cut * column.by_chunks.divisor) * column.chunk_items;
    const std::uint32_t samples = column.by_cuts.divide(cut);
    const std::uint32_t first_target = (cut - samples * column.by_cuts.divisor) * column.cut_targets;
    const std::int64_t first_sample = static_cast<std::int64_t>(samples) * column.samples;
    const std::int64_t samples_left = count - first_sample;
    const std::uint32_t targets_left = column.num_targets - first_target;
    const std::uint32_t items_left = column.num_items - first_item;
    return {first_sample, static_cast<std::uint32_t>(samples_left < column.samples ? samples_left : column.samples),
            first_target, targets_left < column.cut_targets ? targets_left : column.cut_targets,
            first_item,   items_left < column.chunk_items ? items_left : column.chunk_items};
}

/// The samples of a team.
struct TeamSamples {
    Task task;  // here too: registers are short where it is needed last
    SampleRows rows[max_task_samples];
    const char* runs[max_task_samples];
    std::uint32_t others[max_task_samples];  // samples that are no run
    std::uint32_t num_others;
};

/// Stores the samples of the lanes in `others` for move_others; by a whole warp.
__device__ inline void keep_others(const Task& task, const SampleRows& rows, std::uint32_t others, std::uint32_t lane,
                                   TeamSamples& samples) {
    if ((others >> lane & 1) != 0) {
        samples.rows[lane] = rows;
        samples.others[__popc(others & ((1U << lane) - 1))] = lane;
    }
    if (lane == 0) {
        samples.num_others = static_cast<std::uint32_t>(__popc(others));
        samples.task = task;
    }
}

/// By the first warp of a team.
__device__ inline void find_samples(const BatchTable& table, const DeviceColumn& column, const Task& task,
                                    std::uint32_t lane, TeamSamples& samples) {
    SampleRows rows{};
    bool is_other = false;
    if (lane < task.num_samples) {
        rows = find_sample(table, column, task.first_sample + lane);
        samples.runs[lane] = find_run(column, rows);
        is_other = samples.runs[lane] == nullptr;
    }
    keep_others(task, rows, __ballot_sync(0xffffffffU, is_other), lane, samples);
}

/// Says that nothing of it is padding.
__device__ inline void clear_padding(bool* begin, std::uint32_t count, const Team& team) {
    const auto odd = static_cast<std::uint32_t>(-reinterpret_cast<std::uintptr_t>(begin) % sizeof(uint4));
    const std::uint32_t head = odd < count ? odd : count;
    const std::uint32_t words = (count - head) / sizeof(uint4);
    const std::uint32_t tail = head + words * sizeof(uint4);
    if (team.rank < head) begin[team.rank] = false;
    for (std::uint32_t i = team.rank; i < words; i += team.size) reinterpret_cast<uint4*>(begin + head)[i] = uint4{};
    if (tail + team.rank < count) begin[tail + team.rank] = false;
}

__device__ inline void copy_runs(const DeviceColumn& column, const Task& task, const TeamSamples& samples,
                                 const Team& team, Gate& gate) {
    const std::int64_t first = task.first_sample * column.num_targets;
    char* out = column.out + first * column.out_row_bytes;
    const auto copy = [&]<int bytes>() {
        copy_runs<bytes>(samples.runs, task.num_samples, column.by_run_items, out, team, gate);
    };
    with_bytes(column.format.in_bytes, copy);
    if (column.padding == nullptr) return;
    gate.pass();
    if (samples.num_others == 0)
        return clear_padding(column.padding + first, task.num_samples * column.num_targets, team);
    for (std::uint32_t k = team.rank; k < task.num_samples * column.num_targets; k += team.size) {
        if (samples.runs[column.by_targets.divide(k)] != nullptr) column.padding[first + k] = false;
    }
}

/// The samples that are no run.
template <class Mover>
__device__ __forceinline__ void move_others(const DeviceColumn& column, const TeamSamples& samples,
                                            PlacedTarget* placed, const Team& team, Gate& gate) {
    const Task& task = samples.task;
    const std::uint32_t count = samples.num_others * task.num_targets;
    const std::uint32_t most = team.size * thread_targets;
    const std::int64_t first_row = task.first_sample * column.num_targets;
    const bool pads = column.padding != nullptr && task.first_item == 0;
    const auto write_padding = [&](const PlacedTarget& p) { column.padding[first_row + p.row] = !p.valid(); };
    const Walk walk(column, task.first_item, task.num_items, team);
    // Next target of this thread: index into `others`, and target within that sample.
    std::uint32_t s = 0;
    std::uint32_t j = team.rank;
    std::uint32_t step_s = 0;
    if (task.num_samples > 1) {
        s = column.by_targets.divide(team.rank);
        j -= s * task.num_targets;
        step_s = column.by_targets.divide(team.size);
    }
    const std::uint32_t step_j = team.size - step_s * task.num_targets;
    for (std::uint32_t begin = 0; begin < count; begin += most) {
        Tile tile{placed,
                  count - begin < most ? count - begin : most,
                  Placed::mixed,
                  column.out + first_row * column.out_row_bytes,
                  static_cast<std::uint32_t>(column.out_row_bytes),
                  walk};
        bool rows = true;
        bool blends = true;
        for (std::uint32_t k = team.rank; k < tile.count; k += team.size) {
            const std::uint32_t sample = samples.others[s];
            const std::uint32_t target = task.first_target + j;
            const PlacedTarget p =
                place_target(column, samples.rows[sample], target, sample * column.num_targets + target);
            s += step_s;
            j += step_j;
            if (j >= task.num_targets) {
                j -= task.num_targets;
                ++s;
            }
            rows = rows && p.a != nullptr && p.b == nullptr;
            blends = blends && p.b != nullptr;
            placed[k] = p;
            if (pads && begin > 0) write_padding(p);
        }
        if (team.all(rows)) {
            tile.kind = Placed::rows;
        } else if (team.all(blends)) {
            tile.kind = Placed::blends;
        }
        team.sync();
        Mover::make(column, tile, gate);
        if (pads && begin == 0) {  // not before the gate
            gate.pass();
            for (std::uint32_t k = team.rank; k < tile.count; k += team.size) write_padding(placed[k]);
        }
        team.sync();
    }
}

template <class Mover>
__global__ __launch_bounds__(batch_threads,
                             Mover::blocks_per_sm) void robocache_read_batch(const __grid_constant__ BatchTable table) {
    __shared__ TeamSamples all_samples[team_warps];
    __shared__ PlacedTarget all_placed[batch_threads * thread_targets];
    allow_next_kernel();
    // Earlier work in the stream may write the step. Everything else read here existed before the reader was made.
    if (table.is_told_earlier) wait_for_earlier_work();
    if (write_index(table)) return;
    const DeviceColumn& column = column_of_block(table);
    const std::uint32_t lane = threadIdx.x % align_detail::warp_size;
    const std::uint32_t warp = column.by_warps ? threadIdx.x / align_detail::warp_size : 0;
    const Team team = column.by_warps ? Team{lane, align_detail::warp_size} : Team{threadIdx.x, batch_threads};
    const std::uint32_t block = blockIdx.x - column.first_block;
    const std::uint32_t number = column.by_warps ? block * team_warps + warp : block;
    if (number >= column.num_tasks) return;
    const Task task = task_of(column, table.count, number);
    TeamSamples& samples = all_samples[warp];
    if (team.rank < align_detail::warp_size) find_samples(table, column, task, lane, samples);
    team.sync();
    Gate gate(!table.is_told_earlier);
    if (samples.num_others < task.num_samples) copy_runs(column, task, samples, team, gate);
    PlacedTarget* placed = all_placed + warp * align_detail::warp_size * thread_targets;
    move_others<Mover>(column, samples, placed, team, gate);
}

}  // namespace robocache::loader_detail
