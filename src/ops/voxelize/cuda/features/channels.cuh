// Channels of a cell, reduced from the features of its points: by one thread, by a warp or by a block.
#pragma once

#include <cub/util_ptx.cuh>

#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/bins/fill.cuh"
#include "ops/voxelize/cuda/values.cuh"

namespace robocache::voxelize_detail {

/// The types of features that kernels are compiled for: four bytes are f32, two are f16 or bf16.
constexpr int any_bytes = 0;  // all types, one channel at a time

template <class T, int width>
struct alignas(width * sizeof(T)) Pack {
    T values[width];
};

/// The partial result of one channel of one cell, of some of its points.
template <Sums sums>
struct Channel {
    using R = Rounds<sums>;
    std::uint32_t words[R::num_words] = {};

    __device__ __forceinline__ void join(int i, std::uint32_t word) {
        words[i] = R::joins_bits(i) ? words[i] | word : (words[i] < word ? word : words[i]);
    }
    __device__ __forceinline__ void add(float x, Reduction reduction) {
        R::look(x, reduction == Reduction::max, [&](int i, std::uint32_t word) { join(i, word); });
    }
    __device__ __forceinline__ void merge(const Channel& other) {
#pragma unroll
        for (int i = 0; i < R::num_words; ++i) join(i, other.words[i]);
    }
    __device__ __forceinline__ float result(std::uint32_t n, Reduction reduction) const {
        return R::result(words, nullptr, n, reduction);
    }
};

template <>
struct Channel<Sums::plain> {
    float sum = 0;

    __device__ __forceinline__ void add(float x, Reduction) { sum += x; }
    __device__ __forceinline__ void merge(const Channel& other) { sum += other.sum; }
    __device__ __forceinline__ float result(std::uint32_t n, Reduction reduction) const {
        return reduction == Reduction::mean ? sum / static_cast<float>(n) : sum;
    }
};

/// Channels [c, c + width) of a point's features.
template <int bytes, int width>
__device__ __forceinline__ void read_channels(const DensePlan& plan, std::uint32_t point, std::int32_t c,
                                              float x[width]) {
    const FeaturesPlan& features = plan.features;
    const std::int64_t offset = plan.from_depth ? pixel_offset(features.strides, pixel_at(plan.depth, point))
                                                : static_cast<std::int64_t>(point) * features.strides[3];
    const char* from = features.data + offset + c * features.channel_stride;
    if constexpr (bytes == 4) {
        const auto pack = *reinterpret_cast<const Pack<float, width>*>(from);
#pragma unroll
        for (int u = 0; u < width; ++u) x[u] = pack.values[u];
    } else if constexpr (bytes == 2) {
        const auto pack = *reinterpret_cast<const Pack<std::uint16_t, width>*>(from);
#pragma unroll
        for (int u = 0; u < width; ++u) x[u] = from_16_bits(pack.values[u], features.dtype);
    } else {
        static_assert(width == 1);
        x[0] = value_at(from, features.dtype);
    }
}

/// Streaming store: the grid must not evict features from the cache.
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

/// `at`: the element of the grid.
template <int bytes, int width>
__device__ __forceinline__ void write_channels(const DensePlan& plan, std::int64_t at, const float x[width]) {
    if constexpr (bytes != 4) {
        if (plan.out_dtype != DType::f32) {
            Pack<std::uint16_t, width> pack;
#pragma unroll
            for (int u = 0; u < width; ++u) pack.values[u] = to_16_bits(x[u], plan.out_dtype);
            return write_away(reinterpret_cast<decltype(pack)*>(static_cast<std::uint16_t*>(plan.out) + at), pack);
        }
    }
    Pack<float, width> pack;
#pragma unroll
    for (int u = 0; u < width; ++u) pack.values[u] = x[u];
    write_away(reinterpret_cast<decltype(pack)*>(static_cast<float*>(plan.out) + at), pack);
}

struct SumPart {
    std::int64_t sum = 0;
    __device__ __forceinline__ void merge(const SumPart& other) { sum += other.sum; }
};

/// A few channels of one cell with n points. for_points(body) calls body(x) for the points of this thread; merge(part)
/// merges a partial result over all threads that have points of the cell.
template <Sums sums, int width, class ForPoints, class Merge>
__device__ __forceinline__ void reduce_points(Reduction reduction, std::uint32_t n, const ForPoints& for_points,
                                              const Merge& merge, float result[width]) {
    using R = Rounds<sums>;
    Channel<sums> channel[width];
    for_points([&](const float* x) {
#pragma unroll
        for (int u = 0; u < width; ++u) channel[u].add(x[u], reduction);
    });
#pragma unroll
    for (int u = 0; u < width; ++u) channel[u] = merge(channel[u]);
    if constexpr (R::num_sums == 0) {
#pragma unroll
        for (int u = 0; u < width; ++u) result[u] = channel[u].result(n, reduction);
    } else {
        decltype(R::unit(nullptr, 0)) unit[width] = {};
        SumPart part[width][R::num_sums];
#pragma unroll
        for (int u = 0; u < width; ++u) unit[u] = R::unit(channel[u].words, n);
        for_points([&](const float* x) {
#pragma unroll
            for (int u = 0; u < width; ++u) {
                R::add(x[u], unit[u], [&](int i, std::int64_t number) { part[u][i].sum += number; });
            }
        });
#pragma unroll
        for (int u = 0; u < width; ++u) {
            std::int64_t numbers[R::num_sums];
#pragma unroll
            for (int i = 0; i < R::num_sums; ++i) numbers[i] = merge(part[u][i]).sum;
            result[u] = R::result(channel[u].words, numbers, n, reduction);
        }
    }
}

/// By one thread. `points`: the n points of the cell; the first one has been read.
template <int bytes, Sums sums, int width>
__device__ __forceinline__ void reduce_alone(const DensePlan& plan, const std::uint32_t* points, std::uint32_t n,
                                             std::int32_t c, const float first[width], float result[width]) {
    const auto for_points = [&](const auto& body) {
        body(first);
        for (std::uint32_t k = 1; k < n; ++k) {
            float x[width];
            read_channels<bytes, width>(plan, points[k], c, x);
            body(x);
        }
    };
    reduce_points<sums, width>(plan.reduction, n, for_points, [](const auto& part) { return part; }, result);
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

/// Merges the partial results of a group for the same channels: thread t has part t % parts of them. All get the
/// result. `scratch`: 8 bytes for each thread.
template <class Group, class Part>
__device__ __forceinline__ Part merge_parts(Part mine, std::int32_t parts, char* scratch) {
    auto* all = reinterpret_cast<Part*>(scratch);
    const std::int32_t thread = Group::thread();
    std::int32_t per_warp = warp_threads;  // partial results
    if (parts < warp_threads && (parts & (parts - 1)) == 0) {
        for (std::int32_t step = warp_threads / 2; step >= parts; step /= 2) {
            mine.merge(cub::ShuffleIndex<warp_threads>(mine, thread % warp_threads ^ step, all_lanes));
        }
        if (Group::size == warp_threads) return mine;
        per_warp = parts;
    }
    Group::sync();
    if (thread % warp_threads < per_warp) all[thread / warp_threads * per_warp + thread % warp_threads] = mine;
    Group::sync();
    if (thread < parts) {
        const std::int32_t num = Group::size / warp_threads * per_warp;
        for (std::int32_t t = thread + parts; t < num; t += parts) mine.merge(all[t]);
        all[thread] = mine;
    }
    Group::sync();
    return all[thread % parts];
}

/// Calls body(x) for channels [c, c + width) of points k = first, first + step, ... < end; several loads are in flight.
template <int bytes, int width, class Body>
__device__ __forceinline__ void for_points(const DensePlan& plan, const std::uint32_t* points, std::uint32_t first,
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
            if (k + u * step < end) read_channels<bytes, width>(plan, point[u], c, x[u]);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (k + u * step < end) body(x[u]);
        }
    }
}

template <class Group, int bytes, Sums sums, int width>
__device__ __forceinline__ void reduce_together(const DensePlan& plan, const std::uint32_t* points, std::uint32_t n,
                                                std::int64_t out_cell, char* scratch) {
    const auto num_channels = static_cast<std::int32_t>(plan.features.num_channels);
    const std::int32_t all_parts = num_channels / width;
    const std::int32_t thread = Group::thread();
    for (std::int32_t first = 0; first < all_parts; first += Group::size) {
        const std::int32_t parts = all_parts - first < Group::size ? all_parts - first : Group::size;
        const auto lanes = static_cast<std::uint32_t>(Group::size / parts);  // points at once
        const std::int32_t c = (first + thread % parts) * width;
        const auto lane = static_cast<std::uint32_t>(thread / parts);
        const std::uint32_t end = lane < lanes ? n : 0;
        float result[width];
        reduce_points<sums, width>(
            plan.reduction, n,
            [&](const auto& body) { for_points<bytes, width>(plan, points, lane, end, lanes, c, body); },
            [&](const auto& part) { return merge_parts<Group>(part, parts, scratch); }, result);
        if (thread < parts) write_channels<bytes, width>(plan, out_cell * num_channels + c, result);
    }
}

}  // namespace robocache::voxelize_detail
