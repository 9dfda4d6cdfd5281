// Features of a bin's points, reduced cell by cell: a block lists the points of each of its cells, then every thread
// makes a few channels of one cell; cells with very many points are made by the whole block.
#pragma once

#include "ops/voxelize/cuda_bins.cuh"

namespace robocache::voxelize_detail {

constexpr std::uint32_t warm_cell = 16;     // points, from which on a warp works on a cell
constexpr std::uint32_t heavy_cell = 4096;  // ... the whole block

enum class Sums { plain, fixed, extreme };

struct FeatureArguments {
    SortedTiles tiles;
    std::int64_t first_cell;
    std::int64_t num_cells;
    std::uint32_t* points;  // of all bins, in order of their cells
    bool from_depth;
    DepthPlan depth;
    FeaturesPlan features;
    Reduction reduction;
    float fill;
    void* out;
    bool out_is_f32;
    std::int32_t* counts;

    __device__ __forceinline__ const char* features_of(std::uint32_t i) const {
        if (!from_depth) return features.data + static_cast<std::int64_t>(i) * features.strides[3];
        return features.data + pixel_offset(features.strides, pixel_at(depth, i));
    }
};

/// What is known of one channel of one cell, of some of its points.
template <Sums sums>
struct Channel;

template <>
struct Channel<Sums::plain> {
    float sum = 0;

    __device__ __forceinline__ void add(float x, const FeatureArguments&) { sum += x; }
    __device__ __forceinline__ void merge(const Channel& other) { sum += other.sum; }
    __device__ __forceinline__ float result(std::uint32_t n, const FeatureArguments& args) const {
        return args.reduction == Reduction::mean ? sum / static_cast<float>(n) : sum;
    }
};

template <>
struct Channel<Sums::extreme> {
    std::uint32_t key = 0;

    __device__ __forceinline__ void add(float x, const FeatureArguments& args) {
        const std::uint32_t other = extreme_key(x, args.reduction == Reduction::max);
        key = other > key ? other : key;
    }
    __device__ __forceinline__ void merge(const Channel& other) { key = other.key > key ? other.key : key; }
    __device__ __forceinline__ float result(std::uint32_t, const FeatureArguments& args) const {
        return extreme_value(key, args.reduction == Reduction::max);
    }
};

/// The first of two rounds: how large, and what is not finite.
struct Magnitude {
    std::uint32_t largest = 0;
    std::uint32_t specials = 0;

    __device__ __forceinline__ void add(float x) {
        const std::uint32_t magnitude = magnitude_of(x);
        largest = magnitude > largest ? magnitude : largest;
        specials |= special_of(x);
    }
    __device__ __forceinline__ void merge(const Magnitude& other) {
        largest = other.largest > largest ? other.largest : largest;
        specials |= other.specials;
    }
    __device__ __forceinline__ float result(std::int64_t fixed, std::uint32_t n, Reduction reduction) const {
        if (specials != 0) return special_sum(specials);
        if (largest == 0) return 0.0F;
        const int shift = fixed_shift(largest, n);
        return reduction == Reduction::mean ? fixed_mean(fixed, shift, n) : fixed_sum(fixed, shift);
    }
    __device__ __forceinline__ double scale(std::uint32_t n) const {
        return specials != 0 || largest == 0 ? 0.0 : power_of_two(fixed_shift(largest, n));
    }
};

/// Channels [c, c + width) of a point's features.
template <class In, int width>
__device__ __forceinline__ void read_channels(const FeatureArguments& args, std::uint32_t point, std::int32_t c,
                                              float x[width]) {
    struct alignas(width * sizeof(In)) Some {
        In values[width];
    };
    const char* from = args.features_of(point) + c * args.features.channel_stride;
    const Some some = *reinterpret_cast<const Some*>(from);
#pragma unroll
    for (int u = 0; u < width; ++u) x[u] = widen(some.values[u]);
}

template <class In, int width>
__device__ __forceinline__ void write_channels(const FeatureArguments& args, std::int64_t at, const float x[width]) {
    if constexpr (__is_same(In, Half) || __is_same(In, BFloat16)) {
        if (!args.out_is_f32) {
            struct alignas(width * sizeof(In)) Some {
                In values[width];
            };
            Some some;
#pragma unroll
            for (int u = 0; u < width; ++u) some.values[u] = narrow<In>(x[u]);
            *reinterpret_cast<Some*>(static_cast<In*>(args.out) + at) = some;
            return;
        }
    }
    struct alignas(width * sizeof(float)) Some {
        float values[width];
    };
    Some some;
#pragma unroll
    for (int u = 0; u < width; ++u) some.values[u] = x[u];
    *reinterpret_cast<Some*>(static_cast<float*>(args.out) + at) = some;
}

/// A few channels of one cell, by one thread. `points`: the n points of the cell.
template <class In, Sums sums, int width>
__device__ __forceinline__ void reduce_channels(const FeatureArguments& args, const std::uint32_t* points,
                                                std::uint32_t n, std::int32_t c, float result[width]) {
    float x[width];
    if constexpr (sums == Sums::fixed) {
        Magnitude magnitude[width];
        for (std::uint32_t k = 0; k < n; ++k) {
            read_channels<In, width>(args, points[k], c, x);
#pragma unroll
            for (int u = 0; u < width; ++u) magnitude[u].add(x[u]);
        }
        double scale[width];
        std::int64_t fixed[width];
#pragma unroll
        for (int u = 0; u < width; ++u) {
            scale[u] = magnitude[u].scale(n);
            fixed[u] = 0;
        }
        for (std::uint32_t k = 0; k < n; ++k) {
            read_channels<In, width>(args, points[k], c, x);
#pragma unroll
            for (int u = 0; u < width; ++u) {
                if (scale[u] != 0.0) fixed[u] += to_fixed(x[u], scale[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < width; ++u) result[u] = magnitude[u].result(fixed[u], n, args.reduction);
    } else {
        Channel<sums> channel[width];
        for (std::uint32_t k = 0; k < n; ++k) {
            read_channels<In, width>(args, points[k], c, x);
#pragma unroll
            for (int u = 0; u < width; ++u) channel[u].add(x[u], args);
        }
#pragma unroll
        for (int u = 0; u < width; ++u) result[u] = channel[u].result(n, args);
    }
}

// ---- cells with many points, by a group of threads: a warp or the block
// ------------------------------------------------

struct Warp {
    static constexpr std::int32_t size = warp_threads;
    __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x % warp_threads); }
    __device__ static void sync() { __syncwarp(); }
};

struct Block {
    static constexpr std::int32_t size = bin_threads;
    __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
    __device__ static void sync() { __syncthreads(); }
};

/// Merges what the threads of a group have for the same channel: thread t has channel t % channels. All get the result.
/// `scratch`: 8 bytes for each thread.
template <class Group, class Part>
__device__ __forceinline__ Part merge_parts(Part mine, std::int32_t channels, char* scratch) {
    auto* parts = reinterpret_cast<Part*>(scratch);
    const std::int32_t thread = Group::thread();
    Group::sync();
    parts[thread] = mine;
    Group::sync();
    if (thread < channels) {
        for (std::int32_t t = thread + channels; t < Group::size; t += channels) mine.merge(parts[t]);
        parts[thread] = mine;
    }
    Group::sync();
    return parts[thread % channels];
}

struct FixedPart {
    std::int64_t sum = 0;
    __device__ __forceinline__ void merge(const FixedPart& other) { sum += other.sum; }
};

template <class Group, class In, Sums sums>
__device__ __forceinline__ void reduce_together(const FeatureArguments& args, const std::uint32_t* points,
                                                std::uint32_t n, std::int64_t out_cell, char* scratch) {
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);
    const std::int32_t thread = Group::thread();
    for (std::int32_t first = 0; first < num_channels; first += Group::size) {
        const std::int32_t channels = num_channels - first < Group::size ? num_channels - first : Group::size;
        const std::int32_t lanes = Group::size / channels;  // points at once
        const std::int32_t c = first + thread % channels;
        const auto lane = static_cast<std::uint32_t>(thread / channels);
        const std::uint32_t end = lane < static_cast<std::uint32_t>(lanes) ? n : 0;
        float x[1];
        float result[1] = {0.0F};
        if constexpr (sums == Sums::fixed) {
            Magnitude magnitude;
            for (std::uint32_t k = lane; k < end; k += lanes) {
                read_channels<In, 1>(args, points[k], c, x);
                magnitude.add(x[0]);
            }
            magnitude = merge_parts<Group>(magnitude, channels, scratch);
            const double scale = magnitude.scale(n);
            FixedPart part;
            for (std::uint32_t k = lane; scale != 0.0 && k < end; k += lanes) {
                read_channels<In, 1>(args, points[k], c, x);
                part.sum += to_fixed(x[0], scale);
            }
            result[0] = magnitude.result(merge_parts<Group>(part, channels, scratch).sum, n, args.reduction);
        } else {
            Channel<sums> channel;
            for (std::uint32_t k = lane; k < end; k += lanes) {
                read_channels<In, 1>(args, points[k], c, x);
                channel.add(x[0], args);
            }
            result[0] = merge_parts<Group>(channel, channels, scratch).result(n, args);
        }
        if (thread < channels) write_channels<In, 1>(args, out_cell * num_channels + c, result);
    }
}

/// One block makes the cells of one bin. width: channels of a thread, 4 where memory allows.
template <class In, Sums sums, int width>
__global__ __launch_bounds__(bin_threads, 3) void reduce_bins(const __grid_constant__ FeatureArguments args) {
    extern __shared__ __align__(16) std::uint32_t ends[];  // of each cell in the bin's list of points
    __shared__ std::uint32_t warp_sums[bin_threads / warp_threads];
    __shared__ __align__(16) char scratch[bin_threads * 8];
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    const auto mask = static_cast<std::uint32_t>(bin_cells - 1);
    for (std::int32_t c = thread; c < bin_cells / 4; c += bin_threads) {
        reinterpret_cast<uint4*>(ends)[c] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    wait_for_earlier_work();
    const auto bin = static_cast<std::int32_t>(blockIdx.x);

    std::uint32_t before = 0;  // points of the bins before this one
    for (std::int32_t b = thread; b < bin; b += bin_threads) before += args.tiles.bin_sizes[b];
    std::uint32_t base = 0;
    (void)block_scan(before, warp_sums, base);
    std::uint32_t* list = args.points + base;
    const std::int64_t first = args.first_cell + (static_cast<std::int64_t>(bin) << args.tiles.bin_bits);
    const std::int64_t left = args.num_cells - first;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    if (args.tiles.bin_sizes[bin] != 0) {
        for_keys_of_bin<std::uint32_t>(args.tiles, bin,
                                       [&](std::uint32_t key, std::int64_t) { atomicAdd(&ends[key & mask], 1U); });
        __syncthreads();
    }
    if (args.counts != nullptr) write_counts(ends, num, false, args.counts + first);
    if (args.tiles.bin_sizes[bin] != 0) {
        __syncthreads();
        // Counts become starts; then every point takes a place, and starts become ends.
        const std::int32_t share = bin_cells / bin_threads;
        std::uint32_t mine = 0;
        for (std::int32_t k = 0; k < share; ++k) mine += ends[thread * share + k];
        std::uint32_t total = 0;
        std::uint32_t start = block_scan(mine, warp_sums, total);
        for (std::int32_t k = 0; k < share; ++k) {
            const std::uint32_t size = ends[thread * share + k];
            ends[thread * share + k] = start;
            start += size;
        }
        __syncthreads();
        for_keys_of_bin<std::uint32_t>(args.tiles, bin, [&](std::uint32_t key, std::int64_t tile) {
            const std::uint32_t at = atomicAdd(&ends[key & mask], 1U);
            list[at] = static_cast<std::uint32_t>(tile * args.tiles.tile) + (key >> 16);
        });
        __syncthreads();
    }

    // Empty cells are only written; those with points are listed, so that no thread waits for memory with idle ones.
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);
    const auto parts = static_cast<std::uint32_t>(num_channels / width);  // of a cell
    const auto work = static_cast<std::uint32_t>(num) * parts;
    auto* occupied = reinterpret_cast<std::uint16_t*>(ends + bin_cells);
    const auto size_of = [&](std::int32_t cell) { return ends[cell] - (cell == 0 ? 0 : ends[cell - 1]); };
    const std::int32_t cells_of_thread = bin_cells / bin_threads;
    std::uint32_t few = 0;
    bool warm = false;
    for (std::int32_t k = 0; k < cells_of_thread; ++k) {
        const std::uint32_t n = size_of(thread * cells_of_thread + k);
        warm = warm || n >= warm_cell;
        few += n > 0 && n < warm_cell ? 1 : 0;
    }
    std::uint32_t num_occupied = 0;
    std::uint32_t place = block_scan(few, warp_sums, num_occupied);
    for (std::int32_t k = 0; k < cells_of_thread; ++k) {
        const std::int32_t cell = thread * cells_of_thread + k;
        const std::uint32_t n = size_of(cell);
        if (n > 0 && n < warm_cell) occupied[place++] = static_cast<std::uint16_t>(cell);
    }
    __syncthreads();
    for (std::uint32_t w = thread; w < num_occupied * parts; w += bin_threads) {
        const std::uint32_t cell = occupied[w / parts];
        const auto c = static_cast<std::int32_t>(w % parts * width);
        const std::uint32_t n = size_of(static_cast<std::int32_t>(cell));
        float result[width];
        reduce_channels<In, sums, width>(args, list + ends[cell] - n, n, c, result);
        write_channels<In, width>(args, (first + cell) * num_channels + c, result);
    }
    float empty[width];
#pragma unroll
    for (int u = 0; u < width; ++u) empty[u] = sums == Sums::extreme ? args.fill : 0.0F;
#pragma unroll 4
    for (std::uint32_t w = thread; w < work; w += bin_threads) {
        const std::uint32_t cell = w / parts;
        if (size_of(static_cast<std::int32_t>(cell)) != 0) continue;
        const auto c = static_cast<std::int32_t>((w - cell * parts) * width);
        write_channels<In, width>(args, (first + cell) * num_channels + c, empty);
    }
    if (!__syncthreads_or(warm ? 1 : 0)) return;
    char* scratch_of_warp = scratch + thread / warp_threads * warp_threads * 8;
    bool heavy = false;
    for (std::int32_t some = thread / warp_threads * warp_threads; some < num; some += bin_threads) {
        const std::int32_t cell = some + thread % warp_threads;
        const std::uint32_t n = cell < num ? ends[cell] - (cell == 0 ? 0 : ends[cell - 1]) : 0;
        heavy = heavy || n >= heavy_cell;
        for (unsigned todo = __ballot_sync(all_lanes, n >= warm_cell && n < heavy_cell); todo != 0; todo &= todo - 1) {
            const std::int32_t which = some + __ffs(static_cast<int>(todo)) - 1;
            const std::uint32_t from = which == 0 ? 0 : ends[which - 1];
            reduce_together<Warp, In, sums>(args, list + from, ends[which] - from, first + which, scratch_of_warp);
        }
    }
    if (!__syncthreads_or(heavy ? 1 : 0)) return;
    for (std::int32_t cell = 0; cell < num; ++cell) {
        const std::uint32_t from = cell == 0 ? 0 : ends[cell - 1];
        const std::uint32_t n = ends[cell] - from;
        if (n >= heavy_cell) reduce_together<Block, In, sums>(args, list + from, n, first + cell, scratch);
    }
}

}  // namespace robocache::voxelize_detail
