// The simple kernel: linear, previous, next and nearest, same dtype in and out, rows of plain memory. All streams of a
// call in one launch. Rows move in the widest accesses that their addresses allow.
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

/// One target in shared memory. b null: row a as it is; a null too: the weight itself, 0 or NaN.
struct PlacedRow {
    const char* a;
    const char* b;
    char* out;
    union {  // converted once here, not once per word
        double weight_f64;
        float weight_f32;
    };

    __device__ void set_weight(double weight, bool wide) {
        if (wide) {
            weight_f64 = weight;
        } else {
            weight_f32 = static_cast<float>(weight);
        }
    }
    template <class Compute>
    __device__ Compute weight() const {
        if constexpr (sizeof(Compute) == 8) {
            return weight_f64;
        } else {
            return weight_f32;
        }
    }
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

/// Moves words [begin, end) of the tile's rows, counted target by target. All loads of a round before the first use.
template <class T, int bytes>
__device__ __forceinline__ void write_words(const PlacedRow* placed, const Divisor& num_vecs, std::uint32_t begin,
                                            std::uint32_t end) {
    using W = typename Word<bytes>::type;
    using Compute = typename ComputeOf<T>::type;
    constexpr int unroll = 2;
    for (std::uint32_t v0 = begin + threadIdx.x % warp_size; v0 < end; v0 += unroll * warp_size) {
        W a[unroll];
        W b[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * warp_size;
            const std::uint32_t k = num_vecs.divide(v < end ? v : v0);
            const std::uint32_t at = ((v < end ? v : v0) - k * num_vecs.divisor) * bytes;
            const char* row_a = placed[k].a;
            const char* row_b = placed[k].b;
            if (row_a != nullptr) a[u] = __ldg(reinterpret_cast<const W*>(row_a + at));
            if (is_float<T> && row_b != nullptr) b[u] = __ldg(reinterpret_cast<const W*>(row_b + at));
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t v = v0 + u * warp_size;
            if (v >= end) continue;
            const std::uint32_t k = num_vecs.divide(v);
            W result = a[u];
            if constexpr (is_float<T>) {
                if (placed[k].b != nullptr) {
                    result = blend_words<T, bytes>(a[u], b[u], placed[k].weight<Compute>());
                }
            }
            if (placed[k].a == nullptr) result = fill_word<T, bytes>(placed[k].weight<Compute>());
            store_word(placed[k].out + (v - k * num_vecs.divisor) * bytes, result);
        }
    }
}

__device__ inline void write_format(const DeviceStream& s, const PlacedRow* placed, std::uint32_t begin,
                                    std::uint32_t end) {
    switch (s.format) {
        case Format::f32x4: return write_words<float, 16>(placed, s.by_num_vecs, begin, end);
        case Format::f32x2: return write_words<float, 8>(placed, s.by_num_vecs, begin, end);
        case Format::f32x1: return write_words<float, 4>(placed, s.by_num_vecs, begin, end);
        case Format::f64x2: return write_words<double, 16>(placed, s.by_num_vecs, begin, end);
        case Format::f64x1: return write_words<double, 8>(placed, s.by_num_vecs, begin, end);
        case Format::f16x8: return write_words<Half, 16>(placed, s.by_num_vecs, begin, end);
        case Format::f16x4: return write_words<Half, 8>(placed, s.by_num_vecs, begin, end);
        case Format::f16x2: return write_words<Half, 4>(placed, s.by_num_vecs, begin, end);
        case Format::f16x1: return write_words<Half, 2>(placed, s.by_num_vecs, begin, end);
        case Format::bf16x8: return write_words<BFloat16, 16>(placed, s.by_num_vecs, begin, end);
        case Format::bf16x4: return write_words<BFloat16, 8>(placed, s.by_num_vecs, begin, end);
        case Format::bf16x2: return write_words<BFloat16, 4>(placed, s.by_num_vecs, begin, end);
        case Format::bf16x1: return write_words<BFloat16, 2>(placed, s.by_num_vecs, begin, end);
        case Format::raw16: return write_words<std::uint8_t, 16>(placed, s.by_num_vecs, begin, end);
        case Format::raw8: return write_words<std::uint8_t, 8>(placed, s.by_num_vecs, begin, end);
        case Format::raw4: return write_words<std::uint8_t, 4>(placed, s.by_num_vecs, begin, end);
        case Format::raw2: return write_words<std::uint8_t, 2>(placed, s.by_num_vecs, begin, end);
        case Format::raw1: return write_words<std::uint8_t, 1>(placed, s.by_num_vecs, begin, end);
    }
}

/// Where evenly spaced times would have the target, in [0, count - 1].
template <class Time>
__device__ inline std::int32_t guess_row(Time t, Time first, Time last, std::int64_t count) {
    if (!(first < t)) return 0;
    if (!(t < last)) return static_cast<std::int32_t>(count - 1);
    // Only a guess: an approximate quotient will do.
    const float share = __fdividef(static_cast<float>(distance(first, t)), static_cast<float>(distance(first, last)));
    const auto row = static_cast<std::int32_t>(share * static_cast<float>(count - 1));
    return row < count - 1 ? row : static_cast<std::int32_t>(count - 1);
}

/// Rows [begin, begin + count) of one episode's times in the shared memory of a warp.
template <class Time>
struct TimeWindow {
    const Time* times;
    std::int32_t begin;
    std::int32_t count;
};

/// Fetches, in one go, the times around all targets of a warp. Where they are about evenly spaced (or the episode is
/// short) that is all the search will need; who finds itself outside searches global memory instead.
template <class Time>
__device__ inline TimeWindow<Time> fetch_window(const EpisodeTimes<Time>& times, std::int32_t margin, Time t,
                                                bool active, Time* shared) {
    constexpr unsigned everyone = 0xffffffffU;
    const auto count = static_cast<std::int32_t>(times.count < INT32_MAX ? times.count : 0);
    if (count == 0) return {shared, 0, 0};
    std::int32_t low = 0;
    std::int32_t high = count;
    if (count > staged_times) {
        const std::int32_t row = guess_row(t, __ldg(times.data), __ldg(times.data + (count - 1) * times.stride), count);
        low = __reduce_min_sync(everyone, active ? row : INT32_MAX) - margin;
        high = __reduce_max_sync(everyone, active ? row : 0) + margin + 3;
        low = low < 0 ? 0 : low;
        high = high > count ? count : high;
        if (high - low > staged_times) return {shared, 0, 0};
    }
#pragma unroll 4
    for (std::int32_t i = threadIdx.x % warp_size; i < high - low; i += warp_size) {
        shared[i] = __ldg(times.data + (low + i) * times.stride);
    }
    __syncwarp();
    return {shared, low, high - low};
}

/// Neighbours and sample of one target. Inside the window and away from its ends everything is in shared memory.
template <class Compute, class Time>
__device__ inline Sample sample_in(const DeviceStream& s, const EpisodeTimes<Time>& times,
                                   const TimeWindow<Time>& window, Time t, std::int64_t& left) {
    const std::int32_t count = window.count;
    if (count > 0 && window.times[0] <= t && t < window.times[count - 1]) {
        std::int32_t low = 0;  // window.times[low] <= t < window.times[high]
        std::int32_t high = count - 1;
        while (low + 1 < high) {
            const std::int32_t middle = (low + high) / 2;
            if (window.times[middle] <= t) {
                low = middle;
            } else {
                high = middle;
            }
        }
        left = window.begin + low;
        const Time t_left = window.times[low];
        const Time t_right = window.times[low + 1];
        const bool last = left + 2 >= times.count;
        if (last || (low + 2 < count && window.times[low + 2] != t_right)) {  // else times may repeat: look further
            return sample_inside<Compute>(t, {left, left + 1, t_left == t}, t_left, t_right, s.method, s.rules);
        }
    } else {
        left = search_by_guess(times, t);
    }
    return sample_at(times, t, neighbours_of(times, t, left), s.method, s.rules);
}

__device__ inline void put_row(const DeviceStream& s, const Sample& sample, const char* values, bool wide,
                               PlacedRow& placed) {
    if (sample.kind == Kind::nan) {
        placed.set_weight(__longlong_as_double(0x7ff8000000000000LL), wide);
        return;
    }
    placed.a = values + sample.rows[0] * s.value_row_stride;
    if (sample.kind != Kind::blend) return;
    placed.b = values + sample.rows[1] * s.value_row_stride;
    placed.set_weight(sample.weight, wide);
}

/// A warp works alone: it finds its targets, one per lane, then moves their rows. Warps that search and warps that move
/// share a multiprocessor without waiting for each other.
template <class Time, int capacity>
__global__ __launch_bounds__(block_threads, 6) void align_rows(const __grid_constant__ DeviceTable<capacity> table) {
    __shared__ PlacedRow placed_of_warp[warps_per_block][warp_size];
    __shared__ Time times_of_warp[warps_per_block][staged_times];
    const int warp = threadIdx.x / warp_size;
    const int lane = threadIdx.x % warp_size;
    const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * warps_per_block + warp;
    if (number >= table.num_tiles) return;
    const DeviceQuery& q = table.query;
    const DeviceStream& s = stream_of(table, number);
    const Tile tile = tile_of(s, q, number);
    const bool active = lane < tile.count();
    const std::int32_t r = tile.num_rows == 1 || !active ? 0 : lane / tile.num_targets;
    const std::int64_t b = tile.first_row + r;
    const std::int64_t j = active ? tile.first_target + (lane - r * tile.num_targets) : tile.first_target;
    const Time t = add_time(target_at<Time>(q, b, j), duration_as<Time>(s.latency));
    const DeviceEpisode<Time> episode = episode_at<Time>(s, q, b);
    TimeWindow<Time> window{times_of_warp[warp], 0, 0};
    if (tile.num_rows == 1) window = fetch_window(episode.times, s.window_margin, t, active, times_of_warp[warp]);
    if (active) {
        std::int64_t left = -1;
        char* out = s.out + b * s.out_row_stride + j * s.out_target_stride;
        bool valid = false;
        PlacedRow& placed = placed_of_warp[warp][lane];
        placed.a = nullptr;
        placed.b = nullptr;
        placed.out = out;
        placed.weight_f64 = 0.0;
        if (episode.times.count > 0) {
            const bool wide = s.format == Format::f64x2 || s.format == Format::f64x1;
            const Sample sample = wide ? sample_in<double>(s, episode.times, window, t, left)
                                       : sample_in<float>(s, episode.times, window, t, left);
            put_row(s, sample, episode.values, wide, placed);
            valid = sample.valid;
        }
        if (tile.part == 0) write_planes(s, b, j, left < 0 ? -1 : episode.first_row + left, valid);
    }
    __syncwarp();
    const std::uint32_t total = static_cast<std::uint32_t>(tile.count()) * s.num_vecs;
    const std::uint32_t share = s.parts == 1 ? total : (total + s.parts - 1) / s.parts;
    const std::uint32_t begin = share * tile.part;
    write_format(s, placed_of_warp[warp], begin, begin + share < total ? begin + share : total);
}

}  // namespace robocache::align_detail
