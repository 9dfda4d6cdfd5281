// The list of occupied cells on CUDA. Bounded grids: a bit for each cell, and the number of bits before it is the
// cell's row. Unbounded or very large grids: sorted keys. Then points add to their rows. Allocates nothing and never
// waits.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "ops/voxelize/cuda/sparse/add.cuh"
#include "ops/voxelize/cuda/sparse/rows.cuh"

namespace robocache::voxelize_detail {
namespace {

bool by_bits(const SparsePlan& plan) {
    const std::int64_t most_cells = most_sparse_words * 32 / std::max<std::int64_t>(plan.num_clouds, 1);
    return plan.bounded() && plan.grid.num_cells <= most_cells;
}

std::int64_t num_words(const SparsePlan& plan) {
    return (plan.num_clouds * plan.grid.num_cells + 31) / 32;
}

/// Bits of the largest key; the bit above them means "no cell".
int bits_of_keys(const SparsePlan& plan) {
    if (!plan.bounded()) return plan.grid.key_bits.cloud_bits + 3 * plan.grid.key_bits.axis_bits;
    return ceil_log2(static_cast<std::uint64_t>(plan.num_clouds * plan.grid.num_cells));
}

std::int64_t most_rows(const SparsePlan& plan) {
    return std::min(plan.capacity, plan.num_points);
}

struct WordTerms {
    const std::uint32_t* words;
    bool are_bits;  // and not numbers
    __device__ std::uint32_t operator()(std::int64_t k) const {
        const std::uint32_t word = words[k];
        return are_bits ? static_cast<std::uint32_t>(__popc(word)) : word;
    }
};

struct IsFirst {
    const std::uint64_t* keys;  // sorted
    std::uint64_t no_key;
    __device__ std::uint32_t operator()(std::int64_t at) const {
        return keys[at] != no_key && (at == 0 || keys[at] != keys[at - 1]) ? 1 : 0;
    }
};

template <class Function>
auto terms(Function function) {
    return thrust::make_transform_iterator(thrust::make_counting_iterator<std::int64_t>(0), function);
}

// ---- CUB: with scratch null they only set its bytes -----------------------------------------------------------------

/// For each word, the sum of the words before it, or of their bits.
void sum_before(SparseSpace& space, const WordTerms& words, std::uint32_t* sums, std::int64_t num,
                cudaStream_t stream) {
    check_cuda(cub::DeviceScan::ExclusiveSum(space.scratch, space.scratch_bytes, terms(words), sums, num, stream),
               "voxelize_sparse: adding");
}

void rank_keys(SparseSpace& space, std::uint64_t no_key, std::int64_t num, cudaStream_t stream) {
    check_cuda(cub::DeviceScan::InclusiveSum(space.scratch, space.scratch_bytes,
                                             terms(IsFirst{space.sorted_keys, no_key}), space.ranks, num, stream),
               "voxelize_sparse: counting cells");
}

void sort_keys(SparseSpace& space, std::int64_t num, int bits, cudaStream_t stream) {
    check_cuda(cub::DeviceRadixSort::SortPairs(space.scratch, space.scratch_bytes, space.keys, space.sorted_keys,
                                               space.points, space.sorted_points, num, 0, bits, stream),
               "voxelize_sparse: sorting");
}

/// Bits of the keys of KeyRows: rows, and one more for points without a row.
int bits_of_rows(const SparsePlan& plan) {
    return std::max(1, ceil_log2(static_cast<std::uint64_t>(most_rows(plan)) + 1));
}

SparseSpace cut(const SparsePlan& plan, Cutter& cutter) {
    SparseSpace space;
    const std::int64_t n = plan.num_points;
    const std::int64_t rows = most_rows(plan);
    const bool bits = by_bits(plan);
    std::size_t scratch_bytes = 0;
    const auto size = [&](auto call, auto... arguments) {
        call(space, arguments..., cudaStream_t{});
        scratch_bytes = std::max(scratch_bytes, space.scratch_bytes);
    };
    if (bits) {
        space.bits = cutter.take<std::uint32_t>(num_words(plan));
        space.before = cutter.take<std::uint32_t>(num_words(plan));
        size(sum_before, WordTerms{space.bits, true}, space.before, num_words(plan));
    } else {
        space.ranks = cutter.take<std::uint32_t>(n);
        size(rank_keys, std::uint64_t{0}, n);
        size(sort_keys, n, bits_of_keys(plan) + 1);
    }
    space.rows = cutter.take<std::uint32_t>(n);
    const std::int64_t before_counts = cutter.used();
    space.counts = cutter.take<std::uint32_t>(rows);
    if (plan.out != nullptr || plan.features.num_channels > 0) {
        const std::int64_t channels = rows * plan.features.num_channels;
        with_sums(sums_of(plan.reduction, plan.deterministic), [&](auto tag) {
            using R = Rounds<decltype(tag)::sums>;
            for (int i = 0; i < R::num_words; ++i) space.words[i] = cutter.take<std::uint32_t>(channels);
            for (int i = 0; i < R::num_sums; ++i) space.numbers[i] = cutter.take<std::int64_t>(channels);
        });
    }
    space.to_clear = cutter.used() - before_counts;
    if (!bits || plan.max_points > 0) {
        space.keys = cutter.take<std::uint64_t>(n);
        space.sorted_keys = cutter.take<std::uint64_t>(n);
        space.points = cutter.take<std::uint32_t>(n);
        space.sorted_points = cutter.take<std::uint32_t>(n);
    }
    if (plan.max_points > 0) {
        space.starts = cutter.take<std::uint32_t>(rows);
        size(sum_before, WordTerms{space.counts, false}, space.starts, rows);
        size(sort_keys, n, bits_of_rows(plan));
    }
    space.scratch_bytes = scratch_bytes;
    space.scratch = cutter.take<char>(static_cast<std::int64_t>(scratch_bytes));
    return space;
}

void clear(void* data, std::int64_t bytes, cudaStream_t stream) {
    if (bytes == 0 || data == nullptr) return;
    check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream), "voxelize_sparse: clearing");
}

template <bool is_f32>
void find_rows_by_bits(SparseJob& job, cudaStream_t stream) {
    const std::int64_t n = job.plan.num_points;
    clear(job.space.bits, 4 * job.num_words, stream);
    for_each(n, MarkCells<is_f32>{job}, stream, "voxelize_sparse: marking cells");
    sum_before(job.space, {job.space.bits, true}, job.space.before, job.num_words, stream);
    for_each(n, FindRows<is_f32>{job}, stream, "voxelize_sparse: finding rows");
}

void find_rows_by_sorting(SparseJob& job, cudaStream_t stream) {
    const std::int64_t n = job.plan.num_points;
    for_each(n, MakeKeys{job}, stream, "voxelize_sparse: making keys");
    sort_keys(job.space, n, bits_of_keys(job.plan) + 1, stream);
    rank_keys(job.space, job.no_key, n, stream);
    for_each(n, ListKeys{job}, stream, "voxelize_sparse: listing keys");
}

void find_first_points(SparseJob& job, cudaStream_t stream) {
    const std::int64_t n = job.plan.num_points;
    for_each(n, KeyRows{job}, stream, "voxelize_sparse: making keys of rows");
    sort_keys(job.space, n, bits_of_rows(job.plan), stream);
    sum_before(job.space, {job.space.counts, false}, job.space.starts, job.num_rows, stream);
    for_each(job.num_rows * job.plan.max_points, ClearFirstPoints{job}, stream, "voxelize_sparse: clearing points");
    for_each(n, TakeFirstPoints{job}, stream, "voxelize_sparse: taking first points");
}

}  // namespace

std::int64_t plan_voxelize_sparse_cuda(const SparsePlan& plan) {
    if (plan.num_points == 0 || plan.num_clouds == 0) return 0;
    const DeviceGuard guard(plan.device.index);
    Cutter cutter(nullptr);
    (void)cut(plan, cutter);
    return cutter.used();
}

void voxelize_sparse_cuda(const SparsePlan& plan, CudaQueue stream) {
    if (plan.num_points >= no_row) throw Unsupported("voxelize_sparse: more than 2^32 - 2 points on CUDA");
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    clear(plan.found, 16, handle);
    if (plan.num_points == 0) return;
    if (plan.num_clouds == 0) {  // unchecked offsets: the points belong to no cloud
        if (plan.voxel == nullptr) return;
        return check_cuda(cudaMemsetAsync(plan.voxel, 0xff, static_cast<std::size_t>(plan.num_points) * 8, handle),
                          "voxelize_sparse: clearing voxel");
    }
    Cutter cutter(plan.workspace.data);
    const int key_bits = bits_of_keys(plan);
    SparseJob job{.plan = plan,
                  .space = cut(plan, cutter),
                  .places = Places(plan),
                  .num_words = by_bits(plan) ? num_words(plan) : 0,
                  .num_rows = most_rows(plan),
                  .no_key = std::uint64_t{1} << key_bits,
                  .sums = sums_of(plan.reduction, plan.deterministic),
                  .is_small = plan.bounded() && plan.num_clouds * plan.grid.num_cells <= UINT32_MAX};
    if (plan.features.num_channels == 0) job.plan.out = nullptr;
    if (!by_bits(plan)) {
        find_rows_by_sorting(job, handle);
    } else if (job.places.is_f32()) {
        find_rows_by_bits<true>(job, handle);
    } else {
        find_rows_by_bits<false>(job, handle);
    }
    clear(job.space.counts, job.space.to_clear, handle);  // and the words and sums after it
    for_each(plan.num_points, AddPoints{job}, handle, "voxelize_sparse: adding points");
    const bool again = with_sums(job.sums, [](auto tag) { return Rounds<decltype(tag)::sums>::num_sums > 0; });
    if (again && job.plan.out != nullptr) {
        for_each(plan.num_points, AddAgain{job}, handle, "voxelize_sparse: adding again");
    }
    const std::int64_t channels = job.plan.out == nullptr ? 1 : plan.features.num_channels;
    for_each(job.num_rows * channels, WriteRows{job}, handle, "voxelize_sparse: writing rows");
    if (plan.first_points != nullptr && plan.max_points > 0 && job.num_rows > 0) find_first_points(job, handle);
}

}  // namespace robocache::voxelize_detail
