// Dense grids by bins. A bin is a stretch of cells whose counters fit the shared memory of a block. One kernel reads
// tiles of points and sorts each by bin, in shared memory; a second one has a block per bin, which collects its points
// from all tiles, counts or reduces them in shared memory, and writes its cells once. No global atomics on cells, no
// clearing, and the result does not depend on the order in which anything happens (but for sums of floats).
#pragma once

#include "ops/voxelize/cuda_bits.cuh"

namespace robocache::voxelize_detail {

constexpr int max_bins = 8192;      // of one pass; larger grids take several
constexpr int least_bin_bits = 12;  // a bin has 2^bin_bits cells
constexpr int most_bin_bits = 15;   // of counters; their keys have 16 bits
constexpr int sort_threads = 512;
constexpr int bin_threads = 256;  // of a block that makes a small bin
constexpr int large_bin_threads = 1024;
constexpr int warp_threads = 32;
constexpr std::uint32_t no_key = 0xffffffffU;
constexpr unsigned all_lanes = 0xffffffffU;

/// The tiles of points after sorting: in tile t, what belongs to bin b is [starts[t][b], starts[t][b + 1]).
struct SortedTiles {
    std::int64_t num_tiles;
    std::int32_t tile;  // points, at most 8192
    std::int32_t num_bins;
    std::int32_t bin_bits;
    std::int32_t bin_keys;  // of a bin in a tile, if points are spread evenly
    std::uint16_t* starts;  // [num_tiles][num_bins + 1]
    void* keys;             // [num_tiles][tile]: u16 cell in the bin, or u32 with the point in the tile above it
};

template <class Source>
struct SortArguments {
    Places<Source> places;
    SortedTiles tiles;
    std::int64_t num_points;
    std::int64_t first_cell;  // of this pass
    std::int64_t* dropped;    // null: not asked for, or counted by an earlier pass
};

/// The sum over all threads of a block before this one; `total` is that over all. `sums`: one for each warp.
__device__ __forceinline__ std::uint32_t block_scan(std::uint32_t mine, std::uint32_t* sums, std::uint32_t& total) {
    const unsigned lane = threadIdx.x % warp_threads;
    const unsigned warp = threadIdx.x / warp_threads;
    __syncthreads();  // whoever still reads the sums of the scan before this one
    std::uint32_t upto = mine;
#pragma unroll
    for (int step = 1; step < warp_threads; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(all_lanes, upto, step);
        if (lane >= static_cast<unsigned>(step)) upto += other;
    }
    if (lane == warp_threads - 1) sums[warp] = upto;
    __syncthreads();
    if (warp == 0) {
        const unsigned warps = blockDim.x / warp_threads;
        std::uint32_t sum = lane < warps ? sums[lane] : 0;
#pragma unroll
        for (int step = 1; step < warp_threads; step *= 2) {
            const std::uint32_t other = __shfl_up_sync(all_lanes, sum, step);
            if (lane >= static_cast<unsigned>(step)) sum += other;
        }
        if (lane < warps) sums[lane] = sum;
    }
    __syncthreads();
    total = sums[blockDim.x / warp_threads - 1];
    return upto - mine + (warp == 0 ? 0 : sums[warp - 1]);
}

/// Four points of 12 bytes, side by side and aligned to 16.
__device__ __forceinline__ void read_four(const char* from, float (*p)[3]) {
    float all[12];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float4 part = __ldg(reinterpret_cast<const float4*>(from) + i);
        all[4 * i] = part.x;
        all[4 * i + 1] = part.y;
        all[4 * i + 2] = part.z;
        all[4 * i + 3] = part.w;
    }
#pragma unroll
    for (int i = 0; i < 12; ++i) p[i / 3][i % 3] = all[i];
}

/// One block sorts one tile. Thread t has points 4t ... 4t + 3 of every 2048.
template <class Source, int per_thread, class Stored>
__global__ __launch_bounds__(sort_threads, 2) void sort_tiles(const __grid_constant__ SortArguments<Source> args) {
    extern __shared__ __align__(16) char shared_memory[];
    __shared__ std::uint32_t warp_sums[sort_threads / warp_threads];
    constexpr int tile = per_thread * sort_threads;
    const std::int32_t num_bins = args.tiles.num_bins;
    auto* sorted = reinterpret_cast<Stored*>(shared_memory);
    auto* sizes = reinterpret_cast<std::uint32_t*>(shared_memory + tile * sizeof(Stored));
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    for (std::int32_t b = thread; b < num_bins; b += sort_threads) sizes[b] = 0;
    __syncthreads();
    wait_for_earlier_work();

    const Places<Source>& places = args.places;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tile;
    const std::int32_t bin_bits = args.tiles.bin_bits;
    const std::uint32_t cells = static_cast<std::uint32_t>(num_bins) << bin_bits;
    std::uint32_t key[per_thread];
    std::uint32_t ranks[per_thread / 2];  // in its bin, two of 16 bits
    std::uint32_t dropped = 0;
    const auto take = [&](int p, bool inside, std::uint32_t at) {
        key[p] = no_key;
        if (p % 2 == 0) ranks[p / 2] = 0;
        if (inside) {
            key[p] = at;
            ranks[p / 2] |= atomicAdd(&sizes[at >> bin_bits], 1U) << (16 * (p % 2));
        }
    };
    bool in_fours = false;
    if constexpr (__is_same(Source, PointReader<float>)) {
        const PointsPlan& points = places.source.points;
        in_fours = points.row_stride == 12 && points.axis_stride == 4 && places.source.num_clouds == 1 &&
                   places.grid.is_quick && reinterpret_cast<std::uintptr_t>(points.data) % 16 == 0 &&
                   first + tile <= args.num_points;
        if (in_fours) {
            const char* from = points.data + (first + 4 * thread) * 12;
            const auto first_cell = static_cast<std::uint32_t>(args.first_cell);
            constexpr int some = 8;  // points on their way at once
#pragma unroll
            for (int g = 0; g < per_thread; g += some) {
                float p[some][3];
                std::int32_t cell[some];
#pragma unroll
                for (int f = 0; f < some; f += 4) read_four(from + (g + f) * sort_threads * 12, p + f);
                places.grid.quick_indices(p, cell);
#pragma unroll
                for (int u = 0; u < some; ++u) {
                    const std::uint32_t at = static_cast<std::uint32_t>(cell[u]) - first_cell;
                    dropped += cell[u] < 0 ? 1 : 0;
                    take(g + u, at < cells, at);  // a dropped point's number is larger than any cell's
                }
            }
        }
    }
    if (!in_fours) {
#pragma unroll
        for (int p = 0; p < per_thread; ++p) {
            const std::int64_t i = first + p / 4 * 4 * sort_threads + 4 * thread + p % 4;
            const std::int64_t cell = i < args.num_points ? places.key(i) : no_point;
            if (cell == dropped_point) {
                ++dropped;
                if (args.dropped != nullptr && places.source.num_clouds > 1) {
                    const std::int64_t cloud = OnDevice<Source>::cloud_of(places.source, i);
                    atomicAdd(reinterpret_cast<unsigned long long*>(args.dropped) + cloud, 1ULL);
                }
            }
            const auto at = static_cast<std::uint64_t>(cell - args.first_cell);
            take(p, cell >= 0 && at < cells, static_cast<std::uint32_t>(at));
        }
    }
    if (args.dropped != nullptr && places.source.num_clouds == 1) {
        dropped = __reduce_add_sync(all_lanes, dropped);
        if (thread % warp_threads == 0 && dropped != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(args.dropped), static_cast<unsigned long long>(dropped));
        }
    }
    __syncthreads();

    // Sizes become starts.
    constexpr int most = max_bins / sort_threads;
    const std::int32_t share = (num_bins + sort_threads - 1) / sort_threads;
    std::uint32_t size[most];
    std::uint32_t mine = 0;
#pragma unroll
    for (int k = 0; k < most; ++k) {
        const std::int32_t b = thread * share + k;
        size[k] = k < share && b < num_bins ? sizes[b] : 0;
        mine += size[k];
    }
    std::uint32_t total = 0;
    std::uint32_t start = block_scan(mine, warp_sums, total);
    std::uint16_t* starts = args.tiles.starts + static_cast<std::int64_t>(blockIdx.x) * (num_bins + 1);
#pragma unroll
    for (int k = 0; k < most; ++k) {
        const std::int32_t b = thread * share + k;
        if (k >= share || b >= num_bins) break;
        sizes[b] = start;
        starts[b] = static_cast<std::uint16_t>(start);
        start += size[k];
    }
    if (thread == 0) starts[num_bins] = static_cast<std::uint16_t>(total);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < per_thread; ++p) {
        if (key[p] == no_key) continue;
        const std::uint32_t at = sizes[key[p] >> bin_bits] + (ranks[p / 2] >> (16 * (p % 2)) & 0xffffU);
        const std::uint32_t cell = key[p] & ((1U << bin_bits) - 1);
        if constexpr (sizeof(Stored) == 2) {
            sorted[at] = static_cast<std::uint16_t>(cell);
        } else {
            const auto local = static_cast<std::uint32_t>(p / 4 * 4 * sort_threads + 4 * thread + p % 4);
            sorted[at] = cell | local << 16;
        }
    }
    __syncthreads();
    char* keys = static_cast<char*>(args.tiles.keys) + static_cast<std::int64_t>(blockIdx.x) * tile * sizeof(Stored);
    const auto bytes = static_cast<std::int32_t>(total * sizeof(Stored));
    for (std::int32_t at = 16 * thread; at < bytes; at += 16 * sort_threads) {
        *reinterpret_cast<uint4*>(keys + at) = *reinterpret_cast<const uint4*>(shared_memory + at);
    }
}

/// Calls body(key, tile) for every key of a bin, by all threads of the block. So many lanes take the first keys of a
/// tile, of several tiles at once; whole warps take what a tile has beyond those.
template <class Stored, int lanes, class Body>
__device__ __forceinline__ void for_keys_by(const SortedTiles& tiles, std::int32_t bin, Body&& body) {
    constexpr int rounds = 2;  // of so many keys
    constexpr int batch = 4;   // tiles
    constexpr int unroll = 4;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % lanes);
    const auto groups = static_cast<std::int64_t>(blockDim.x / lanes);
    const auto* keys = static_cast<const Stored*>(tiles.keys);
    const std::int64_t pitch = tiles.num_bins + 1;
    for (std::int64_t first = 0; first < tiles.num_tiles; first += batch * groups) {
        const std::int64_t tile = first + threadIdx.x / lanes;
        std::int32_t size[batch];
        const Stored* from[batch];
        Stored key[batch][rounds];
#pragma unroll
        for (int u = 0; u < batch; ++u) {  // all on their way before the first is used
            size[u] = 0;
            from[u] = keys + (tile + u * groups) * tiles.tile;
            if (tile + u * groups < tiles.num_tiles) {
                const std::uint16_t* at = tiles.starts + (tile + u * groups) * pitch + bin;
                size[u] = at[1];
                size[u] -= at[0];
                from[u] += at[0];
            }
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
#pragma unroll
            for (int r = 0; r < rounds; ++r) {
                if (lane + r * lanes < size[u]) key[u][r] = from[u][lane + r * lanes];
            }
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
#pragma unroll
            for (int r = 0; r < rounds; ++r) {
                if (lane + r * lanes < size[u]) body(key[u][r], tile + u * groups);
            }
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            for (unsigned longer = __ballot_sync(all_lanes, lane == 0 && size[u] > rounds * lanes); longer != 0;
                 longer &= longer - 1) {
                const int which = __ffs(static_cast<int>(longer)) - 1;
                const std::int32_t num = __shfl_sync(all_lanes, size[u], which);
                const auto* of = reinterpret_cast<const Stored*>(
                    __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(from[u]), which));
                const std::int64_t its_tile = __shfl_sync(all_lanes, static_cast<long long>(tile + u * groups), which);
                for (std::int32_t k = rounds * lanes + static_cast<std::int32_t>(threadIdx.x % warp_threads); k < num;
                     k += unroll * warp_threads) {
                    Stored more[unroll];
#pragma unroll
                    for (int v = 0; v < unroll; ++v) {
                        if (k + v * warp_threads < num) more[v] = of[k + v * warp_threads];
                    }
#pragma unroll
                    for (int v = 0; v < unroll; ++v) {
                        if (k + v * warp_threads < num) body(more[v], its_tile);
                    }
                }
            }
        }
    }
}

template <class Stored, class Body>
__device__ __forceinline__ void for_keys_of_bin(const SortedTiles& tiles, std::int32_t bin, Body&& body) {
    if (tiles.bin_keys > 24) return for_keys_by<Stored, 32>(tiles, bin, body);
    if (tiles.bin_keys > 10) return for_keys_by<Stored, 16>(tiles, bin, body);
    for_keys_by<Stored, 8>(tiles, bin, body);
}

// ---- occupancy and count --------------------------------------------------------------------------------------------

struct CountArguments {
    SortedTiles tiles;
    std::int64_t first_cell;
    std::int64_t num_cells;  // of all clouds
    void* out;
    DType out_dtype;
    bool occupancy;
    std::int32_t* counts;
};

template <class Out>
__device__ __forceinline__ Out cell_value(std::uint32_t count, bool occupancy) {
    if (occupancy) return static_cast<Out>(count != 0 ? 1 : 0);
    if constexpr (sizeof(Out) == 1) return static_cast<Out>(count < 255 ? count : 255);
    return static_cast<Out>(count);
}

/// Writes `num` counters as cells of type Out, four at a time where `out` is aligned.
template <class Out>
__device__ __forceinline__ void write_counts(const std::uint32_t* counters, std::int32_t num, bool occupancy,
                                             Out* out) {
    struct alignas(4 * sizeof(Out)) Four {
        Out cells[4];
    };
    std::int32_t done = 0;
    if (reinterpret_cast<std::uintptr_t>(out) % sizeof(Four) == 0) {
        done = num / 4 * 4;
        for (std::int32_t c = 4 * static_cast<std::int32_t>(threadIdx.x); c < done;
             c += 4 * static_cast<std::int32_t>(blockDim.x)) {
            const uint4 four = *reinterpret_cast<const uint4*>(counters + c);
            *reinterpret_cast<Four*>(out + c) = {cell_value<Out>(four.x, occupancy), cell_value<Out>(four.y, occupancy),
                                                 cell_value<Out>(four.z, occupancy),
                                                 cell_value<Out>(four.w, occupancy)};
        }
    }
    for (std::int32_t c = done + static_cast<std::int32_t>(threadIdx.x); c < num;
         c += static_cast<std::int32_t>(blockDim.x)) {
        out[c] = cell_value<Out>(counters[c], occupancy);
    }
}

__device__ __forceinline__ void write_counts_as(DType dtype, const std::uint32_t* counters, std::int32_t num,
                                                bool occupancy, void* out, std::int64_t first) {
    switch (dtype) {
        case DType::i32: return write_counts(counters, num, occupancy, static_cast<std::int32_t*>(out) + first);
        case DType::i64: return write_counts(counters, num, occupancy, static_cast<std::int64_t*>(out) + first);
        case DType::f32: return write_counts(counters, num, occupancy, static_cast<float*>(out) + first);
        default: return write_counts(counters, num, occupancy, static_cast<std::uint8_t*>(out) + first);
    }
}

template <int threads>
__global__ __launch_bounds__(threads) void count_bins(const __grid_constant__ CountArguments args) {
    extern __shared__ __align__(16) std::uint32_t counters[];
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    for (std::int32_t c = static_cast<std::int32_t>(threadIdx.x); c < bin_cells / 4; c += threads) {
        reinterpret_cast<uint4*>(counters)[c] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    for_keys_of_bin<std::uint16_t>(args.tiles, bin,
                                   [&](std::uint16_t key, std::int64_t) { atomicAdd(&counters[key], 1U); });
    __syncthreads();
    const std::int64_t first = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    write_counts_as(args.out_dtype, counters, num, args.occupancy, args.out, first);
    if (args.counts != nullptr) write_counts(counters, num, false, args.counts + first);
}

/// Occupancy alone needs a bit for each cell, so that a bin may have all the cells that keys of 16 bits can tell apart.
template <int threads>
__global__ __launch_bounds__(threads) void mark_bins(const __grid_constant__ CountArguments args) {
    extern __shared__ __align__(16) std::uint32_t bin_marks[];
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    for (std::int32_t w = static_cast<std::int32_t>(threadIdx.x); w < bin_cells / 32; w += threads) bin_marks[w] = 0;
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    for_keys_of_bin<std::uint16_t>(
        args.tiles, bin, [&](std::uint16_t key, std::int64_t) { atomicOr(&bin_marks[key >> 5], 1U << (key & 31)); });
    __syncthreads();
    const std::int64_t first = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first;
    write_cells_as(
        args.out_dtype, [&](std::int64_t w) { return bin_marks[w]; }, left < bin_cells ? left : bin_cells, args.out,
        first, threadIdx.x, threads);
}

}  // namespace robocache::voxelize_detail
