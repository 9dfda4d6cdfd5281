// What the kernels of decode have in common: their parameters, the planes, and finding the picture of a block.
#pragma once

#include <cstdint>

#include "ops/decode/contract/color.hpp"
#include "ops/decode/contract/plan.hpp"
#include "ops/decode/cuda/schedule.hpp"

namespace robocache::decode_detail {

/// Pointers and sizes of one call.
struct DeviceCall {
    const std::uint8_t* bytes;
    std::int64_t num_bytes;
    const std::int64_t* offsets;
    IndexView index;
    const DeviceJob* jobs;
    std::uint32_t num_jobs;
    std::uint32_t num_jpeg;
    std::uint8_t* planes;
    Style style;
    void* out;
};

/// The bytes of a picture: always inside the buffer of the caller, whatever the offsets are, and at most
/// record.num_bytes.
struct PictureBytes {
    const std::uint8_t* data;
    std::uint32_t size;
};

__device__ inline PictureBytes picture_bytes(const DeviceCall& call, const DeviceJob& job) {
    std::int64_t begin = call.offsets[job.row];
    std::int64_t end = call.offsets[job.row + 1];
    begin = begin < 0 ? 0 : (begin > call.num_bytes ? call.num_bytes : begin);
    end = end < begin ? begin : (end > call.num_bytes ? call.num_bytes : end);
    const std::int64_t size = end - begin;
    return {call.bytes + begin, size < job.record.num_bytes ? static_cast<std::uint32_t>(size) : job.record.num_bytes};
}

/// The last of `count` jobs whose `first` is at most `at`. There is one: the first begins at 0.
template <std::uint32_t DeviceJob::* first>
__device__ inline std::uint32_t find_job(const DeviceJob* jobs, std::uint32_t count, std::uint32_t at) {
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (jobs[middle].*first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

__device__ inline int num_stored(const Style& style, const PictureRecord& record) {
    return style.channels == 1 && record.color != ColorSpace::rgb ? 1 : record.num_components;
}

/// The samples of a component under a crop, in blocks of 8 x 8: 64 bytes each, so that a block is written whole.
struct DevicePlane {
    std::uint8_t* data;
    int x0, y0, x1, y1;  // samples that are there
    int blocks_x;        // per row of blocks

    [[nodiscard]] __device__ std::uint8_t* at(int x, int y) const {
        const int i = x - x0;
        const int j = y - y0;
        const std::int64_t block = std::int64_t{j >> 3} * blocks_x + (i >> 3);
        return data + block * num_coefficients + ((j & 7) << 3) + (i & 7);
    }
    /// A sample; the nearest one that is there.
    [[nodiscard]] __device__ int operator()(int x, int y) const {
        return *at(clamped(x, x0, x1 - 1), clamped(y, y0, y1 - 1));
    }
};

__device__ inline DevicePlane plane_of(const DeviceCall& call, const DeviceJob& job, const Box& region, int c) {
    const PictureRecord& record = job.record;
    const std::int64_t num_mcus = std::int64_t{region.x1 - region.x0} * (region.y1 - region.y0);
    std::int64_t before = job.first_block;
    for (int i = 0; i < c; ++i) before += num_mcus * record.h[i] * record.v[i];
    DevicePlane plane;
    plane.data = call.planes + before * num_coefficients;
    plane.x0 = region.x0 * record.h[c] * block_size;
    plane.y0 = region.y0 * record.v[c] * block_size;
    plane.x1 = region.x1 * record.h[c] * block_size;
    plane.y1 = region.y1 * record.v[c] * block_size;
    plane.blocks_x = (region.x1 - region.x0) * record.h[c];
    return plane;
}

}  // namespace robocache::decode_detail
