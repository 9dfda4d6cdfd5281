// The row of each point in the list of occupied cells, and the coordinates of rows: by bits, or by sorted keys.
#pragma once

#include <cooperative_groups.h>

#include "ops/voxelize/cuda/sparse/job.cuh"

namespace robocache::voxelize_detail {

/// The cloud and the cell of an index into the grids of all clouds.
template <class Index>
__device__ __forceinline__ std::int64_t split_index(const GridPlan& grid, Index index, Cell& cell) {
    const auto num_cells = static_cast<Index>(grid.num_cells);
    const auto plane = static_cast<Index>(grid.shape[1] * grid.shape[2]);
    const auto line = static_cast<Index>(grid.shape[2]);
    const Index cloud = index / num_cells;
    const Index in_cloud = index - cloud * num_cells;
    const Index x = in_cloud / plane;
    const Index y = (in_cloud - x * plane) / line;
    cell = {static_cast<std::int64_t>(x), static_cast<std::int64_t>(y),
            static_cast<std::int64_t>(in_cloud - x * plane - y * line)};
    return static_cast<std::int64_t>(cloud);
}

__device__ __forceinline__ void write_coordinates(const SparseJob& job, std::uint32_t row, std::uint64_t key) {
    const GridPlan& grid = job.plan.grid;
    if (row >= job.plan.capacity) return;
    Cell cell{};
    std::int64_t cloud = 0;
    if (job.is_small) {
        cloud = split_index(grid, static_cast<std::uint32_t>(key), cell);
    } else if (grid.num_cells > 0) {
        cloud = split_index(grid, key, cell);
    } else {
        cloud = unpack_key(grid.key_bits, key, cell);
    }
    const int4 all = make_int4(static_cast<int>(cloud), static_cast<int>(cell.x), static_cast<int>(cell.y),
                               static_cast<int>(cell.z));
    std::int32_t* to = job.plan.coordinates + 4 * static_cast<std::int64_t>(row);
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        *reinterpret_cast<int4*>(to) = all;
    } else {
        to[0] = all.x;
        to[1] = all.y;
        to[2] = all.z;
        to[3] = all.w;
    }
}

/// One atomic for all threads of a warp that are here.
__device__ __forceinline__ void count_dropped(std::int64_t* found) {
    const auto lanes = cooperative_groups::coalesced_threads();
    if (lanes.thread_rank() == 0) atomicAdd(reinterpret_cast<unsigned long long*>(found) + 1, lanes.size());
}

// ---- rows by bits ---------------------------------------------------------------------------------------------------

/// Sets rows[i] to whether point i was the first to mark its cell.
template <bool is_f32>
struct MarkCells : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        const std::int64_t cell = places.key<is_f32>(i);
        bool first = false;
        if (cell >= 0) {
            const std::uint32_t bit = 1U << (cell & 31);
            first = (atomicOr(space.bits + (cell >> 5), bit) & bit) == 0;
        }
        space.rows[i] = first ? 1 : 0;
        if (cell == dropped_point) count_dropped(plan.found);
    }
};

/// The row of each point. The first point of a cell writes its coordinates.
template <bool is_f32>
struct FindRows : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        if (i == 0) {
            const std::int64_t last = num_words - 1;
            plan.found[0] = space.before[last] + static_cast<std::uint32_t>(__popc(space.bits[last]));
        }
        const std::int64_t cell = places.key<is_f32>(i);
        const bool first = space.rows[i] != 0;
        std::uint32_t row = no_row;
        if (cell >= 0) {
            const std::uint32_t below = (1U << (cell & 31)) - 1;
            row = space.before[cell >> 5] + static_cast<std::uint32_t>(__popc(space.bits[cell >> 5] & below));
            if (first) write_coordinates(*this, row, static_cast<std::uint64_t>(cell));
        }
        space.rows[i] = row;
    }
};

// ---- rows by sorting ------------------------------------------------------------------------------------------------

struct MakeKeys : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        Cell cell{};
        const bool inside = places.find(i, cell);
        const std::int64_t cloud = places.cloud_of<false>(i);
        const std::uint64_t key = plan.grid.num_cells > 0
                                      ? static_cast<std::uint64_t>(linear_index(plan.grid.shape, cloud, cell))
                                      : pack_key(plan.grid.key_bits, cloud, cell);
        space.keys[i] = inside ? key : no_key;
        space.points[i] = static_cast<std::uint32_t>(i);
        if (!inside) count_dropped(plan.found);
    }
};

/// The row of each point from the ranks of sorted keys.
struct ListKeys : SparseJob {
    __device__ void operator()(std::int64_t at) const {
        const std::uint32_t rank = space.ranks[at];  // of the cell, from 1 on
        const std::uint64_t key = space.sorted_keys[at];
        if (at == plan.num_points - 1) plan.found[0] = rank;
        space.rows[space.sorted_points[at]] = key == no_key ? no_row : rank - 1;
        const bool first = at == 0 || space.sorted_keys[at - 1] != key;
        if (first && key != no_key) write_coordinates(*this, rank - 1, key);
    }
};

// ---- the first points of each row -----------------------------------------------------------------------------------

/// Keys that sort points by row; those without a row come last.
struct KeyRows : SparseJob {
    __device__ void operator()(std::int64_t i) const {
        const auto row = static_cast<std::int64_t>(space.rows[i]);
        space.keys[i] = static_cast<std::uint64_t>(row < num_rows ? row : num_rows);
        space.points[i] = static_cast<std::uint32_t>(i);
    }
};

struct ClearFirstPoints : SparseJob {
    __device__ void operator()(std::int64_t at) const {
        if (at / plan.max_points < plan.found[0]) plan.first_points[at] = -1;
    }
};

struct TakeFirstPoints : SparseJob {
    __device__ void operator()(std::int64_t at) const {
        const auto row = static_cast<std::int64_t>(space.sorted_keys[at]);
        if (row >= num_rows) return;
        const std::int64_t k = at - space.starts[row];
        if (k < plan.max_points) plan.first_points[row * plan.max_points + k] = space.sorted_points[at];
    }
};

}  // namespace robocache::voxelize_detail
