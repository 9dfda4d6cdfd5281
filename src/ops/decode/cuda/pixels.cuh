// The second kernel of decode: samples to finished pixels. One block per tile of the output: color, horizontal pass,
// vertical pass, finish, all in shared memory.
#pragma once

#include <cstdint>

#include "ops/decode/contract/finish.hpp"
#include "ops/decode/contract/resample.hpp"
#include "ops/decode/cuda/source.cuh"

namespace robocache::decode_detail {

/// Writes one pixel of the output.
template <class T, int channels>
__device__ inline void store_pixel(const DeviceCall& call, const DeviceJob& job, int x, int y, std::uint32_t pixel) {
    const Style& style = call.style;
    float values[channels];
#pragma unroll
    for (int c = 0; c < channels; ++c) values[c] = static_cast<float>(pixel >> (8 * c) & 255);
    if (style.has_factors) apply_factors<channels>(job.factors, values);
    const std::int64_t width = style.out_width;
    const std::int64_t num_pixels = width * style.out_height;
    const std::int64_t at = std::int64_t{y} * width + (job.flip != 0 ? width - 1 - x : x);
    T* out = static_cast<T*>(call.out) + std::int64_t{job.item} * num_pixels * channels;
    out += style.is_chw ? at : at * channels;
    const std::int64_t step = style.is_chw ? num_pixels : 1;
#pragma unroll
    for (int c = 0; c < channels; ++c) {
        out[c * step] = finished<T>(values[c], style.scaling.scale[c], style.scaling.offset[c]);
    }
}

/// Sums of weighted pixels, by channel.
template <int channels>
struct PixelSum {
    std::int32_t sums[channels];

    __device__ PixelSum() {
#pragma unroll
        for (int c = 0; c < channels; ++c) sums[c] = resample_start;
    }
    __device__ void add(std::uint32_t pixel, std::int32_t weight) {
#pragma unroll
        for (int c = 0; c < channels; ++c) sums[c] += static_cast<std::int32_t>(pixel >> (8 * c) & 255) * weight;
    }
    [[nodiscard]] __device__ std::uint32_t pixel() const {
        std::uint32_t packed = 0;
#pragma unroll
        for (int c = 0; c < channels; ++c) packed |= static_cast<std::uint32_t>(resampled(sums[c])) << (8 * c);
        return packed;
    }
};

/// Taps and weights of the output pixels [begin, begin + count) of an axis: two ints and `stride` weights each.
__device__ inline void load_weights(const ResampleAxis& axis, int begin, int count, int stride, int* first,
                                    std::int32_t* weights, int thread, int num_threads) {
    for (int i = thread; i < count; i += num_threads) {
        if (axis.in == axis.out) {  // every pixel stays as it is
            first[2 * i] = begin + i;
            first[2 * i + 1] = 1;
            weights[i * stride] = 1 << weight_bits;
            continue;
        }
        const Taps taps = taps_of(axis, begin + i);
        first[2 * i] = taps.first;
        first[2 * i + 1] = taps.count;
        const double total = total_weight(axis, taps);
        for (int k = 0; k < taps.count && k < stride; ++k) {
            weights[i * stride + k] = fixed_weight(tap_weight(axis, taps, k), total);
        }
    }
}

template <class T, int channels>
__global__ void __launch_bounds__(pixel_threads, pixel_blocks_per_sm)
    write_pixels(const __grid_constant__ DeviceCall call) {
    extern __shared__ uint4 shared[];
    auto* memory = reinterpret_cast<char*>(shared);
    const DeviceJob& job = call.jobs[find_job<&DeviceJob::first_tile>(call.jobs, call.num_jobs, blockIdx.x)];
    if (job.tile_width == 0) return;  // write_without_tiles does it
    const Style& style = call.style;
    const std::uint32_t tile = blockIdx.x - job.first_tile;
    const Box box = job.crop();
    const ResampleAxis along_x = resample_axis(box.x1 - box.x0, style.out_width, style.is_area);
    const ResampleAxis along_y = resample_axis(box.y1 - box.y0, style.out_height, style.is_area);
    __shared__ PixelSource source;
    if (threadIdx.x == 0) source.begin(call, job);
    __syncthreads();
    const auto tiles_x = static_cast<std::uint32_t>(ceil_div(style.out_width, job.tile_width));
    const int x0 = static_cast<int>(tile % tiles_x) * job.tile_width;
    const int y0 = static_cast<int>(tile / tiles_x) * job.tile_height;
    const int width = smaller(job.tile_width, style.out_width - x0);
    const int height = smaller(job.tile_height, style.out_height - y0);
    const TileLayout layout = tile_layout(along_x, along_y, job.tile_width, job.tile_height);
    auto* weights_x = reinterpret_cast<std::int32_t*>(memory + layout.weights_x);
    auto* weights_y = reinterpret_cast<std::int32_t*>(memory + layout.weights_y);
    auto* first_x = reinterpret_cast<int*>(memory + layout.first_x);
    auto* first_y = reinterpret_cast<int*>(memory + layout.first_y);
    auto* chunk = reinterpret_cast<std::uint32_t*>(memory + layout.chunk);
    auto* narrow = reinterpret_cast<std::uint32_t*>(memory + layout.narrow);
    const int thread = static_cast<int>(threadIdx.x);
    load_weights(along_x, x0, width, layout.taps_x, first_x, weights_x, thread, pixel_threads);
    load_weights(along_y, y0, height, layout.taps_y, first_y, weights_y, thread ^ (pixel_threads / 2), pixel_threads);
    __syncthreads();

    // Source pixels of the tile; columns begin at a multiple of 4.
    const int begin_x = (box.x0 + first_x[0]) & ~3;
    const int end_x = box.x0 + first_x[2 * (width - 1)] + first_x[2 * (width - 1) + 1];
    const int begin_y = box.y0 + first_y[0];
    const int end_y = box.y0 + first_y[2 * (height - 1)] + first_y[2 * (height - 1) + 1];
    const int num_fours = smaller((end_x - begin_x + 3) / 4, layout.region_width / 4);
    const int num_rows = smaller(end_y - begin_y, layout.region_height);
    // A warp has a row, a lane a column: tiles are at most as wide as a warp.
    const int lane = thread % warp_threads;
    const int warp = thread / warp_threads;
    const bool has_column = lane < width;
    const int first_tap = has_column ? box.x0 + first_x[2 * lane] - begin_x : 0;
    const int num_taps = has_column ? first_x[2 * lane + 1] : 0;
    const std::int32_t* column_weights = weights_x + lane * layout.taps_x;
    for (int first_row = 0; first_row < num_rows; first_row += chunk_rows) {
        const int rows = smaller(chunk_rows, num_rows - first_row);
        for (int row = warp; row < rows; row += pixel_threads / warp_threads) {
            auto* fours = reinterpret_cast<uint4*>(chunk + row * layout.region_width);
            for (int i = lane; i < num_fours; i += warp_threads) {
                fours[i] = source.four(begin_x + 4 * i, begin_y + first_row + row);
            }
        }
        __syncthreads();
        for (int row = warp; row < rows && has_column; row += pixel_threads / warp_threads) {
            const std::uint32_t* pixels = chunk + row * layout.region_width + first_tap;
            PixelSum<channels> sum;
            for (int k = 0; k < num_taps; ++k) sum.add(pixels[k], column_weights[k]);
            narrow[(first_row + row) * job.tile_width + lane] = sum.pixel();
        }
        __syncthreads();
    }
    for (int y = warp; y < height && has_column; y += pixel_threads / warp_threads) {
        const std::uint32_t* pixels = narrow + (box.y0 + first_y[2 * y] - begin_y) * job.tile_width + lane;
        PixelSum<channels> sum;
        for (int k = 0; k < first_y[2 * y + 1]; ++k) {
            sum.add(pixels[k * job.tile_width], weights_y[y * layout.taps_y + k]);
        }
        store_pixel<T, channels>(call, job, x0 + lane, y0 + y, sum.pixel());
    }
}

/// Pictures that are so much larger than the output that no tile fits: one thread per output pixel.
template <class T, int channels>
__global__ void __launch_bounds__(pixel_threads) write_without_tiles(const __grid_constant__ DeviceCall call) {
    const DeviceJob& job = call.jobs[find_job<&DeviceJob::first_tile>(call.jobs, call.num_jobs, blockIdx.x)];
    if (job.tile_width != 0) return;
    __shared__ PixelSource source;
    if (threadIdx.x == 0) source.begin(call, job);
    __syncthreads();
    const Style& style = call.style;
    const std::int64_t i = std::int64_t{blockIdx.x - job.first_tile} * pixel_threads + threadIdx.x;
    if (i >= std::int64_t{style.out_width} * style.out_height) return;
    const int x = static_cast<int>(i % style.out_width);
    const int y = static_cast<int>(i / style.out_width);
    const Box box = job.crop();
    const ResampleAxis along_x = resample_axis(box.x1 - box.x0, style.out_width, style.is_area);
    const ResampleAxis along_y = resample_axis(box.y1 - box.y0, style.out_height, style.is_area);
    const Taps columns = taps_of(along_x, x);
    const Taps rows = taps_of(along_y, y);
    const double total_x = total_weight(along_x, columns);
    const double total_y = total_weight(along_y, rows);
    PixelSum<channels> sum;
    for (int r = 0; r < rows.count; ++r) {
        PixelSum<channels> row;
        for (int c = 0; c < columns.count; ++c) {
            const std::uint32_t pixel = source.one(box.x0 + columns.first + c, box.y0 + rows.first + r);
            row.add(pixel, fixed_weight(tap_weight(along_x, columns, c), total_x));
        }
        sum.add(row.pixel(), fixed_weight(tap_weight(along_y, rows, r), total_y));
    }
    store_pixel<T, channels>(call, job, x, y, sum.pixel());
}

}  // namespace robocache::decode_detail
