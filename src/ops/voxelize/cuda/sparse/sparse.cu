// The list of occupied cells on CUDA. Bounded grids: a bit for each cell, and the number of bits before it is the
// cell's row. Unbounded or very large ones: sorted keys. Then points add to their rows. Allocates nothing and never
// waits.
// CUB's kernels in our namespace: they cannot be mixed up with those of another library in the process, and the tools
// that look at our kernels only see what they write.
#define THRUST_CUB_WRAPPED_NAMESPACE robocache

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "ops/voxelize/cuda/sparse/add.cuh"
#include "ops/voxelize/cuda/sparse/rows.cuh"

namespace robocache::voxelize_detail {
namespace {

constexpr std::int64_t most_words = 1 << 24;  // of bits; larger grids are sorted

bool by_bits(const SparsePlan& plan) {
    return plan.bounded() && plan.grid.num_cells <= most_words * 32 / std::max<std::int64_t>(plan.num_clouds, 1);
}

std::int64_t num_words(const SparsePlan& plan) {
    return (plan.num_clouds * plan.grid.num_cells + 31) / 32;
}

/// Bits of the largest key; the one above them means "no cell".
int bits_of_keys(const SparsePlan& plan) {
    if (!plan.bounded()) return plan.grid.key_bits.cloud_bits + 3 * plan.grid.key_bits.axis_bits;
    return ceil_log2(static_cast<std::uint64_t>(plan.num_clouds * plan.grid.num_cells));
}

struct BitsBefore {
    const std::uint32_t* bits;
    __host__ __device__ std::uint32_t operator()(std::int64_t word) const {
#ifdef __CUDA_ARCH__
        return static_cast<std::uint32_t>(__popc(bits[word]));
#else
        return static_cast<std::uint32_t>(__builtin_popcount(bits[word]));
#endif
    }
};

struct IsFirst {
    const std::uint64_t* keys;  // sorted
    std::uint64_t no_key;
    __host__ __device__ std::uint32_t operator()(std::int64_t at) const {
        return keys[at] != no_key && (at == 0 || keys[at] != keys[at - 1]) ? 1 : 0;
    }
};

template <class Function>
auto numbers(Function function) {
    return thrust::make_transform_iterator(thrust::make_counting_iterator<std::int64_t>(0), function);
}

/// The parts of the workspace.
struct Space {
    // bits
    std::uint32_t* bits = nullptr;
    std::uint32_t* before = nullptr;
    // sorted
    std::uint64_t* keys = nullptr;
    std::uint64_t* sorted_keys = nullptr;
    std::uint32_t* ranks = nullptr;
    // both
    std::uint32_t* rows = nullptr;    // of each point
    std::uint32_t* counts = nullptr;  // of each row
    std::uint32_t* words[max_words] = {};
    std::int64_t* numbers[max_sums] = {};
    // points in order
    std::uint32_t* points = nullptr;
    std::uint32_t* sorted_points = nullptr;
    std::uint32_t* sorted_rows = nullptr;
    std::uint32_t* starts = nullptr;
    char* scratch = nullptr;
    std::size_t scratch_bytes = 0;
    std::int64_t to_clear = 0;  // bytes from counts on
};

/// Rows that may be written.
std::int64_t most_rows(const SparsePlan& plan) {
    return std::min(plan.capacity, plan.num_points);
}

Space cut(const SparsePlan& plan, Cutter& cutter) {
    Space space;
    const std::int64_t n = plan.num_points;
    const std::int64_t rows = most_rows(plan);
    std::size_t bytes = 0;
    std::size_t most = 0;
    const auto note = [&](cudaError_t error) {
        check_cuda(error, "voxelize_sparse: asking CUB for its workspace");
        most = std::max(most, bytes);
    };
    if (by_bits(plan)) {
        space.bits = cutter.take<std::uint32_t>(num_words(plan));
        space.before = cutter.take<std::uint32_t>(num_words(plan));
        note(cub::DeviceScan::ExclusiveSum(nullptr, bytes, numbers(BitsBefore{space.bits}), space.before,
                                           num_words(plan)));
    } else {
        space.keys = cutter.take<std::uint64_t>(n);
        space.sorted_keys = cutter.take<std::uint64_t>(n);
        space.ranks = cutter.take<std::uint32_t>(n);
        note(cub::DeviceRadixSort::SortPairs(nullptr, bytes, space.keys, space.sorted_keys, space.points,
                                             space.sorted_points, n, 0, bits_of_keys(plan) + 1));
        note(cub::DeviceScan::InclusiveSum(nullptr, bytes, numbers(IsFirst{space.sorted_keys, 0}), space.ranks, n));
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
    if (!by_bits(plan) || plan.max_points > 0) {
        space.points = cutter.take<std::uint32_t>(n);
        space.sorted_points = cutter.take<std::uint32_t>(n);
    }
    if (plan.max_points > 0) {
        space.sorted_rows = cutter.take<std::uint32_t>(n);
        space.starts = cutter.take<std::uint32_t>(rows);
        note(cub::DeviceRadixSort::SortPairs(nullptr, bytes, space.rows, space.sorted_rows, space.points,
                                             space.sorted_points, n, 0, 32));
        note(cub::DeviceScan::ExclusiveSum(nullptr, bytes, space.counts, space.starts, rows));
    }
    space.scratch_bytes = most;
    space.scratch = cutter.take<char>(static_cast<std::int64_t>(most));
    return space;
}

template <class Kernel, class Arguments>
void launch(Kernel* kernel, std::int64_t items, const Arguments& args, cudaStream_t stream, const char* what) {
    if (items > 0) launch_overlapped(kernel, blocks_for(items, sparse_threads), sparse_threads, 0, stream, args, what);
}

void clear(void* data, std::int64_t bytes, cudaStream_t stream) {
    if (bytes == 0 || data == nullptr) return;
    check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream), "voxelize_sparse: clearing");
}

template <class In>
void launch_adding(const AddArguments& args, cudaStream_t stream) {
    launch(&add_points<In>, args.num_points, args, stream, "voxelize_sparse: launching add_points");
    const bool again =
        with_sums(args.sums, [](auto tag) { return Rounds<decltype(tag)::sums>::num_sums > 0; }) && args.out != nullptr;
    if (again) launch(&add_again<In>, args.num_points, args, stream, "voxelize_sparse: launching add_again");
}

void find_all_rows(const SparsePlan& plan, Space& space, cudaStream_t stream) {
    const std::uint64_t no_key = std::uint64_t{1} << bits_of_keys(plan);
    const bool bits = by_bits(plan);
    const std::int64_t n = plan.num_points;
    if (bits) clear(space.bits, 4 * num_words(plan), stream);
    CoordinateArguments list{};
    list.bits = space.bits;
    list.before = space.before;
    list.num_words = bits ? num_words(plan) : 0;
    std::copy(plan.grid.shape, plan.grid.shape + 3, list.shape);
    list.num_cells = plan.grid.num_cells;
    list.keys = space.sorted_keys;
    list.ranks = space.ranks;
    list.points = space.sorted_points;
    list.rows = space.rows;
    list.num_points = n;
    list.key_bits = plan.grid.key_bits;
    list.bounded = plan.bounded();
    list.is_small = plan.bounded() && bits_of_keys(plan) <= 32 && plan.num_clouds * plan.grid.num_cells <= UINT32_MAX;
    list.no_key = no_key;
    list.capacity = plan.capacity;
    list.coordinates = plan.coordinates;
    list.found = plan.found;
    with_points(plan, [&](const auto& source) {
        using Source = std::decay_t<decltype(source)>;
        const FindArguments<Source> find{Places<Source>(source, plan.grid),
                                         n,
                                         plan.grid.key_bits,
                                         plan.bounded(),
                                         no_key,
                                         space.bits,
                                         space.before,
                                         space.keys,
                                         space.points,
                                         space.rows,
                                         plan.found,
                                         list};
        if (!bits) return launch(&make_keys<Source>, n, find, stream, "voxelize_sparse: launching make_keys");
        launch(&mark_cells<Source>, n, find, stream, "voxelize_sparse: launching mark_cells");
        check_cuda(cub::DeviceScan::ExclusiveSum(space.scratch, space.scratch_bytes, numbers(BitsBefore{space.bits}),
                                                 space.before, num_words(plan), stream),
                   "voxelize_sparse: counting cells");
        launch(&find_rows<Source>, n, find, stream, "voxelize_sparse: launching find_rows");
    });
    if (bits) return;
    check_cuda(cub::DeviceRadixSort::SortPairs(space.scratch, space.scratch_bytes, space.keys, space.sorted_keys,
                                               space.points, space.sorted_points, n, 0, bits_of_keys(plan) + 1, stream),
               "voxelize_sparse: sorting keys");
    check_cuda(cub::DeviceScan::InclusiveSum(space.scratch, space.scratch_bytes,
                                             numbers(IsFirst{space.sorted_keys, no_key}), space.ranks, n, stream),
               "voxelize_sparse: counting cells");
    launch(&list_keys, n, list, stream, "voxelize_sparse: launching list_keys");
}

void find_first_points(const SparsePlan& plan, Space& space, const AddArguments& args, cudaStream_t stream) {
    const std::int64_t n = plan.num_points;
    launch(&number_points, n, args, stream, "voxelize_sparse: launching number_points");
    check_cuda(cub::DeviceRadixSort::SortPairs(space.scratch, space.scratch_bytes, space.rows, space.sorted_rows,
                                               space.points, space.sorted_points, n, 0, 32, stream),
               "voxelize_sparse: sorting points");
    check_cuda(cub::DeviceScan::ExclusiveSum(space.scratch, space.scratch_bytes, space.counts, space.starts,
                                             args.num_rows, stream),
               "voxelize_sparse: counting points");
    launch(&clear_first_points, args.num_rows * plan.max_points, args, stream,
           "voxelize_sparse: launching clear_first_points");
    launch(&take_first_points, n, args, stream, "voxelize_sparse: launching take_first_points");
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
    if (plan.num_clouds == 0) {  // offsets that nobody checked: the points belong to no cloud
        if (plan.voxel == nullptr) return;
        return check_cuda(cudaMemsetAsync(plan.voxel, 0xff, static_cast<std::size_t>(plan.num_points) * 8, handle),
                          "voxelize_sparse: clearing voxel");
    }
    Cutter cutter(plan.workspace.data);
    Space space = cut(plan, cutter);
    find_all_rows(plan, space, handle);

    const std::int64_t channels = plan.out == nullptr ? 0 : plan.features.num_channels;
    clear(space.counts, space.to_clear, handle);  // and what lies behind it
    AddArguments args{};
    args.features = plan.features;
    args.reduction = plan.reduction;
    args.sums = sums_of(plan.reduction, plan.deterministic);
    args.num_points = plan.num_points;
    args.num_rows = most_rows(plan);
    args.rows = space.rows;
    args.counts = space.counts;
    std::copy(std::begin(space.words), std::end(space.words), args.words);
    std::copy(std::begin(space.numbers), std::end(space.numbers), args.numbers);
    args.voxel = plan.voxel;
    args.found = plan.found;
    args.out = channels > 0 ? plan.out : nullptr;
    args.out_dtype = plan.out_dtype;
    args.out_counts = plan.counts;
    args.first_points = plan.first_points;
    args.max_points = plan.max_points;
    args.points = space.points;
    args.sorted_points = space.sorted_points;
    args.sorted_rows = space.sorted_rows;
    args.starts = space.starts;
    switch (plan.features.dtype) {
        case DType::f16: launch_adding<Half>(args, handle); break;
        case DType::bf16: launch_adding<BFloat16>(args, handle); break;
        case DType::u8: launch_adding<std::uint8_t>(args, handle); break;
        default: launch_adding<float>(args, handle); break;
    }
    launch(&write_rows, args.num_rows * std::max<std::int64_t>(channels, 1), args, handle,
           "voxelize_sparse: launching write_rows");
    if (plan.first_points != nullptr && plan.max_points > 0 && args.num_rows > 0) {
        find_first_points(plan, space, args, handle);
    }
}

}  // namespace robocache::voxelize_detail
