// The simple kernel: linear, previous, next and nearest, same dtype in and out, rows of plain memory. All streams of a
// call in one launch. A block searches its targets, one per thread, then all threads move the rows in wide accesses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/align/cuda_place.cuh"
#include "ops/align/values.hpp"

namespace robocache::align_detail {

template <int bytes>
struct Word;
template <>
struct Word<16> {
    using type = uint4;
};
template <>
struct Word<8> {
    using type = uint2;
};
template <>
struct Word<4> {
    using type = unsigned int;
};
template <>
struct Word<2> {
    using type = unsigned short;
};
template <>
struct Word<1> {
    using type = unsigned char;
};

/// One target in shared memory. b null: row a as it is; a null too: `weight` itself, 0 or NaN.
struct PlacedRow {
    const char* a;
    const char* b;
    char* out;
    double weight;
};

// The hardware's conversions round like to_bfloat16 and to_half; only the payload of a NaN may differ.
__device__ inline void narrow_pair(float x, float y, BFloat16* to) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    to[0].bits = __bfloat16_as_ushort(pair.x);
    to[1].bits = __bfloat16_as_ushort(pair.y);
}

__device__ inline void narrow_pair(float x, float y, Half* to) {
    const __half2 pair = __floats2half2_rn(x, y);
    to[0].bits = __half_as_ushort(pair.x);
    to[1].bits = __half_as_ushort(pair.y);
}

__device__ inline float widen_fast(BFloat16 x) {
    return to_float(x);
}

__device__ inline float widen_fast(Half x) {
    return __half2float(__ushort_as_half(x.bits));
}

template <class T, int bytes>
__device__ inline typename Word<bytes>::type blend_words(typename Word<bytes>::type a, typename Word<bytes>::type b,
                                                         typename ComputeOf<T>::type w) {
    constexpr int count = bytes / static_cast<int>(sizeof(T));
    T x[count];
    T y[count];
    T z[count];
    memcpy(x, &a, bytes);
    memcpy(y, &b, bytes);
    if constexpr (sizeof(T) == 2 && count > 1) {
#pragma unroll
        for (int i = 0; i < count; i += 2) {
            narrow_pair(blend_linear(widen_fast(x[i]), widen_fast(y[i]), w),
                        blend_linear(widen_fast(x[i + 1]), widen_fast(y[i + 1]), w), z + i);
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) z[i] = narrow<T>(blend_linear(widen(x[i]), widen(y[i]), w));
    }
    typename Word<bytes>::type result;
    memcpy(&result, z, bytes);
    return result;
}

template <class T, int bytes>
__device__ inline typename Word<bytes>::type fill_word(double value) {
    constexpr int count = bytes / static_cast<int>(sizeof(T));
    T z[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        if constexpr (is_float<T>) {
            z[i] = narrow<T>(value);
        } else {
            z[i] = T{};
        }
    }
    typename Word<bytes>::type result;
    memcpy(&result, z, bytes);
    return result;
}

template <class W>
__device__ inline void store_word(char* to, W word) {
    if constexpr (sizeof(W) >= 4) {
        __stcs(reinterpret_cast<W*>(to), word);  // written once, read by somebody else much later
    } else {
        *reinterpret_cast<W*>(to) = word;
    }
}

/// Which target a word of the tile belongs to: word / words per row by multiplication, exact while
/// word * num_vecs < 2^32, which num_vecs < 4096 ensures for a tile of at most 256 rows.
struct WordOwner {
    std::uint32_t num_vecs;
    std::uint32_t magic;

    __device__ explicit WordOwner(std::uint32_t num_vecs)
        : num_vecs(num_vecs), magic(num_vecs > 1 && num_vecs < 4096 ? 0xffffffffU / num_vecs + 1 : 0) {}

    __device__ std::uint32_t operator()(std::uint32_t word) const {
        if (num_vecs == 1) return word;
        return magic != 0 ? __umulhi(word, magic) : word / num_vecs;
    }
};

/// Moves words [begin, end) of the tile's rows, counted target by target. All loads of a round before the first use.
template <class T, int bytes>
__device__ __forceinline__ void write_words(const PlacedRow* placed, std::uint32_t num_vecs, std::uint32_t begin,
                                            std::uint32_t end) {
    using W = typename Word<bytes>::type;
    using Compute = typename ComputeOf<T>::type;
    constexpr int unroll = 4;
    const WordOwner owner(num_vecs);
    for (std::uint32_t v0 = begin + threadIdx.x; v0 < end; v0 += unroll * block_threads) {
        W a[unroll];
        W b[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * block_threads;
            const std::uint32_t k = owner(v < end ? v : v0);
            const std::uint32_t at = ((v < end ? v : v0) - k * num_vecs) * bytes;
            const char* row_a = placed[k].a;
            const char* row_b = placed[k].b;
            if (row_a != nullptr) a[u] = __ldg(reinterpret_cast<const W*>(row_a + at));
            if (is_float<T> && row_b != nullptr) b[u] = __ldg(reinterpret_cast<const W*>(row_b + at));
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * block_threads;
            if (v >= end) continue;
            const std::uint32_t k = owner(v);
            W result = a[u];
            if constexpr (is_float<T>) {
                if (placed[k].b != nullptr) {
                    result = blend_words<T, bytes>(a[u], b[u], static_cast<Compute>(placed[k].weight));
                }
            }
            if (placed[k].a == nullptr) result = fill_word<T, bytes>(placed[k].weight);
            store_word(placed[k].out + (v - k * num_vecs) * bytes, result);
        }
    }
}

__device__ inline void write_format(const DeviceStream& s, const PlacedRow* placed, std::uint32_t begin,
                                    std::uint32_t end) {
    switch (s.format) {
        case Format::f32x4: return write_words<float, 16>(placed, s.num_vecs, begin, end);
        case Format::f32x2: return write_words<float, 8>(placed, s.num_vecs, begin, end);
        case Format::f32x1: return write_words<float, 4>(placed, s.num_vecs, begin, end);
        case Format::f64x2: return write_words<double, 16>(placed, s.num_vecs, begin, end);
        case Format::f64x1: return write_words<double, 8>(placed, s.num_vecs, begin, end);
        case Format::f16x8: return write_words<Half, 16>(placed, s.num_vecs, begin, end);
        case Format::f16x4: return write_words<Half, 8>(placed, s.num_vecs, begin, end);
        case Format::f16x2: return write_words<Half, 4>(placed, s.num_vecs, begin, end);
        case Format::f16x1: return write_words<Half, 2>(placed, s.num_vecs, begin, end);
        case Format::bf16x8: return write_words<BFloat16, 16>(placed, s.num_vecs, begin, end);
        case Format::bf16x4: return write_words<BFloat16, 8>(placed, s.num_vecs, begin, end);
        case Format::bf16x2: return write_words<BFloat16, 4>(placed, s.num_vecs, begin, end);
        case Format::bf16x1: return write_words<BFloat16, 2>(placed, s.num_vecs, begin, end);
        case Format::raw16: return write_words<std::uint8_t, 16>(placed, s.num_vecs, begin, end);
        case Format::raw8: return write_words<std::uint8_t, 8>(placed, s.num_vecs, begin, end);
        case Format::raw4: return write_words<std::uint8_t, 4>(placed, s.num_vecs, begin, end);
        case Format::raw2: return write_words<std::uint8_t, 2>(placed, s.num_vecs, begin, end);
        case Format::raw1: return write_words<std::uint8_t, 1>(placed, s.num_vecs, begin, end);
    }
}

/// Target k of the tile, with this block's times staged or not.
template <class Time>
__device__ inline void place(const DeviceStream& s, const DeviceQuery& q, const BlockTile& tile, std::int32_t k,
                             const DeviceEpisode<Time>& episode, bool staged, PlacedRow& placed) {
    const std::int32_t r = tile.num_rows == 1 ? 0 : k / tile.num_targets;
    const std::int64_t b = tile.first_row + r;
    const std::int64_t j = tile.first_target + (k - r * tile.num_targets);
    const EpisodeTimes<Time>& times = episode.times;
    placed = {nullptr, nullptr, s.out + b * s.out_row_stride + j * s.out_target_stride, 0.0};
    if (times.count == 0) {
        if (tile.part == 0) write_planes<Time>(s, b, j, -1, false);
        return;
    }
    const Time t = add_time(target_at<Time>(q, b, j), duration_as<Time>(s.latency));
    const std::int64_t left = staged ? first_after(times, 0, times.count, t) - 1 : search_by_guess(times, t);
    const Neighbours near = neighbours_of(times, t, left);
    const Sample sample = sample_at(times, t, near, s.method, s.rules);
    if (sample.kind == Kind::nan) {
        placed.weight = __longlong_as_double(0x7ff8000000000000LL);
    } else {
        placed.a = episode.values + sample.rows[0] * s.value_row_stride;
        if (sample.kind == Kind::blend) {
            placed.b = episode.values + sample.rows[1] * s.value_row_stride;
            placed.weight = sample.weight;
        }
    }
    if (tile.part == 0) write_planes<Time>(s, b, j, left < 0 ? -1 : episode.first_row + left, sample.valid);
}

template <class Time, int capacity>
__global__ __launch_bounds__(block_threads, 4) void align_rows(const __grid_constant__ DeviceTable<capacity> table) {
    __shared__ PlacedRow placed[block_threads];
    extern __shared__ double staged_memory[];
    const DeviceStream& s = stream_of(table, blockIdx.x);
    const BlockTile tile = tile_of(s, table.query, blockIdx.x);
    DeviceEpisode<Time> episode = episode_at<Time>(s, table.query, tile.first_row);
    const bool staged =
        tile.num_rows == 1 && episode.times.count * static_cast<std::int64_t>(sizeof(Time)) <= table.staged_bytes;
    if (staged) episode.times = stage(episode.times, reinterpret_cast<Time*>(staged_memory));
    const auto k = static_cast<std::int32_t>(threadIdx.x);
    if (k < tile.count()) {
        if (tile.num_rows > 1) episode = episode_at<Time>(s, table.query, tile.first_row + k / tile.num_targets);
        place(s, table.query, tile, k, episode, staged, placed[k]);
    }
    __syncthreads();
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count()) * s.num_vecs;
    const std::uint32_t share = (total + s.parts - 1) / s.parts;
    const std::uint32_t begin = share * tile.part;
    write_format(s, placed, begin, begin + share < total ? begin + share : total);
}

}  // namespace robocache::align_detail
