// Writing the rows of a tile on the CPU: the part of align that is compiled once per instruction set.
#pragma once

#include <cstdint>

#include "ops/align/kernel.hpp"

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
    std::int64_t count;
    /// Windows only: whether a later row of the same time replaces this one.
    bool (*is_replaced)(const void* times, std::int64_t row);
    const void* times;
};

using WriteRows = void (*)(const RowJob&);

void write_rows_baseline(const RowJob& job);
void write_rows_x86_64_v3(const RowJob& job);

}  // namespace robocache::align_detail
