// The kernel of BatchReader. A block takes some samples of one column: a thread for each finds its anchor and episode.
// Then, some of the samples at a time, a thread for each target finds its rows, and all threads move them.
#pragma once

#include "core/cuda_overlap.cuh"
#include "loader/batch_move.cuh"

namespace robocache::loader_detail {

/// What a block works on.
struct BlockWork {
    std::int64_t first_sample;
    std::uint32_t num_samples;
    std::uint32_t first_target;
    std::uint32_t num_targets;  // of each sample; all of them where there are several samples
    std::uint32_t first_item;
    std::uint32_t num_items;  // of each row
};

__device__ inline BlockWork work_of(const DeviceColumn& column, std::int64_t count) {
    const std::uint32_t block = blockIdx.x - column.first_block;
    const std::uint32_t cut = column.by_chunks.divide(block);
    const std::uint32_t first_item = (block - cut * column.by_chunks.divisor) * column.chunk_items;
    const std::uint32_t samples = column.by_target_cuts.divide(cut);
    const std::uint32_t first_target = (cut - samples * column.by_target_cuts.divisor) * column.tile_targets;
    const std::int64_t first_sample = static_cast<std::int64_t>(samples) * column.samples;
    const std::int64_t samples_left = count - first_sample;
    const std::uint32_t targets_left = column.num_targets - first_target;
    const std::uint32_t items_left = column.num_items - first_item;
    return {first_sample, static_cast<std::uint32_t>(samples_left < column.samples ? samples_left : column.samples),
            first_target, targets_left < column.tile_targets ? targets_left : column.tile_targets,
            first_item,   items_left < column.chunk_items ? items_left : column.chunk_items};
}

template <class Mover>
__global__ __launch_bounds__(batch_threads, Mover::blocks_per_multiprocessor) void robocache_read_batch(
    const __grid_constant__ BatchTable table) {
    __shared__ SampleRows samples[max_block_samples];
    __shared__ PlacedTarget placed[max_tile_targets];
    __shared__ bool valid[max_tile_targets];
    allow_next_kernel();
    // A step is somebody's earlier work; everything else that is read here was there before the reader.
    if (table.steps.step != nullptr) wait_for_earlier_work();
    int c = 0;
    while (c + 1 < table.num_columns && blockIdx.x >= table.columns[c + 1].first_block) ++c;
    const DeviceColumn& column = table.columns[c];
    const BlockWork work = work_of(column, table.count);
    if (threadIdx.x < work.num_samples)
        samples[threadIdx.x] = find_sample(table, column, work.first_sample + threadIdx.x);
    __syncthreads();
    const bool fetches = column.fetched_rows > 0 && work.first_item == 0 && work.first_target == 0;
    if (fetches && !(samples[0].period > 0)) {  // with a period the rows themselves are asked for at once
        fetch_samples(column, samples, work.num_samples < column.tile_samples ? work.num_samples : column.tile_samples);
    }

    const std::uint32_t thread_target =
        work.num_items == column.chunk_items ? column.by_chunk_items.divide(threadIdx.x) : threadIdx.x / work.num_items;
    const std::uint32_t target_step = work.num_items == column.chunk_items ? column.by_chunk_items.divide(batch_threads)
                                                                           : batch_threads / work.num_items;
    for (std::uint32_t tile = 0; tile < work.num_samples; tile += column.tile_samples) {
        const std::uint32_t left = work.num_samples - tile;
        const std::uint32_t tile_samples = left < column.tile_samples ? left : column.tile_samples;
        if (fetches && left > tile_samples) {  // those of the next tile
            const std::uint32_t more = left - tile_samples;
            fetch_samples(column, samples + tile + tile_samples,
                          more < column.tile_samples ? more : column.tile_samples);
        }
        const std::uint32_t count = tile_samples * work.num_targets;
        bool all_rows = true;
        for (std::uint32_t k = threadIdx.x; k < count; k += batch_threads) {
            const std::uint32_t s = column.by_tile_targets.divide(k);
            const std::uint32_t j = work.first_target + k - s * column.tile_targets;
            const PlacedTarget p = place_target(column, samples[tile + s], j, valid[k]);
            all_rows = all_rows && p.a != nullptr && p.b == nullptr;
            placed[k] = p;
        }
        if (table.steps.step == nullptr && tile == 0) wait_for_earlier_work();
        const int rows_only = __syncthreads_and(all_rows);

        const std::int64_t first = (work.first_sample + tile) * column.num_targets + work.first_target;
        if (column.padding != nullptr && work.first_item == 0) {
            for (std::uint32_t k = threadIdx.x; k < count; k += batch_threads) column.padding[first + k] = !valid[k];
        }
        if (thread_target < target_step) {
            const std::uint32_t item = work.first_item + threadIdx.x - thread_target * work.num_items;
            Mover::make(
                column, placed,
                {rows_only != 0, item, thread_target, target_step, count, column.out + first * column.out_row_bytes});
        }
        if (left > tile_samples) __syncthreads();
    }
}

}  // namespace robocache::loader_detail
