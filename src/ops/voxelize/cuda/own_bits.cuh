// Occupancy of many small clouds: a few blocks for each cloud, with a bit per cell in shared memory.
#pragma once

#include "ops/voxelize/cuda/write_cells.cuh"

namespace robocache::voxelize_detail {

struct OwnJob {
    Places places;
    std::int32_t parts;  // blocks of a cloud
    std::int32_t words;  // of each
    void* out;
    DType out_dtype;
    std::int64_t* dropped;
};

/// Every block of a cloud reads all its points, and marks and writes its own part of the cells.
template <bool is_f32>
__global__ __launch_bounds__(own_threads) void mark_own_cells(const __grid_constant__ OwnJob job) {
    extern __shared__ __align__(16) std::uint32_t own_bits[];
    __shared__ unsigned long long num_dropped;
    const Places& places = job.places;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    for (std::int32_t w = thread; w < job.words; w += own_threads) own_bits[w] = 0;
    if (thread == 0) num_dropped = 0;
    __syncthreads();
    wait_for_earlier_work();
    const std::int64_t cloud = blockIdx.x / job.parts;
    const std::int64_t part = blockIdx.x - cloud * job.parts;
    const std::int64_t cloud_cell = cloud * places.grid.num_cells;
    const std::int64_t first = part * job.words * 32;  // cell
    const std::int64_t left = places.grid.num_cells - first;
    const std::int64_t num = left < job.words * 32 ? left : job.words * 32;
    const std::int64_t begin = places.clouds().begin(cloud);
    const std::int64_t end = places.clouds().begin(cloud + 1);
    std::uint32_t dropped = 0;
    const auto mark = [&](std::int64_t cell) {
        if (cell < 0) ++dropped;
        const auto mine = static_cast<std::uint64_t>(cell - first);
        if (mine < static_cast<std::uint64_t>(num)) atomicOr(&own_bits[mine >> 5], 1U << (mine & 31));
    };
    constexpr int batch = is_f32 ? 8 : 1;  // points in flight
    for (std::int64_t i = begin + thread; i < end; i += batch * own_threads) {
        if constexpr (is_f32) {
            float p[batch][3] = {};
#pragma unroll
            for (int k = 0; k < batch; ++k) {
                if (i + k * own_threads < end) places.read<float>(i + k * own_threads, p[k]);
            }
            const auto is_there = [&](int k) { return i + k * own_threads < end; };
            if (places.grid.is_quick) {
                std::int32_t cell[batch];
                places.grid.quick_indices(p, cell);
#pragma unroll
                for (int k = 0; k < batch; ++k) {
                    if (is_there(k)) mark(cell[k]);
                }
                continue;
            }
#pragma unroll
            for (int k = 0; k < batch; ++k) {
                if (is_there(k)) mark(places.grid.index(p[k]));
            }
        } else {
            mark(places.cell_of<false>(i));
        }
    }
    if (job.dropped != nullptr && dropped != 0) atomicAdd(&num_dropped, static_cast<unsigned long long>(dropped));
    __syncthreads();
    write_cells(BitCells{own_bits}, num, job.out, job.out_dtype, cloud_cell + first, std::int64_t{thread},
                std::int64_t{own_threads});
    if (job.dropped != nullptr && thread == 0 && part == 0) {
        job.dropped[cloud] = static_cast<std::int64_t>(num_dropped);
    }
}

}  // namespace robocache::voxelize_detail
