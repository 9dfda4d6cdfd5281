// Searching and writing a tile on the CPU: the part of align that is compiled once per instruction set.
#pragma once

#include <cstdint>

#include "ops/align/contract/kernel.hpp"

namespace robocache::align_detail {

/// `count` targets of one stream and one channel range. Strides of rows in bytes, of channels in elements.
struct RowJob {
    const char* values;
    std::int64_t value_row_stride;
    std::int64_t value_channel_stride;
    DType values_dtype;
    char* out;
    std::int64_t out_target_stride;
    std::int64_t out_channel_stride;
    DType out_dtype;
    std::int64_t width;
    Method method;
    double period;
    const Sample* samples;
    const OuterRows* outer;  // cubic samples only
    std::int64_t count;
    /// Windows only: whether a later row of the same time replaces this one.
    bool (*is_replaced)(const void* times, std::int64_t row);
    const void* times;
};

/// As PlaceJob::hint: nothing is known.
inline constexpr std::int64_t no_hint = -2;

/// `count` targets to find in one episode, and the method (none of the windows) to sample them by.
template <class Time>
struct PlaceJob {
    EpisodeTimes<Time> times;
    const Time* t;
    std::int64_t count;
    Method method;
    Rules rules;
    /// Where the rows lie, for fetching them ahead; row_bytes: from a left row to the end of its right one.
    const char* values;
    std::int64_t row_stride;
    std::int64_t row_bytes;
    std::int64_t hint = no_hint;  // a row near the first target, or -1: just before the rows
    Gap<Time> tolerance = 0;
};

template <class Time>
using PlaceAll = void (*)(const PlaceJob<Time>& job, Neighbors* near, Sample* samples);

/// Both steps at once: float32, linear, rows of whole vectors of 32 bytes, 16-byte aligned, that nobody reads soon.
template <class Time>
using PlaceAndWrite = void (*)(const PlaceJob<Time>& job, const RowJob& rows, Neighbors* near, Sample* samples);

struct CpuKernels {
    void (*write_rows)(const RowJob&);
    void (*stream_out)(const char* from, std::int64_t count, char* to);
    PlaceAll<float> place_f32;
    PlaceAll<double> place_f64;
    PlaceAll<std::int64_t> place_i64;
    PlaceAndWrite<float> both_f32;
    PlaceAndWrite<double> both_f64;
    PlaceAndWrite<std::int64_t> both_i64;

    template <class Time>
    [[nodiscard]] PlaceAll<Time> place() const {
        return of_time<Time>(place_f32, place_f64, place_i64);
    }

    template <class Time>
    [[nodiscard]] PlaceAndWrite<Time> place_and_write() const {
        return of_time<Time>(both_f32, both_f64, both_i64);
    }

    template <class Time, class F32, class F64, class I64>
    static constexpr auto of_time(F32 f32, F64 f64, I64 i64) {
        if constexpr (sizeof(Time) == 4) {
            return f32;
        } else if constexpr (Time(0.5) == 0) {
            return i64;
        } else {
            return f64;
        }
    }
};

const CpuKernels& kernels_baseline();
const CpuKernels& kernels_x86_64_v3();

}  // namespace robocache::align_detail
