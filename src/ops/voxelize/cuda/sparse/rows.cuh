// The row of each point in the list of occupied cells, and the coordinates of rows: by bits, or by sorted keys.
#pragma once

#include "ops/voxelize/cuda/bits.cuh"

namespace robocache::voxelize_detail {

constexpr int sparse_threads = 256;
constexpr std::uint32_t no_row = 0xffffffffU;

struct CoordinateArguments {
    const std::uint32_t* bits;
    const std::uint32_t* before;
    std::int64_t num_words;
    std::int64_t shape[3];
    std::int64_t num_cells;
    const std::uint64_t* keys;
    const std::uint32_t* ranks;
    const std::uint32_t* points;
    std::uint32_t* rows;
    std::int64_t num_points;
    KeyBits key_bits;
    bool bounded;
    bool is_small;  // 32 bits number the cells of all clouds
    std::uint64_t no_key;
    std::int64_t capacity;
    std::int32_t* coordinates;
    std::int64_t* found;
};

__device__ __forceinline__ void write_coordinates(const CoordinateArguments& args, std::uint32_t row,
                                                  std::uint64_t key) {
    if (row >= args.capacity) return;
    Cell cell{};
    std::int64_t cloud = 0;
    if (args.bounded && args.is_small) {
        const auto index = static_cast<std::uint32_t>(key);
        const auto num_cells = static_cast<std::uint32_t>(args.num_cells);
        const auto plane = static_cast<std::uint32_t>(args.shape[1] * args.shape[2]);
        const auto line = static_cast<std::uint32_t>(args.shape[2]);
        const std::uint32_t of_cloud = index / num_cells;
        const std::uint32_t in_cloud = index - of_cloud * num_cells;
        const std::uint32_t x = in_cloud / plane;
        const std::uint32_t y = (in_cloud - x * plane) / line;
        cloud = of_cloud;
        cell = {x, y, in_cloud - x * plane - y * line};
    } else if (args.bounded) {
        auto rest = static_cast<std::int64_t>(key);
        cloud = rest / args.num_cells;
        rest -= cloud * args.num_cells;
        cell.x = rest / (args.shape[1] * args.shape[2]);
        rest -= cell.x * args.shape[1] * args.shape[2];
        cell.y = rest / args.shape[2];
        cell.z = rest - cell.y * args.shape[2];
    } else {
        cloud = unpack_key(args.key_bits, key, cell);
    }
    const int4 all = make_int4(static_cast<int>(cloud), static_cast<int>(cell.x), static_cast<int>(cell.y),
                               static_cast<int>(cell.z));
    std::int32_t* to = args.coordinates + 4 * static_cast<std::int64_t>(row);
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        *reinterpret_cast<int4*>(to) = all;
    } else {
        to[0] = all.x;
        to[1] = all.y;
        to[2] = all.z;
        to[3] = all.w;
    }
}

// ---- rows by bits ---------------------------------------------------------------------------------------------------

template <class Source>
struct FindArguments {
    Places<Source> places;
    std::int64_t num_points;
    KeyBits key_bits;
    bool bounded;
    std::uint64_t no_key;
    std::uint32_t* bits;
    const std::uint32_t* before;
    std::uint64_t* keys;
    std::uint32_t* points;
    std::uint32_t* rows;
    std::int64_t* found;
    CoordinateArguments list;
};

__device__ __forceinline__ void count_dropped(bool dropped, std::int64_t* found) {
    const unsigned lanes = __ballot_sync(0xffffffffU, dropped);
    if (threadIdx.x % 32 == 0 && lanes != 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(found) + 1, static_cast<unsigned long long>(__popc(lanes)));
    }
}

__device__ __forceinline__ std::int64_t this_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * sparse_threads + threadIdx.x;
}

/// Leaves in rows[i] whether point i was the first to mark its cell.
template <class Source>
__global__ __launch_bounds__(sparse_threads) void mark_cells(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    std::int64_t cell = no_point;
    if (i < args.num_points) cell = args.places.key(i);
    bool first = false;
    if (cell >= 0) {
        const std::uint32_t bit = 1U << (cell & 31);
        first = (atomicOr(args.bits + (cell >> 5), bit) & bit) == 0;
    }
    if (i < args.num_points) args.rows[i] = first ? 1 : 0;
    count_dropped(cell == dropped_point, args.found);
}

/// The first point of a cell writes its coordinates.
template <class Source>
__global__ __launch_bounds__(sparse_threads) void find_rows(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const CoordinateArguments& list = args.list;
    if (i == 0) {
        const std::int64_t last = list.num_words - 1;
        args.found[0] = args.before[last] + static_cast<std::uint32_t>(__popc(args.bits[last]));
    }
    const std::int64_t cell = args.places.key(i);
    const bool first = args.rows[i] != 0;
    std::uint32_t row = no_row;
    if (cell >= 0) {
        const std::uint32_t below = (1U << (cell & 31)) - 1;
        row = args.before[cell >> 5] + static_cast<std::uint32_t>(__popc(args.bits[cell >> 5] & below));
        if (first) write_coordinates(list, row, static_cast<std::uint64_t>(cell));
    }
    args.rows[i] = row;
}

// ---- rows by sorting ------------------------------------------------------------------------------------------------

template <class Source>
__global__ __launch_bounds__(sparse_threads) void make_keys(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    const Places<Source>& places = args.places;
    bool dropped = false;
    if (i < args.num_points) {
        typename Places<Source>::Scalar p[3];
        (void)OnDevice<Source>::read(places.source, i, p);
        Cell cell{};
        dropped = !places.grid.find(p, cell);
        const std::int64_t cloud = OnDevice<Source>::cloud_of(places.source, i);
        const std::uint64_t key = args.bounded
                                      ? static_cast<std::uint64_t>(linear_index(places.grid.shape, cloud, cell))
                                      : pack_key(args.key_bits, cloud, cell);
        args.keys[i] = dropped ? args.no_key : key;
        args.points[i] = static_cast<std::uint32_t>(i);
    }
    count_dropped(dropped, args.found);
}

static __global__ __launch_bounds__(sparse_threads) void list_keys(const __grid_constant__ CoordinateArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    if (at >= args.num_points) return;
    const std::uint32_t rank = args.ranks[at];  // of the cell, from 1 on
    const std::uint64_t key = args.keys[at];
    if (at == args.num_points - 1) args.found[0] = rank;
    args.rows[args.points[at]] = key == args.no_key ? no_row : rank - 1;
    const bool first = at == 0 || args.keys[at - 1] != key;
    if (first && key != args.no_key) write_coordinates(args, rank - 1, key);
}

}  // namespace robocache::voxelize_detail
