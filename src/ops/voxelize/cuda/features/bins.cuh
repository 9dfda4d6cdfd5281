// Features where most cells are empty: a block lists the few points of its bin in shared memory, and its warps write
// the bin's cells in the order of memory. A warp makes a piece of them in shared memory, empty cells included, and
// copies it out at once (bulk copies, compute capability 9.0 on). Bins with more points than there is room for, or with
// crowded cells, are listed in global memory, for write_left_bins.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/voxelize/cuda/features/kernel.cuh"

namespace robocache::voxelize_detail {

constexpr std::int32_t few_points = 4096;      // of a bin that fits
constexpr std::int32_t piece_bytes = 4096;     // at most
constexpr std::int32_t most_cell_bytes = 512;  // a piece has 8 cells or more, of any size a multiple of 16 bytes
constexpr std::int32_t most_piece_cells = 1024;
constexpr std::int32_t list_warps = list_threads / warp_threads;

/// The points of a bin in shared memory, cell by cell; occupied cells are numbered in their order.
struct BinList {
    static constexpr std::int32_t most_words = list_threads;  // of 32 cells

    std::uint32_t points[few_points];
    std::uint16_t starts[few_points + 1];  // of each occupied cell; the one after the last is the number of points
    std::uint16_t cells[few_points];
    std::uint16_t firsts[most_words + 1];  // occupied cells before those of a word
    std::uint32_t bits[most_words + 1];    // occupied
    std::int32_t num_points;               // may be more than there is room for

    /// The occupied cells before this one.
    __device__ __forceinline__ std::int32_t number_of(std::int32_t cell) const {
        return firsts[cell >> 5] + __popc(bits[cell >> 5] & ((1U << (cell & 31)) - 1));
    }
};

/// Points as they are collected; later the same memory holds the pieces of the warps.
struct Collected {
    std::uint32_t points[few_points];
    std::uint32_t counts[few_points];  // of each occupied cell
    std::uint16_t cells[few_points];   // then their numbers
    std::uint16_t ranks[few_points];   // in their cells
};

struct BinShared {
    union {
        char pieces[list_warps][piece_bytes];
        Collected all;
        std::uint32_t ends[1 << 14];
    };
    BinList list;
    LongSpans longer;
    std::uint32_t warp_sums[list_warps];
};

/// Returns whether the bin is one for write_bins: its points fit, and no cell has many. If not, the list is of no use.
__device__ __forceinline__ bool list_few(const FeatureArguments& args, std::int32_t bin, BinShared& shared) {
    BinList& list = shared.list;
    Collected& all = shared.all;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto mask = static_cast<std::uint32_t>((1 << args.tiles.bin_bits) - 1);
    for_keys_of_bin<std::uint32_t>(args.tiles, bin, shared.longer, [&](std::uint32_t key, std::int64_t tile) {
        const std::int32_t at = atomicAdd(&list.num_points, 1);
        if (at >= few_points) return;
        const std::uint32_t cell = key & mask;
        const std::uint32_t point = static_cast<std::uint32_t>(tile * args.tiles.tile) + (key >> 16);
        all.cells[at] = static_cast<std::uint16_t>(cell);
        all.points[at] = point;
        atomicOr(&list.bits[cell >> 5], 1U << (cell & 31));
    });
    __syncthreads();
    const std::int32_t num = list.num_points;
    if (num > few_points) return false;
    std::uint32_t occupied = 0;
    list.firsts[thread] = static_cast<std::uint16_t>(block_scan(__popc(list.bits[thread]), shared.warp_sums, occupied));
    const auto num_occupied = static_cast<std::int32_t>(occupied);
    if (thread == 0) list.firsts[BinList::most_words] = static_cast<std::uint16_t>(occupied);
    for (std::int32_t k = thread; k < num_occupied; k += list_threads) all.counts[k] = 0;
    __syncthreads();
    bool crowded = false;
    for (std::int32_t i = thread; i < num; i += list_threads) {
        const std::int32_t cell = all.cells[i];
        const std::int32_t number = list.number_of(cell);
        const std::uint32_t rank = atomicAdd(&all.counts[number], 1U);
        all.cells[i] = static_cast<std::uint16_t>(number);
        all.ranks[i] = static_cast<std::uint16_t>(rank);
        if (rank == 0) list.cells[number] = static_cast<std::uint16_t>(cell);
        crowded |= rank + 1 >= warm_cell;
    }
    if (__syncthreads_or(crowded ? 1 : 0) != 0) return false;
    const std::int32_t share = (num_occupied + list_threads - 1) / list_threads;
    const std::int32_t begin = thread * share;
    const std::int32_t end = begin + share < num_occupied ? begin + share : num_occupied;
    std::uint32_t sum = 0;
    for (std::int32_t k = begin; k < end; ++k) sum += all.counts[k];
    std::uint32_t total = 0;
    std::uint32_t start = block_scan(sum, shared.warp_sums, total);
    for (std::int32_t k = begin; k < end; ++k) {
        list.starts[k] = static_cast<std::uint16_t>(start);
        start += all.counts[k];
    }
    if (thread == 0) list.starts[num_occupied] = static_cast<std::uint16_t>(total);
    __syncthreads();
    for (std::int32_t i = thread; i < num; i += list_threads) {
        list.points[list.starts[all.cells[i]] + all.ranks[i]] = all.points[i];
    }
    __syncthreads();
    return true;
}

/// In global memory, for write_left_bins.
inline __device__ __noinline__ void list_many(const FeatureArguments& args, std::int32_t bin, BinShared& shared) {
    clear_shared(shared.ends, 4 << args.tiles.bin_bits);
    __syncthreads();
    list_bin(args, bin, shared.ends, shared.warp_sums, shared.longer);
}

/// 16 bytes of empty cells.
template <class In, Sums sums>
__device__ __forceinline__ uint4 empty_cells_of(const FeatureArguments& args) {
    const float empty = sums == Sums::extreme ? args.fill : 0.0F;
    if constexpr (__is_same(In, Half) || __is_same(In, BFloat16)) {
        if (!args.out_is_f32) {
            const std::uint32_t two = narrow<In>(empty).bits * 0x10001U;
            return make_uint4(two, two, two, two);
        }
    }
    const std::uint32_t one = __float_as_uint(empty);
    return make_uint4(one, one, one, one);
}

/// One warp's piece of cells: [first, first + num) of the bin, in `piece`.
template <class In, Sums sums, int width>
class Piece {
public:
    __device__ Piece(const PointFeatures& args, const BinList& list, std::int32_t first, std::int32_t end)
        : args_(args),
          list_(list),
          first_(first),
          num_channels_(static_cast<std::int32_t>(args.features.num_channels)),
          parts_(num_channels_ / width) {
        begin_ = list.number_of(first);
        items_ = (list.number_of(end) - begin_) * parts_;
        load(0);
    }

    /// Writes the occupied cells.
    __device__ __forceinline__ void finish(void* piece) {
        for (std::int32_t some = 0;;) {
            reduce(piece);
            some += batch * warp_threads;
            if (some >= items_) return;
            load(some);
        }
    }

private:
    static constexpr int batch = 2;

    /// The first points of some cells.
    __device__ __forceinline__ void load(std::int32_t some) {
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const std::int32_t item = some + u * warp_threads + static_cast<std::int32_t>(threadIdx.x % warp_threads);
            const std::int32_t row = item / parts_;
            number_[u] = -1;
            if (item >= items_) continue;
            number_[u] = begin_ + row;
            c_[u] = (item - row * parts_) * width;
            read_channels<In, width>(args_, list_.points[list_.starts[number_[u]]], c_[u], x_[u]);
        }
    }

    __device__ __forceinline__ void reduce(void* piece) {
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (number_[u] < 0) continue;
            const std::uint32_t start = list_.starts[number_[u]];
            const std::uint32_t count = list_.starts[number_[u] + 1] - start;
            float result[width];
            reduce_channels<In, sums, width>(args_, list_.points + start, count, c_[u], x_[u], result);
            const std::int32_t cell = list_.cells[number_[u]] - first_;
            write_channels<In, width, ToShared>(args_, piece, cell * num_channels_ + c_[u], result);
        }
    }

    const PointFeatures& args_;
    const BinList& list_;
    std::int32_t first_;
    std::int32_t num_channels_;
    std::int32_t parts_;  // of a cell
    std::int32_t begin_;  // number of the first occupied cell
    std::int32_t items_;  // occupied cells, times parts
    std::int32_t number_[batch];
    std::int32_t c_[batch];
    float x_[batch][width];
};

/// Copies a piece to global memory; what is left of 16 bytes at the end of a grid by hand.
__device__ __forceinline__ void write_piece(char* to, const char* piece, std::int32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const std::int32_t whole = bytes / 16 * 16;
    show_to_copies();
    __syncwarp();
    if (lane == 0 && whole > 0) {
        copy_out(to, piece, static_cast<std::uint32_t>(whole), used_once_policy());
        commit_copies();
    }
    if (2 * lane < bytes - whole) {
        reinterpret_cast<std::uint16_t*>(to + whole)[lane] =
            reinterpret_cast<const std::uint16_t*>(piece + whole)[lane];
    }
#endif
}

/// Waits until the pieces that this thread has copied out have been read, or are written.
template <bool written>
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (written) {
        await_written();
    } else {
        await_read();
    }
#endif
}

/// The counts of a bin's cells.
__device__ __forceinline__ void write_few_counts(const BinList& list, std::int32_t num, std::int32_t* counts) {
    for (auto c = static_cast<std::int32_t>(threadIdx.x); c < num; c += list_threads) {
        const std::int32_t number = list.number_of(c);
        const bool occupied = (list.bits[c >> 5] >> (c & 31) & 1U) != 0;
        counts[c] = occupied ? static_cast<std::int32_t>(list.starts[number + 1] - list.starts[number]) : 0;
    }
}

/// One block writes one bin, or lists it and leaves it to write_left_bins.
template <class In, Sums sums, int width>
__global__ __launch_bounds__(list_threads, 2) void write_bins(const __grid_constant__ PointFeatures args) {
    extern __shared__ __align__(128) char bin_memory[];
    auto& shared = *reinterpret_cast<BinShared*>(bin_memory);
    BinList& list = shared.list;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    list.bits[thread] = 0;
    if (thread == 0) {
        list.bits[BinList::most_words] = 0;
        list.num_points = 0;
    }
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);
    if (!list_few(args, bin, shared)) {
        return list_many(args, bin, shared);
    }
    if (thread == 0) args.begins[bin] = no_begin;
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    const std::int64_t first_cell = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first_cell;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    if (args.counts != nullptr) write_few_counts(list, num, args.counts + first_cell);

    const std::int32_t warp = thread / warp_threads;
    const std::int32_t lane = thread % warp_threads;
    char* piece = shared.pieces[warp];
    const auto value_bytes = static_cast<std::int32_t>(args.out_is_f32 ? sizeof(float) : sizeof(In));
    const std::int32_t cell_bytes = static_cast<std::int32_t>(args.features.num_channels) * value_bytes;
    const uint4 empty = empty_cells_of<In, sums>(args);
    for (std::int32_t first = warp * args.piece_cells; first < num; first += list_warps * args.piece_cells) {
        const std::int32_t end = first + args.piece_cells < num ? first + args.piece_cells : num;
        Piece<In, sums, width> cells(args, list, first, end);
        if (lane == 0) wait_for_copies<false>();
        __syncwarp();
        const std::int32_t bytes = (end - first) * cell_bytes;
        for (std::int32_t at = 16 * lane; at < bytes; at += 16 * warp_threads) {
            *reinterpret_cast<uint4*>(piece + at) = empty;
        }
        __syncwarp();
        cells.finish(piece);
        write_piece(static_cast<char*>(args.out) + (first_cell + first) * cell_bytes, piece, bytes);
    }
    if (lane == 0) wait_for_copies<true>();
}

/// The bins that write_bins has left, by blocks that take parts of them in turn.
template <class In, Sums sums, int width>
__global__ __launch_bounds__(feature_threads, 3) void write_left_bins(const __grid_constant__ FeatureArguments args) {
    __shared__ FeatureShared shared;
    wait_for_earlier_work();
    const std::uint32_t parts = (1U << args.tiles.bin_bits) / feature_threads;  // of a bin
    const auto num_bins = static_cast<std::uint32_t>(args.tiles.num_bins);
    const std::uint32_t step = gridDim.x / parts;
    bool any = false;
    for (std::uint32_t b = blockIdx.x / parts + threadIdx.x * step; b < num_bins; b += feature_threads * step) {
        any |= args.begins[b] != no_begin;
    }
    if (__syncthreads_or(any ? 1 : 0) == 0) return;
    for (std::uint32_t b = blockIdx.x / parts; b < num_bins; b += step) {
        if (args.begins[b] == no_begin) continue;
        __syncthreads();
        if (threadIdx.x == 0) shared.num_crowded = 0;
        __syncthreads();
        const std::int64_t begin = static_cast<std::int64_t>(b) << args.tiles.bin_bits;
        write_block<In, sums, width>(args, begin + blockIdx.x % parts * feature_threads, shared);
    }
}

/// Launches write_bins and write_left_bins, or write_features; for features of each type.
void launch_features_f32(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_f16(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_bf16(const FeatureArguments& args, bool deterministic, cudaStream_t stream);
void launch_features_u8(const FeatureArguments& args, bool deterministic, cudaStream_t stream);

}  // namespace robocache::voxelize_detail
