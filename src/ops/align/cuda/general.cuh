// Every method, every dtype in and out, channel ranges, any strides; one stream per launch. A thread finds one target,
// then all of them write the rows, element by element (quaternion by quaternion).
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/contract/windows.hpp"
#include "ops/align/cuda/channels.cuh"

namespace robocache::align_detail {

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

/// Floating values.
template <class T>
struct FloatsOf {
    using Value = T;

    __device__ explicit FloatsOf(DType) {}
    __device__ static T read(const char* row, std::int64_t channel) { return reinterpret_cast<const T*>(row)[channel]; }
    __device__ static T zero() { return T{}; }
    __device__ static void write(char* to, T x) { *reinterpret_cast<T*>(to) = x; }
    __device__ static void write_as(DType dtype, char* to, T x) { store_element(dtype, to, widen(x)); }
};

/// Integers of one size. Unsigned ones are read with their highest bit flipped, as signed ones in the same order, so
/// that they need no instances of their own.
template <class T>
struct IntegersOf {
    using Value = T;  // signed
    using Unsigned = std::make_unsigned_t<T>;
    Unsigned flip;

    __device__ explicit IntegersOf(DType dtype) : flip(0) {
        const bool is_signed = dtype >= DType::i8 && dtype <= DType::i64;
        if (!is_signed) flip = static_cast<Unsigned>(Unsigned{1} << (8 * sizeof(T) - 1));
    }
    __device__ T read(const char* row, std::int64_t channel) const {
        return static_cast<T>(reinterpret_cast<const Unsigned*>(row)[channel] ^ flip);
    }
    __device__ T zero() const { return static_cast<T>(flip); }
    __device__ void write(char* to, T x) const {
        *reinterpret_cast<Unsigned*>(to) = static_cast<Unsigned>(static_cast<Unsigned>(x) ^ flip);
    }
    __device__ void write_as(DType dtype, char* to, T x) const {
        if (flip == 0) return convert(dtype, to, x);
        convert(dtype, to, static_cast<Unsigned>(static_cast<Unsigned>(x) ^ flip));
    }

private:
    template <class Number>
    __device__ static void convert(DType dtype, char* to, Number x) {
        if (dtype == DType::f64) return store_element(dtype, to, static_cast<double>(x));
        store_element(dtype, to, widen(x));
    }
};

/// One value, unchanged or in another floating dtype.
template <class Values>
__device__ inline void store_value(const GeneralTable& table, const Values& values, char* to,
                                   typename Values::Value x) {
    if (table.out_dtype == table.values_dtype) return values.write(to, x);
    values.write_as(table.out_dtype, to, x);
}

template <class Values>
__device__ inline typename Values::Value value_at(const GeneralTable& table, const Values& values,
                                                  const PlacedSample& p, std::int64_t row, std::int64_t channel) {
    return values.read(p.values + row * table.stream.value_row_stride, channel);
}

template <class Values, class Time>
__device__ inline void write_window(const GeneralTable& table, const Values& values, const PlacedSample& p,
                                    Method method, std::int64_t channel, char* to) {
    const EpisodeTimes<Time> times{static_cast<const Time*>(p.times), table.stream.time_row_stride, p.time_count};
    with_window<typename Values::Value>(method, [&](auto window) {
        double count = 0;
        for (std::int64_t row = p.sample.rows[0]; row < p.sample.rows[1]; ++row) {
            if (is_passed_over(times, row)) continue;
            window.add(value_at(table, values, p, row, channel), count == 0);
            count += 1;
        }
        if constexpr (decltype(window)::picks_row) {
            store_value(table, values, to, window.result(count));
        } else {
            store_element(table.out_dtype, to, window.result(count));
        }
    });
}

template <class Values>
__device__ inline void write_quaternion(const GeneralTable& table, const Values& values, const PlacedSample& p,
                                        std::int64_t channel, char* to) {
    const ChannelDim& inner = table.channels.inner;
    const auto value = [&](int side, int i) {
        const auto x = value_at(table, values, p, p.sample.rows[side], channel + i * inner.value_stride);
        return static_cast<double>(widen(x));
    };
    double a[4];
    double b[4];
    double result[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = value(0, i);
        b[i] = value(1, i);
    }
    blend_slerp(a, b, p.sample.weight, result);
    for (int i = 0; i < 4; ++i) store_element(table.out_dtype, to + i * inner.out_stride * table.out_bytes, result[i]);
}

template <class Values, class Time>
__device__ inline void write_element(const GeneralTable& table, const Values& values, const PlacedSample& p,
                                     Method method, std::int64_t channel, char* to) {
    using Value = typename Values::Value;
    const auto at = [&](std::int64_t row) { return value_at(table, values, p, row, channel); };
    switch (p.sample.kind) {
        case Kind::zero: return store_value(table, values, to, values.zero());
        case Kind::nan: return store_element(table.out_dtype, to, __longlong_as_double(0x7ff8000000000000LL));
        case Kind::row: return store_value(table, values, to, at(p.sample.rows[0]));
        case Kind::window: return write_window<Values, Time>(table, values, p, method, channel, to);
        default: break;
    }
    if constexpr (is_float<Value>) {
        using Compute = typename ComputeOf<Value>::type;
        const Compute left = widen(at(p.sample.rows[0]));
        const Compute right = widen(at(p.sample.rows[1]));
        const auto w = static_cast<Compute>(p.sample.weight);
        Compute result;
        if (p.sample.kind == Kind::cubic) {
            result =
                blend_cubic(left, right, Compute{widen(at(p.outer.before))}, Compute{widen(at(p.outer.after))}, w,
                            static_cast<Compute>(p.outer.weight_before), static_cast<Compute>(p.outer.weight_after));
        } else if (method == Method::angle) {
            result = blend_angle(left, right, w, static_cast<Compute>(table.period));
        } else {
            result = blend_linear(left, right, w);
        }
        store_element(table.out_dtype, to, result);
    }
}

/// All elements of one channel range for the targets of a tile.
template <class Values, class Time>
__device__ inline void write_range(const GeneralTable& table, const RangePlan& range, const PlacedSample* placed,
                                   std::int64_t count) {
    const Values values(table.values_dtype);
    const DeviceChannels& c = table.channels;
    const bool slerp = is_slerp(range.method);
    const std::int64_t unit = slerp ? 4 : 1;
    const std::int64_t units = range.width / unit;
    const std::int64_t per_target = units * c.outer_count;
    for (std::int64_t v = threadIdx.x; v < count * per_target; v += block_threads) {
        const std::int64_t k = v / per_target;
        const std::int64_t rest = v - k * per_target;
        const std::int64_t outer = rest / units;
        const ChannelOffsets at = offsets_of(c, outer, range.begin + (rest - outer * units) * unit);
        const PlacedSample& p = placed[k];
        char* to = p.out + at.out * table.out_bytes;
        if constexpr (is_float<typename Values::Value>) {
            if (slerp && p.sample.kind == Kind::blend) {
                write_quaternion(table, values, p, at.value, to);
                continue;
            }
        }
        for (std::int64_t i = 0; i < unit; ++i) {
            write_element<Values, Time>(table, values, p, range.method, at.value + i * c.inner.value_stride,
                                        to + i * c.inner.out_stride * table.out_bytes);
        }
    }
}

template <class Time>
__device__ inline void write_range_of_dtype(const GeneralTable& table, const RangePlan& range,
                                            const PlacedSample* placed, std::int64_t count) {
    switch (table.values_dtype) {
        case DType::boolean:
        case DType::u8:
        case DType::i8: return write_range<IntegersOf<std::int8_t>, Time>(table, range, placed, count);
        case DType::u16:
        case DType::i16: return write_range<IntegersOf<std::int16_t>, Time>(table, range, placed, count);
        case DType::u32:
        case DType::i32: return write_range<IntegersOf<std::int32_t>, Time>(table, range, placed, count);
        case DType::u64:
        case DType::i64: return write_range<IntegersOf<std::int64_t>, Time>(table, range, placed, count);
        case DType::f16: return write_range<FloatsOf<Half>, Time>(table, range, placed, count);
        case DType::bf16: return write_range<FloatsOf<BFloat16>, Time>(table, range, placed, count);
        case DType::f32: return write_range<FloatsOf<float>, Time>(table, range, placed, count);
        case DType::f64: return write_range<FloatsOf<double>, Time>(table, range, placed, count);
    }
}

template <class Time>
__global__ __launch_bounds__(block_threads, 2) void align_general(const __grid_constant__ GeneralTable table) {
    __shared__ PlacedSample placed[block_threads];
    wait_for_earlier_work();
    const DeviceStream& s = table.stream;
    const DeviceChannels& c = table.channels;
    const Tile tile = tile_at(table.tiling, table.query, blockIdx.x);
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
        found = find_target<Time>(s, table.query, b, j);
        placed[k].values = found.episode.values;
        placed[k].out = table.out + b * table.out_row_stride + j * table.out_target_stride;
        placed[k].times = found.episode.times.data;
        placed[k].time_count = found.episode.times.count;
    }
    for (int i = 0; i < c.num_ranges; ++i) {
        if (mine) {
            placed[k].sample = found.has_rows() ? sample_of(found.target, c.ranges[i].method, s.rules, placed[k].outer)
                                                : Sample{{0, 0}, 0.0, Kind::zero, false};
            valid = valid && placed[k].sample.valid;
        }
        __syncthreads();
        write_range_of_dtype<Time>(table, c.ranges[i], placed, tile.count());
        __syncthreads();
    }
    if (!mine) return;
    s.write_valid(b, j, valid);
    s.write_index(b, j, found.episode.first_row, found.target.near.left);
}

}  // namespace robocache::align_detail
