// The inner loops of voxelize on the CPU: the part that is compiled once per instruction set.
//
// Word is std::uint32_t, or std::uint64_t where there are 2^32 cells or points: keys, point numbers and counts have it.
#pragma once

#include <cstdint>

#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/contract/source.hpp"

// Before a loop: iterations do not depend on each other. Clang does not know the pragma and finds out by itself.
#ifdef __clang__
#define ROBOCACHE_IVDEP
#else
#define ROBOCACHE_IVDEP _Pragma("GCC ivdep")
#endif

namespace robocache::voxelize_detail {

/// Keys and buckets for `count` points of one cloud. Of points in no cell, keys mean nothing.
template <class Word>
struct KeyJob {
    CellGrid<float> cells;
    Word first;     // the key of cell (0, 0, 0); wraps around where that cell is not one of the grid
    Word x_stride;  // from a cell to the next along x
    Word y_stride;
    int shift;           // bucket = key >> shift
    std::uint32_t none;  // the bucket of points in no cell
    std::int64_t count;
    Word* keys;
    std::uint32_t* buckets;
};

/// Contiguous pixels of a row of a depth image, the first being (v, u).
struct PixelRow {
    const void* raw;
    float unit;
    float max_depth;
    Camera camera;
    std::int64_t u;
    std::int64_t v;
};

/// Smallest and largest place of a point inside, by axis.
struct Bounds {
    float low[3];
    float high[3];
};

/// A point of a bucket: its cell, counted from the bucket's first, and its number.
template <class Word>
struct Entry {
    Word local;
    Word index;
};

/// Where the features of point i are.
struct FeatureRows {
    const char* data;
    DType dtype;
    std::int64_t channels;
    std::int64_t row_stride;  // bytes
    std::int64_t channel_stride;
    const DepthPlan* pixels;  // not null: by the pixel's four strides instead
    std::int64_t strides[4];

    ROBOCACHE_HD const char* row(std::int64_t i) const {
        return pixels == nullptr ? data + i * row_stride : data + pixel_offset(strides, pixel_of(*pixels, i));
    }
};

/// The points of a bucket, in input order, and their features. Accumulators have one row of channels for each cell.
template <class Word>
struct RowJob {
    const Entry<Word>* entries;
    std::int64_t count;
    const Entry<Word>* next;  // entries of the job after this one, whose features may be fetched ahead
    std::int64_t num_next;
    FeatureRows features;
};

/// Accumulators to the output, for `num_cells` cells.
template <class Word>
struct FinishJob {
    Reduction reduction;
    const Word* counts;
    std::int64_t num_cells;
    std::int64_t channels;
    float fill;
    void* out;
    DType out_dtype;
    bool non_temporal;  // the whole output is too large for them
};

/// The words and sums of Rounds, each in an array of its own: one number for each channel of each cell.
struct Planes {
    std::uint32_t* words[max_words];
    std::int64_t* sums[max_sums];
};

/// Rounds over the points of a bucket.
template <class Word>
struct CpuRounds {
    int num_words;
    int num_sums;
    void (*look)(const RowJob<Word>& job, Reduction reduction, const Planes& planes);
    void (*add)(const RowJob<Word>& job, const Word* counts, const Planes& planes);  // null: there is one look only
    void (*finish)(const FinishJob<Word>& job, const Planes& planes);
};

template <class Word>
struct CpuKernels {
    /// All three return how many points were dropped. xyz: contiguous rows; the grid's limits fit 31 bits.
    std::int64_t (*keys_of_points)(const float* xyz, const KeyJob<Word>& job);
    std::int64_t (*keys_of_u16)(const PixelRow& row, const KeyJob<Word>& job);
    std::int64_t (*keys_of_f32)(const PixelRow& row, const KeyJob<Word>& job);
    void (*bounds_of_points)(const float* xyz, std::int64_t count, const CellGrid<float>& cells, Bounds& bounds);

    CpuRounds<Word> rounds[num_sums_kinds];  // by Sums
};

const CpuKernels<std::uint32_t>& kernels_baseline(std::uint32_t);
const CpuKernels<std::uint64_t>& kernels_baseline(std::uint64_t);
const CpuKernels<std::uint32_t>& kernels_x86_64_v3(std::uint32_t);
const CpuKernels<std::uint64_t>& kernels_x86_64_v3(std::uint64_t);

/// The best of them here.
template <class Word>
const CpuKernels<Word>& cpu_kernels();

}  // namespace robocache::voxelize_detail
