// Channels of a cell, reduced from the features of its points: by one thread, by a warp or by a block.
#pragma once

#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/counts.cuh"

namespace robocache::voxelize_detail {

constexpr std::uint32_t warm_cell = 16;     // points, from which on a warp works on a cell
constexpr std::uint32_t heavy_cell = 4096;  // ... the whole block
constexpr int list_threads = 512;
constexpr int feature_threads = 256;

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

    __device__ __forceinline__ const char* features_of(std::uint32_t i) const {
        if (!from_depth) return features.data + static_cast<std::int64_t>(i) * features.strides[3];
        return features.data + pixel_offset(features.strides, pixel_at(depth, i));
    }
};

/// What is known of one channel of one cell, of some of its points.
template <Sums sums>
struct Channel {
    using R = Rounds<sums>;
    std::uint32_t words[R::num_words] = {};

    __device__ __forceinline__ void join(int i, std::uint32_t word) {
        words[i] = R::joins_bits(i) ? words[i] | word : (words[i] < word ? word : words[i]);
    }
    __device__ __forceinline__ void add(float x, const FeatureArguments& args) {
        R::look(x, args.reduction == Reduction::max, [&](int i, std::uint32_t word) { join(i, word); });
    }
    __device__ __forceinline__ void merge(const Channel& other) {
#pragma unroll
        for (int i = 0; i < R::num_words; ++i) join(i, other.words[i]);
    }
    __device__ __forceinline__ float result(std::uint32_t n, const FeatureArguments& args) const {
        return R::result(words, nullptr, n, args.reduction);
    }
};

template <>
struct Channel<Sums::plain> {
    float sum = 0;

    __device__ __forceinline__ void add(float x, const FeatureArguments&) { sum += x; }
    __device__ __forceinline__ void merge(const Channel& other) { sum += other.sum; }
    __device__ __forceinline__ float result(std::uint32_t n, const FeatureArguments& args) const {
        return args.reduction == Reduction::mean ? sum / static_cast<float>(n) : sum;
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

/// `at`: elements from `out`, which has the type of args.out.
template <class In, int width>
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
            write_away(reinterpret_cast<Some*>(static_cast<In*>(out) + at), some);
            return;
        }
    }
    struct alignas(width * sizeof(float)) Some {
        float values[width];
    };
    Some some;
#pragma unroll
    for (int u = 0; u < width; ++u) some.values[u] = x[u];
    write_away(reinterpret_cast<Some*>(static_cast<float*>(out) + at), some);
}

/// A few channels of one cell, by one thread. `points`: the n points of the cell; the first one has been read.
template <class In, Sums sums, int width>
__device__ __forceinline__ void reduce_channels(const FeatureArguments& args, const std::uint32_t* points,
                                                std::uint32_t n, std::int32_t c, const float first[width],
                                                float result[width]) {
    float x[width];
    Channel<sums> channel[width];
#pragma unroll
    for (int u = 0; u < width; ++u) channel[u].add(first[u], args);
    for (std::uint32_t k = 1; k < n; ++k) {
        read_channels<In, width>(args, points[k], c, x);
#pragma unroll
        for (int u = 0; u < width; ++u) channel[u].add(x[u], args);
    }
    if constexpr (Rounds<sums>::num_sums == 0) {
#pragma unroll
        for (int u = 0; u < width; ++u) result[u] = channel[u].result(n, args);
    } else {
        decltype(Rounds<sums>::unit(nullptr, 0)) unit[width] = {};
        std::int64_t numbers[width][Rounds<sums>::num_sums] = {};
        const auto add = [&](int u, float value) {
            Rounds<sums>::add(value, unit[u], [&](int i, std::int64_t number) { numbers[u][i] += number; });
        };
#pragma unroll
        for (int u = 0; u < width; ++u) {
            unit[u] = Rounds<sums>::unit(channel[u].words, n);
            add(u, first[u]);
        }
        for (std::uint32_t k = 1; k < n; ++k) {
            read_channels<In, width>(args, points[k], c, x);
#pragma unroll
            for (int u = 0; u < width; ++u) add(u, x[u]);
        }
#pragma unroll
        for (int u = 0; u < width; ++u) {
            result[u] = Rounds<sums>::result(channel[u].words, numbers[u], n, args.reduction);
        }
    }
}

// ---- cells with many points, by a group of threads: a warp or the block ---------------------------------------------

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

struct SumPart {
    std::int64_t sum = 0;
    __device__ __forceinline__ void merge(const SumPart& other) { sum += other.sum; }
};

/// Calls body(x) for channels [c, c + width) of points k = first, first + step, ... < end; several are on their way.
template <class In, int width, class Body>
__device__ __forceinline__ void for_points(const FeatureArguments& args, const std::uint32_t* points,
                                           std::uint32_t first, std::uint32_t end, std::uint32_t step, std::int32_t c,
                                           Body&& body) {
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

template <class Group, class In, Sums sums, int width>
__device__ __forceinline__ void reduce_together(const FeatureArguments& args, const std::uint32_t* points,
                                                std::uint32_t n, void* out, std::int64_t out_cell, char* scratch) {
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
        Channel<sums> channel[width];
        for_points<In, width>(args, points, lane, end, lanes, c, [&](const float* x) {
#pragma unroll
            for (int u = 0; u < width; ++u) channel[u].add(x[u], args);
        });
#pragma unroll
        for (int u = 0; u < width; ++u) channel[u] = merge_parts<Group>(channel[u], parts, scratch);
        if constexpr (Rounds<sums>::num_sums == 0) {
#pragma unroll
            for (int u = 0; u < width; ++u) result[u] = channel[u].result(n, args);
        } else {
            decltype(Rounds<sums>::unit(nullptr, 0)) unit[width] = {};
            SumPart part[width][Rounds<sums>::num_sums];
#pragma unroll
            for (int u = 0; u < width; ++u) unit[u] = Rounds<sums>::unit(channel[u].words, n);
            for_points<In, width>(args, points, lane, end, lanes, c, [&](const float* x) {
#pragma unroll
                for (int u = 0; u < width; ++u) {
                    Rounds<sums>::add(x[u], unit[u], [&](int i, std::int64_t number) { part[u][i].sum += number; });
                }
            });
#pragma unroll
            for (int u = 0; u < width; ++u) {
                std::int64_t numbers[Rounds<sums>::num_sums];
#pragma unroll
                for (int i = 0; i < Rounds<sums>::num_sums; ++i) {
                    numbers[i] = merge_parts<Group>(part[u][i], parts, scratch).sum;
                }
                result[u] = Rounds<sums>::result(channel[u].words, numbers, n, args.reduction);
            }
        }
        if (thread < parts) write_channels<In, width>(args, out, out_cell * num_channels + c, result);
    }
}

}  // namespace robocache::voxelize_detail
