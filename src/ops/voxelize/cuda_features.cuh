// Features of points, reduced cell by cell. One kernel has a block for each bin, which lists the points of its cells; a
// second one goes through the grid as it lies in memory and writes it once: a warp writes the empty ones of its cells,
// and makes a few channels of the others with each of its threads. Cells with many points are made by a warp together,
// those with very many by the block.
#pragma once

#include "ops/voxelize/cuda_counts.cuh"

namespace robocache::voxelize_detail {

constexpr std::uint32_t warm_cell = 16;     // points, from which on a warp works on a cell
constexpr std::uint32_t heavy_cell = 4096;  // ... the whole block
constexpr int list_threads = 512;
constexpr int feature_threads = 256;
constexpr std::uint32_t no_begin = 0xffffffffU;  // of a bin that write_bins has written
constexpr int most_rounds = 4;                   // of 32 cells that a warp has at once
constexpr int most_cells = most_rounds * warp_threads;

enum class Sums { plain, fixed, extreme };

struct FeatureArguments {
    SortedTiles tiles;
    std::int64_t first_cell;
    std::int64_t num_cells;
    std::uint32_t* points;  // of all bins; those of a bin in order of their cells
    std::uint32_t* begins;  // of each bin in that list
    std::uint32_t* ends;    // of each cell
    std::uint32_t* listed;  // points so far; sort_tiles clears it
    bool from_depth;
    DepthPlan depth;
    FeaturesPlan features;
    Reduction reduction;
    float fill;
    void* out;
    bool out_is_f32;
    std::int32_t* counts;
    std::int32_t piece_cells;  // 0: all bins are listed; else those with few points are written by write_bins

    __device__ __forceinline__ const char* features_of(std::uint32_t i) const {
        if (!from_depth) return features.data + static_cast<std::int64_t>(i) * features.strides[3];
        return features.data + pixel_offset(features.strides, pixel_at(depth, i));
    }
};

/// The same for points, whose features are found without asking.
struct PointFeatures : FeatureArguments {
    __device__ __forceinline__ const char* features_of(std::uint32_t i) const {
        return features.data + static_cast<std::int64_t>(i) * features.strides[3];
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
template <class In, int width, class Arguments>
__device__ __forceinline__ void read_channels(const Arguments& args, std::uint32_t point, std::int32_t c,
                                              float x[width]) {
    struct alignas(width * sizeof(In)) Some {
        In values[width];
    };
    const char* from = args.features_of(point) + c * args.features.channel_stride;
    const Some some = *reinterpret_cast<const Some*>(from);
#pragma unroll
    for (int u = 0; u < width; ++u) x[u] = widen(some.values[u]);
}

/// Writes what nobody reads soon: it should not push out of the cache what is still needed.
template <class Some>
__device__ __forceinline__ void write_away(Some* to, const Some& some) {
    if constexpr (sizeof(Some) == 16) {
        __stcs(reinterpret_cast<uint4*>(to), __builtin_bit_cast(uint4, some));
    } else if constexpr (sizeof(Some) == 8) {
        __stcs(reinterpret_cast<uint2*>(to), __builtin_bit_cast(uint2, some));
    } else {
        *to = some;
    }
}

/// Where cells go: straight to memory, or to a place in shared memory.
struct ToMemory {
    template <class Some>
    __device__ static __forceinline__ void write(Some* to, const Some& some) {
        write_away(to, some);
    }
};

struct ToShared {
    template <class Some>
    __device__ static __forceinline__ void write(Some* to, const Some& some) {
        *to = some;
    }
};

/// `at`: elements from `out`, which has the type of args.out.
template <class In, int width, class To>
__device__ __forceinline__ void write_channels(const FeatureArguments& args, void* out, std::int64_t at,
                                               const float x[width]) {
    if constexpr (__is_same(In, Half) || __is_same(In, BFloat16)) {
        if (!args.out_is_f32) {
            struct alignas(width * sizeof(In)) Some {
                In values[width];
            };
            Some some;
#pragma unroll
            for (int u = 0; u < width; ++u) some.values[u] = narrow<In>(x[u]);
            To::write(reinterpret_cast<Some*>(static_cast<In*>(out) + at), some);
            return;
        }
    }
    struct alignas(width * sizeof(float)) Some {
        float values[width];
    };
    Some some;
#pragma unroll
    for (int u = 0; u < width; ++u) some.values[u] = x[u];
    To::write(reinterpret_cast<Some*>(static_cast<float*>(out) + at), some);
}

/// A few channels of one cell, by one thread. `points`: the n points of the cell; the first one has been read.
template <class In, Sums sums, int width, class Arguments>
__device__ __forceinline__ void reduce_channels(const Arguments& args, const std::uint32_t* points, std::uint32_t n,
                                                std::int32_t c, const float first[width], float result[width]) {
    float x[width];
    if constexpr (sums == Sums::fixed) {
        Magnitude magnitude[width];
#pragma unroll
        for (int u = 0; u < width; ++u) magnitude[u].add(first[u]);
        for (std::uint32_t k = 1; k < n; ++k) {
            read_channels<In, width>(args, points[k], c, x);
#pragma unroll
            for (int u = 0; u < width; ++u) magnitude[u].add(x[u]);
        }
        double scale[width];
        std::int64_t fixed[width];
#pragma unroll
        for (int u = 0; u < width; ++u) {
            scale[u] = magnitude[u].scale(n);
            fixed[u] = scale[u] != 0.0 ? to_fixed(first[u], scale[u]) : 0;
        }
        for (std::uint32_t k = 1; k < n; ++k) {
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
#pragma unroll
        for (int u = 0; u < width; ++u) channel[u].add(first[u], args);
        for (std::uint32_t k = 1; k < n; ++k) {
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
    static constexpr std::int32_t size = feature_threads;
    __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
    __device__ static void sync() { __syncthreads(); }
};

/// Merges what the threads of a group have for the same channels: thread t has part t % parts of them. All get the
/// result. `scratch`: 8 bytes for each thread.
template <class Group, class Part>
__device__ __forceinline__ Part merge_parts(Part mine, std::int32_t parts, char* scratch) {
    auto* all = reinterpret_cast<Part*>(scratch);
    const std::int32_t thread = Group::thread();
    Group::sync();
    all[thread] = mine;
    Group::sync();
    if (thread < parts) {
        for (std::int32_t t = thread + parts; t < Group::size; t += parts) mine.merge(all[t]);
        all[thread] = mine;
    }
    Group::sync();
    return all[thread % parts];
}

struct FixedPart {
    std::int64_t sum = 0;
    __device__ __forceinline__ void merge(const FixedPart& other) { sum += other.sum; }
};

/// Calls body(x) for channels [c, c + width) of points k = first, first + step, ... < end; several are on their way.
template <class In, int width, class Arguments, class Body>
__device__ __forceinline__ void for_points(const Arguments& args, const std::uint32_t* points, std::uint32_t first,
                                           std::uint32_t end, std::uint32_t step, std::int32_t c, Body&& body) {
    constexpr int batch = 4;
    for (std::uint32_t k = first; k < end; k += batch * step) {
        std::uint32_t point[batch];
        float x[batch][width];
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (k + u * step < end) point[u] = points[k + u * step];
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (k + u * step < end) read_channels<In, width>(args, point[u], c, x[u]);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (k + u * step < end) body(x[u]);
        }
    }
}

template <class Group, class In, Sums sums, int width, class To, class Arguments>
__device__ __forceinline__ void reduce_together(const Arguments& args, const std::uint32_t* points, std::uint32_t n,
                                                void* out, std::int64_t out_cell, char* scratch) {
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);
    const std::int32_t all_parts = num_channels / width;
    const std::int32_t thread = Group::thread();
    for (std::int32_t first = 0; first < all_parts; first += Group::size) {
        const std::int32_t parts = all_parts - first < Group::size ? all_parts - first : Group::size;
        const auto lanes = static_cast<std::uint32_t>(Group::size / parts);  // points at once
        const std::int32_t c = (first + thread % parts) * width;
        const auto lane = static_cast<std::uint32_t>(thread / parts);
        const std::uint32_t end = lane < lanes ? n : 0;
        float result[width];
        if constexpr (sums == Sums::fixed) {
            Magnitude magnitude[width];
            for_points<In, width>(args, points, lane, end, lanes, c, [&](const float* x) {
#pragma unroll
                for (int u = 0; u < width; ++u) magnitude[u].add(x[u]);
            });
            double scale[width];
            FixedPart part[width];
#pragma unroll
            for (int u = 0; u < width; ++u) {
                magnitude[u] = merge_parts<Group>(magnitude[u], parts, scratch);
                scale[u] = magnitude[u].scale(n);
            }
            for_points<In, width>(args, points, lane, end, lanes, c, [&](const float* x) {
#pragma unroll
                for (int u = 0; u < width; ++u) {
                    if (scale[u] != 0.0) part[u].sum += to_fixed(x[u], scale[u]);
                }
            });
#pragma unroll
            for (int u = 0; u < width; ++u) {
                result[u] = magnitude[u].result(merge_parts<Group>(part[u], parts, scratch).sum, n, args.reduction);
            }
        } else {
            Channel<sums> channel[width];
            for_points<In, width>(args, points, lane, end, lanes, c, [&](const float* x) {
#pragma unroll
                for (int u = 0; u < width; ++u) channel[u].add(x[u], args);
            });
#pragma unroll
            for (int u = 0; u < width; ++u) {
                result[u] = merge_parts<Group>(channel[u], parts, scratch).result(n, args);
            }
        }
        if (thread < parts) write_channels<In, width, To>(args, out, out_cell * num_channels + c, result);
    }
}

// ---- the kernels ----------------------------------------------------------------------------------------------------

/// Lists the points of a bin, cell by cell, by a block. `ends`: in shared memory, a zero for each cell.
__device__ __forceinline__ void list_bin(const FeatureArguments& args, std::int32_t bin, std::uint32_t* ends,
                                         std::uint32_t* warp_sums, LongSpans& longer) {
    __shared__ std::uint32_t base;
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t bin_cells = 1 << args.tiles.bin_bits;
    const auto mask = static_cast<std::uint32_t>(bin_cells - 1);
    const std::int64_t in_pass = static_cast<std::int64_t>(bin) << args.tiles.bin_bits;
    const std::int64_t left = args.num_cells - args.first_cell - in_pass;
    const auto num = static_cast<std::int32_t>(left < bin_cells ? left : bin_cells);
    for_keys_of_bin<std::uint32_t>(args.tiles, bin, longer,
                                   [&](std::uint32_t key, std::int64_t) { atomicAdd(&ends[key & mask], 1U); });
    __syncthreads();
    if (args.counts != nullptr) {
        write_counts(ends, num, false, args.counts + args.first_cell + in_pass);
        __syncthreads();
    }

    // Counts become starts; then every point takes a place, and starts become ends. A warp has cells side by side.
    const std::int32_t share = bin_cells / (list_threads / warp_threads);
    std::uint32_t* mine = ends + thread / warp_threads * share + thread % warp_threads;
    std::uint32_t sum = 0;
    for (std::int32_t k = 0; k < share; k += warp_threads) sum += mine[k];
    sum = __reduce_add_sync(all_lanes, sum);
    std::uint32_t total = 0;
    std::uint32_t start = block_scan(thread % warp_threads == 0 ? sum : 0, warp_sums, total);
    if (thread == 0) {
        base = total > 0 ? atomicAdd(args.listed, total) : 0;  // without points there was no sort_tiles
        args.begins[bin] = base;
    }
    __syncthreads();
    start += base;
    start = __shfl_sync(all_lanes, start, 0);
    for (std::int32_t k = 0; k < share; k += warp_threads) {
        const std::uint32_t size = mine[k];
        std::uint32_t upto = size;
#pragma unroll
        for (int step = 1; step < warp_threads; step *= 2) {
            const std::uint32_t other = __shfl_up_sync(all_lanes, upto, step);
            if (thread % warp_threads >= step) upto += other;
        }
        mine[k] = start + upto - size;
        start += __shfl_sync(all_lanes, upto, warp_threads - 1);
    }
    __syncthreads();
    for_keys_of_bin<std::uint32_t>(args.tiles, bin, longer, [&](std::uint32_t key, std::int64_t tile) {
        const std::uint32_t at = atomicAdd(&ends[key & mask], 1U);
        args.points[at] = static_cast<std::uint32_t>(tile * args.tiles.tile) + (key >> 16);
    });
    __syncthreads();
    for (std::int32_t c = thread; c < bin_cells / 4; c += list_threads) {
        reinterpret_cast<uint4*>(args.ends + in_pass)[c] = reinterpret_cast<const uint4*>(ends)[c];
    }
}

__device__ __forceinline__ void clear_shared(void* memory, std::int32_t bytes) {
    for (std::int32_t at = 16 * static_cast<std::int32_t>(threadIdx.x); at < bytes; at += 16 * list_threads) {
        *reinterpret_cast<uint4*>(static_cast<char*>(memory) + at) = make_uint4(0, 0, 0, 0);
    }
}

/// One block lists the points of one bin.
static __global__ __launch_bounds__(list_threads, 2) void list_points(const __grid_constant__ FeatureArguments args) {
    extern __shared__ __align__(16) std::uint32_t ends[];  // of each cell in the bin's list of points
    __shared__ std::uint32_t warp_sums[list_threads / warp_threads];
    __shared__ LongSpans longer;
    clear_shared(ends, 4 << args.tiles.bin_bits);
    __syncthreads();
    wait_for_earlier_work();
    list_bin(args, static_cast<std::int32_t>(blockIdx.x), ends, warp_sums, longer);
}

/// Where the points of a cell are in the list.
struct Listed {
    std::uint32_t begin;
    std::uint32_t count;
};

__device__ __forceinline__ Listed points_of(const FeatureArguments& args, std::int64_t cell) {
    const bool first = (cell & ((std::int64_t{1} << args.tiles.bin_bits) - 1)) == 0;
    const std::uint32_t begin = *(first ? args.begins + (cell >> args.tiles.bin_bits) : args.ends + cell - 1);
    return {begin, args.ends[cell] - begin};
}

/// Writes `value` to all channels of a warp's cells that are not in `occupied`; `out` is where the first one begins.
template <class Out, int width>
__device__ __forceinline__ void write_empty(Out value, unsigned occupied, std::int32_t num, std::int32_t parts,
                                            Out* out) {
    struct alignas(width * sizeof(Out)) Some {
        Out values[width];
    };
    Some some;
#pragma unroll
    for (int u = 0; u < width; ++u) some.values[u] = value;
    auto* to = reinterpret_cast<Some*>(out);
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    if (occupied == 0) {
#pragma unroll 4
        for (std::int32_t at = lane; at < num * parts; at += warp_threads) write_away(to + at, some);
        return;
    }
    std::int32_t cell = lane / parts;
    std::int32_t part = lane - cell * parts;
    const std::int32_t more_cells = warp_threads / parts;
    const std::int32_t more_parts = warp_threads - more_cells * parts;
    for (std::int32_t at = lane; at < num * parts; at += warp_threads) {
        if ((occupied >> cell & 1U) == 0) write_away(to + at, some);
        part += more_parts;
        cell += more_cells + (part >= parts ? 1 : 0);
        part -= part >= parts ? parts : 0;
    }
}

/// A cell with a few points, as a warp notes it down.
struct FewPoints {
    std::uint32_t begin;
    std::uint16_t count;
    std::uint16_t cell;  // of the warp's
};

/// Makes the cells that a warp has noted down, side by side, so that no thread is idle; two at once.
template <class In, Sums sums, int width>
__device__ __forceinline__ void reduce_few(const FeatureArguments& args, const FewPoints* few, std::int32_t num_few,
                                           std::int64_t out_cell) {
    constexpr int batch = 2;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);
    const std::int32_t parts = num_channels / width;  // of a cell
    const std::int32_t items = num_few * parts;
    for (std::int32_t some = 0; some < items; some += batch * warp_threads) {
        FewPoints cell[batch];
        std::int32_t c[batch];
        std::uint32_t point[batch];
        float x[batch][width];
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const std::int32_t item = some + u * warp_threads + lane;
            const std::int32_t row = item / parts;
            c[u] = (item - row * parts) * width;
            cell[u] = item < items ? few[row] : FewPoints{0, 0, 0};
            if (cell[u].count != 0) point[u] = args.points[cell[u].begin];
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count != 0) read_channels<In, width>(args, point[u], c[u], x[u]);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (cell[u].count == 0) continue;
            float result[width];
            reduce_channels<In, sums, width>(args, args.points + cell[u].begin, cell[u].count, c[u], x[u], result);
            write_channels<In, width, ToMemory>(args, args.out, (out_cell + cell[u].cell) * num_channels + c[u],
                                                result);
        }
    }
}

struct FeatureShared {
    std::uint16_t crowded[feature_threads];  // cells of the block
    std::int32_t num_crowded;
    FewPoints few[feature_threads / warp_threads][warp_threads];
    alignas(16) char scratch[feature_threads * 8];
};

/// A block writes cells of the pass from `first` on, one for each thread. width: channels of a thread, 4 where memory
/// allows.
template <class In, Sums sums, int width>
__device__ __forceinline__ void write_block(const FeatureArguments& args, std::int64_t first, FeatureShared& shared) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % warp_threads);
    const auto warp = static_cast<std::int32_t>(threadIdx.x / warp_threads);
    const std::int64_t in_pass = std::int64_t{args.tiles.num_bins} << args.tiles.bin_bits;
    const std::int64_t left = args.num_cells - args.first_cell;
    const std::int64_t mine = first + warp * warp_threads;
    const std::int64_t cells_left = (left < in_pass ? left : in_pass) - mine;
    const auto num = static_cast<std::int32_t>(cells_left < warp_threads ? cells_left : warp_threads);
    const std::int64_t out_cell = args.first_cell + mine;
    const auto num_channels = static_cast<std::int32_t>(args.features.num_channels);

    const std::uint32_t end = lane < num ? args.ends[mine + lane] : 0;
    std::uint32_t begin = __shfl_up_sync(all_lanes, end, 1);
    if (lane == 0 && num > 0) begin = points_of(args, mine).begin;
    const std::uint32_t count = lane < num ? end - begin : 0;
    const unsigned occupied = __ballot_sync(all_lanes, count != 0);
    const float empty = sums == Sums::extreme ? args.fill : 0.0F;
    const std::int64_t to = out_cell * num_channels;
    if constexpr (__is_same(In, Half) || __is_same(In, BFloat16)) {
        if (!args.out_is_f32) {
            write_empty<In, width>(narrow<In>(empty), occupied, num, num_channels / width,
                                   static_cast<In*>(args.out) + to);
        }
    }
    if (args.out_is_f32) {
        write_empty<float, width>(empty, occupied, num, num_channels / width, static_cast<float*>(args.out) + to);
    }
    const bool is_few = count != 0 && count < warm_cell;
    const unsigned all_few = __ballot_sync(all_lanes, is_few);
    if (is_few) {
        shared.few[warp][__popc(all_few & ((1U << lane) - 1))] = {begin, static_cast<std::uint16_t>(count),
                                                                  static_cast<std::uint16_t>(lane)};
    }
    const std::int32_t num_few = __popc(all_few);
    if (count >= warm_cell) {
        shared.crowded[atomicAdd(&shared.num_crowded, 1)] = static_cast<std::uint16_t>(threadIdx.x);
    }
    __syncwarp();
    reduce_few<In, sums, width>(args, shared.few[warp], num_few, out_cell);

    __syncthreads();
    char* scratch_of_warp = shared.scratch + warp * warp_threads * 8;
    for (std::int32_t k = warp; k < shared.num_crowded; k += feature_threads / warp_threads) {
        const Listed many = points_of(args, first + shared.crowded[k]);
        if (many.count >= heavy_cell) continue;
        reduce_together<Warp, In, sums, width, ToMemory>(args, args.points + many.begin, many.count, args.out,
                                                         args.first_cell + first + shared.crowded[k], scratch_of_warp);
    }
    __syncthreads();
    for (std::int32_t k = 0; k < shared.num_crowded; ++k) {
        const Listed many = points_of(args, first + shared.crowded[k]);
        if (many.count < heavy_cell) continue;
        reduce_together<Block, In, sums, width, ToMemory>(args, args.points + many.begin, many.count, args.out,
                                                          args.first_cell + first + shared.crowded[k], shared.scratch);
    }
}

/// A block for some cells.
template <class In, Sums sums, int width>
__global__ __launch_bounds__(feature_threads, sums == Sums::fixed ? 3 : 5) void write_features(
    const __grid_constant__ FeatureArguments args) {
    __shared__ FeatureShared shared;
    if (threadIdx.x == 0) shared.num_crowded = 0;
    __syncthreads();
    wait_for_earlier_work();
    write_block<In, sums, width>(args, static_cast<std::int64_t>(blockIdx.x) * feature_threads, shared);
}

}  // namespace robocache::voxelize_detail
