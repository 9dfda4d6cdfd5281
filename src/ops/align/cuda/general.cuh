// Every method, every dtype in and out, channel ranges, any strides; one stream per launch. A thread finds one target,
// then all of them write the rows, element by element (quaternion by quaternion).
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/contract/windows.hpp"
#include "ops/align/cuda/search.cuh"
#include "ops/align/cuda/tuning.hpp"

namespace robocache::align_detail {

/// How targets are cut into tiles, one for each block: targets of one row of the query, or whole rows.
struct Tiling {
    std::int64_t tiles_per_row;
    std::int32_t targets;  // of one row in a tile
    std::int32_t rows;     // of the query in a tile; above 1 only if a tile takes all targets of a row
};

/// The targets of a block.
struct Tile {
    std::int64_t first_row;     // b
    std::int64_t first_target;  // j
    std::int32_t num_rows;
    std::int32_t num_targets;  // of each row

    __device__ std::int32_t count() const { return num_rows * num_targets; }
};

__device__ __forceinline__ Tile tile_at(const Tiling& tiling, const DeviceQuery& q, std::int64_t number) {
    const std::int64_t group = number / tiling.tiles_per_row;
    const std::int64_t row = group * tiling.rows;
    const std::int64_t target = (number - group * tiling.tiles_per_row) * tiling.targets;
    const std::int64_t rows_left = q.num_rows - row;
    const std::int64_t targets_left = q.num_targets - target;
    return {row, target, static_cast<std::int32_t>(rows_left < tiling.rows ? rows_left : tiling.rows),
            static_cast<std::int32_t>(targets_left < tiling.targets ? targets_left : tiling.targets)};
}

/// A target, the episode it is in, and its neighbors there.
template <class Time>
struct FoundTarget {
    DeviceEpisode<Time> episode;
    EpisodeTimes<Time> times;
    Time t;
    Neighbors near;
};

template <class Time>
__device__ __forceinline__ FoundTarget<Time> find_target(const DeviceStream& s, const DeviceQuery& q, std::int64_t b,
                                                         std::int64_t j) {
    FoundTarget<Time> found{};
    found.episode = s.episode<Time>(q.episode_of(s, b));
    found.times = found.episode.times;
    found.t = q.target<Time>(b, j, duration_as<Time>(s.latency));
    found.near = {-1, -1, false};
    if (found.times.count == 0) return found;
    found.near = neighbors_of(found.times, found.t, search_by_guess(found.times, found.t), gap_as<Time>(s.tolerance));
    return found;
}

struct DeviceChannels {
    RangePlan ranges[max_ranges];
    ChannelDim outer[TensorView::max_rank];
    ChannelDim inner;
    std::int64_t outer_count;
    double period;
    std::int32_t num_ranges;
    std::int32_t num_outer;
    DType values_dtype;
    DType out_dtype;
};

struct GeneralTable {
    DeviceQuery query;
    DeviceStream stream;
    char* out;
    std::int64_t out_row_stride;     // bytes
    std::int64_t out_target_stride;  // bytes
    Tiling tiling;
    DeviceChannels channels;
};

/// One target in shared memory.
struct PlacedSample {
    Sample sample;
    OuterRows outer;
    const char* values;
    char* out;
    const void* times;
    std::int64_t time_count;
};

template <class Compute>
__device__ inline void store_element(DType dtype, char* to, Compute x) {
    switch (dtype) {
        case DType::f32: *reinterpret_cast<float*>(to) = narrow<float>(x); return;
        case DType::f64: *reinterpret_cast<double*>(to) = narrow<double>(x); return;
        case DType::f16: *reinterpret_cast<Half*>(to) = narrow<Half>(x); return;
        case DType::bf16: *reinterpret_cast<BFloat16*>(to) = narrow<BFloat16>(x); return;
        default: return;  // the contract lets no other dtype through
    }
}

/// One value, unchanged or in another floating dtype.
template <class T>
__device__ inline void store_value(const DeviceChannels& c, char* to, T x) {
    if (c.out_dtype == c.values_dtype) {
        *reinterpret_cast<T*>(to) = x;
        return;
    }
    if constexpr (sizeof(T) == 8 && !is_float<T>) {
        if (c.out_dtype == DType::f64) return store_element(c.out_dtype, to, static_cast<double>(x));
    }
    store_element(c.out_dtype, to, widen(x));
}

template <class T>
__device__ inline T value_at(const DeviceStream& s, const PlacedSample& p, std::int64_t row, std::int64_t channel) {
    return reinterpret_cast<const T*>(p.values + row * s.value_row_stride)[channel];
}

template <class T, class Time>
__device__ inline void write_window(const DeviceStream& s, const DeviceChannels& c, const PlacedSample& p,
                                    Method method, std::int64_t channel, char* to) {
    const EpisodeTimes<Time> times{static_cast<const Time*>(p.times), s.time_row_stride, p.time_count};
    with_window<T>(method, [&](auto window) {
        double count = 0;
        for (std::int64_t row = p.sample.rows[0]; row < p.sample.rows[1]; ++row) {
            if (is_passed_over(times, row)) continue;
            window.add(value_at<T>(s, p, row, channel), count == 0);
            count += 1;
        }
        if constexpr (decltype(window)::picks_row) {
            store_value(c, to, window.result(count));
        } else {
            store_element(c.out_dtype, to, window.result(count));
        }
    });
}

template <class T>
__device__ inline void write_quaternion(const DeviceStream& s, const DeviceChannels& c, const PlacedSample& p,
                                        std::int64_t channel, char* to) {
    double a[4];
    double b[4];
    double result[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = static_cast<double>(widen(value_at<T>(s, p, p.sample.rows[0], channel + i * c.inner.value_stride)));
        b[i] = static_cast<double>(widen(value_at<T>(s, p, p.sample.rows[1], channel + i * c.inner.value_stride)));
    }
    blend_slerp(a, b, p.sample.weight, result);
    for (int i = 0; i < 4; ++i)
        store_element(c.out_dtype, to + i * c.inner.out_stride * element_bytes(c.out_dtype), result[i]);
}

template <class T, class Time>
__device__ inline void write_element(const DeviceStream& s, const DeviceChannels& c, const PlacedSample& p,
                                     Method method, std::int64_t channel, char* to) {
    using Compute = typename ComputeOf<T>::type;
    switch (p.sample.kind) {
        case Kind::zero: return store_value(c, to, T{});
        case Kind::nan: return store_element(c.out_dtype, to, __longlong_as_double(0x7ff8000000000000LL));
        case Kind::row: return store_value(c, to, value_at<T>(s, p, p.sample.rows[0], channel));
        case Kind::window: return write_window<T, Time>(s, c, p, method, channel, to);
        default: break;
    }
    if constexpr (is_float<T>) {
        const Compute left = widen(value_at<T>(s, p, p.sample.rows[0], channel));
        const Compute right = widen(value_at<T>(s, p, p.sample.rows[1], channel));
        const auto w = static_cast<Compute>(p.sample.weight);
        Compute result;
        if (p.sample.kind == Kind::cubic) {
            const Compute before = widen(value_at<T>(s, p, p.outer.before, channel));
            const Compute after = widen(value_at<T>(s, p, p.outer.after, channel));
            result = blend_cubic(left, right, before, after, w, static_cast<Compute>(p.outer.weight_before),
                                 static_cast<Compute>(p.outer.weight_after));
        } else if (method == Method::angle) {
            result = blend_angle(left, right, w, static_cast<Compute>(c.period));
        } else {
            result = blend_linear(left, right, w);
        }
        store_element(c.out_dtype, to, result);
    }
}

/// All elements of one channel range for the targets of a tile.
template <class T, class Time>
__device__ inline void write_range(const DeviceStream& s, const DeviceChannels& c, const RangePlan& range,
                                   const PlacedSample* placed, std::int64_t count) {
    const bool slerp = is_slerp(range.method);
    const std::int64_t unit = slerp ? 4 : 1;
    const std::int64_t units = range.width / unit;
    const std::int64_t per_target = units * c.outer_count;
    for (std::int64_t v = threadIdx.x; v < count * per_target; v += block_threads) {
        const std::int64_t k = v / per_target;
        std::int64_t rest = v - k * per_target;
        std::int64_t outer = rest / units;
        const std::int64_t inner = range.begin + (rest - outer * units) * unit;
        std::int64_t value_offset = inner * c.inner.value_stride;
        std::int64_t out_offset = inner * c.inner.out_stride;
        for (int d = c.num_outer - 1; d >= 0; --d) {
            const std::int64_t i = outer % c.outer[d].size;
            outer /= c.outer[d].size;
            value_offset += i * c.outer[d].value_stride;
            out_offset += i * c.outer[d].out_stride;
        }
        const PlacedSample& p = placed[k];
        char* to = p.out + out_offset * element_bytes(c.out_dtype);
        if constexpr (is_float<T>) {
            if (slerp && p.sample.kind == Kind::blend) {
                write_quaternion<T>(s, c, p, value_offset, to);
                continue;
            }
        }
        for (std::int64_t i = 0; i < unit; ++i) {
            write_element<T, Time>(s, c, p, range.method, value_offset + i * c.inner.value_stride,
                                   to + i * c.inner.out_stride * element_bytes(c.out_dtype));
        }
    }
}

template <class Time>
__device__ inline void write_range_of_dtype(const DeviceStream& s, const DeviceChannels& c, const RangePlan& range,
                                            const PlacedSample* placed, std::int64_t count) {
    switch (c.values_dtype) {
        case DType::boolean:
        case DType::u8: return write_range<std::uint8_t, Time>(s, c, range, placed, count);
        case DType::u16: return write_range<std::uint16_t, Time>(s, c, range, placed, count);
        case DType::u32: return write_range<std::uint32_t, Time>(s, c, range, placed, count);
        case DType::u64: return write_range<std::uint64_t, Time>(s, c, range, placed, count);
        case DType::i8: return write_range<std::int8_t, Time>(s, c, range, placed, count);
        case DType::i16: return write_range<std::int16_t, Time>(s, c, range, placed, count);
        case DType::i32: return write_range<std::int32_t, Time>(s, c, range, placed, count);
        case DType::i64: return write_range<std::int64_t, Time>(s, c, range, placed, count);
        case DType::f16: return write_range<Half, Time>(s, c, range, placed, count);
        case DType::bf16: return write_range<BFloat16, Time>(s, c, range, placed, count);
        case DType::f32: return write_range<float, Time>(s, c, range, placed, count);
        case DType::f64: return write_range<double, Time>(s, c, range, placed, count);
    }
}

/// The sample of one target for one method.
template <class Time>
__device__ inline Sample sample_by(const DeviceStream& s, const DeviceQuery& q, const FoundTarget<Time>& found,
                                   std::int64_t b, std::int64_t j, Method method, OuterRows& outer) {
    const EpisodeTimes<Time>& times = found.times;
    if (times.count == 0) return {{0, 0}, 0.0, Kind::zero, false};
    if (is_window(method)) {
        const Time latency = duration_as<Time>(s.latency);
        const bool has_earlier = j > 0;
        const bool has_later = j + 1 < q.num_targets;
        const Time earlier = has_earlier ? q.target<Time>(b, j - 1, latency) : found.t;
        const Time later = has_later ? q.target<Time>(b, j + 1, latency) : found.t;
        return sample_window(times, found.t, earlier, later, has_earlier, has_later, found.near, s.rules);
    }
    Sample sample = sample_at(times, found.t, found.near, method, s.rules);
    if (method == Method::cubic && sample.kind == Kind::blend && !found.near.outside()) {
        outer = widen_to_cubic(times, found.t, sample);
    }
    return sample;
}

template <class Time>
__global__ __launch_bounds__(block_threads, 2) void align_general(const __grid_constant__ GeneralTable table) {
    __shared__ PlacedSample placed[block_threads];
    wait_for_earlier_work();
    const DeviceQuery& q = table.query;
    const DeviceStream& s = table.stream;
    const DeviceChannels& c = table.channels;
    const Tile tile = tile_at(table.tiling, q, blockIdx.x);
    const auto k = static_cast<std::int32_t>(threadIdx.x);
    const bool mine = k < tile.count();
    std::int64_t b = 0;
    std::int64_t j = 0;
    FoundTarget<Time> found{};
    bool valid = true;
    if (mine) {
        const std::int32_t r = k / tile.num_targets;
        b = tile.first_row + r;
        j = tile.first_target + (k - r * tile.num_targets);
        found = find_target<Time>(s, q, b, j);
        placed[k].values = found.episode.values;
        placed[k].out = table.out + b * table.out_row_stride + j * table.out_target_stride;
        placed[k].times = found.episode.times.data;
        placed[k].time_count = found.times.count;
    }
    for (int i = 0; i < c.num_ranges; ++i) {
        if (mine) {
            placed[k].sample = sample_by(s, q, found, b, j, c.ranges[i].method, placed[k].outer);
            valid = valid && placed[k].sample.valid;
        }
        __syncthreads();
        write_range_of_dtype<Time>(s, c, c.ranges[i], placed, tile.count());
        __syncthreads();
    }
    if (!mine) return;
    s.write_valid(b, j, valid);
    s.write_index(b, j, found.episode.first_row, found.near.left);
}

}  // namespace robocache::align_detail
