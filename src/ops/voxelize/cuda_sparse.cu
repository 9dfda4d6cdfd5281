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

#include "ops/voxelize/cuda_bits.cuh"

namespace robocache::voxelize_detail {
namespace {

constexpr int sparse_threads = 256;
constexpr std::int64_t most_words = 1 << 24;  // of bits; larger grids are sorted
constexpr std::uint32_t no_row = 0xffffffffU;

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
    std::uint32_t* sums = nullptr;    // floats, or extreme keys, or magnitudes
    std::uint32_t* specials = nullptr;
    std::int64_t* fixed = nullptr;
    // points in order
    std::uint32_t* points = nullptr;
    std::uint32_t* sorted_points = nullptr;
    std::uint32_t* sorted_rows = nullptr;
    std::uint32_t* starts = nullptr;
    char* scratch = nullptr;
    std::size_t scratch_bytes = 0;
    std::int64_t to_clear = 0;  // bytes from counts on
};

struct Size {
    std::int64_t rows;  // that may be written
    bool fixed;
};

Size size_of(const SparsePlan& plan) {
    const bool sums = plan.reduction == Reduction::sum || plan.reduction == Reduction::mean;
    return {std::min(plan.capacity, plan.num_points), plan.out != nullptr && sums && plan.deterministic};
}

Space cut(const SparsePlan& plan, Cutter& cutter) {
    Space space;
    const std::int64_t n = plan.num_points;
    const Size size = size_of(plan);
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
    space.counts = cutter.take<std::uint32_t>(size.rows);
    if (plan.out != nullptr || plan.features.num_channels > 0) {
        const std::int64_t channels = size.rows * plan.features.num_channels;
        space.sums = cutter.take<std::uint32_t>(channels);
        if (plan.deterministic) {
            space.specials = cutter.take<std::uint32_t>(channels);
            space.fixed = cutter.take<std::int64_t>(channels);
        }
    }
    space.to_clear = cutter.used() - before_counts;
    if (!by_bits(plan) || plan.max_points > 0) {
        space.points = cutter.take<std::uint32_t>(n);
        space.sorted_points = cutter.take<std::uint32_t>(n);
    }
    if (plan.max_points > 0) {
        space.sorted_rows = cutter.take<std::uint32_t>(n);
        space.starts = cutter.take<std::uint32_t>(size.rows);
        note(cub::DeviceRadixSort::SortPairs(nullptr, bytes, space.rows, space.sorted_rows, space.points,
                                             space.sorted_points, n, 0, 32));
        note(cub::DeviceScan::ExclusiveSum(nullptr, bytes, space.counts, space.starts, size.rows));
    }
    space.scratch_bytes = most;
    space.scratch = cutter.take<char>(static_cast<std::int64_t>(most));
    return space;
}

// ---- coordinates of a row
// ---------------------------------------------------------------------------------------------

struct CoordinateArguments {
    const std::uint32_t* bits;
    const std::uint32_t* before;
    std::int64_t num_words;
    std::int64_t shape[3];
    std::int64_t num_cells;
    const std::uint64_t* keys;
    const std::uint32_t* ranks;
    const std::uint32_t* points;
    std::uint32_t* rows;
    std::int64_t num_points;
    KeyBits key_bits;
    bool bounded;
    bool is_small;  // 32 bits number the cells of all clouds
    std::uint64_t no_key;
    std::int64_t capacity;
    std::int32_t* coordinates;
    std::int64_t* found;
};

__device__ __forceinline__ void write_coordinates(const CoordinateArguments& args, std::uint32_t row,
                                                  std::uint64_t key) {
    if (row >= args.capacity) return;
    Cell cell{};
    std::int64_t cloud = 0;
    if (args.bounded && args.is_small) {
        const auto index = static_cast<std::uint32_t>(key);
        const auto num_cells = static_cast<std::uint32_t>(args.num_cells);
        const auto plane = static_cast<std::uint32_t>(args.shape[1] * args.shape[2]);
        const auto line = static_cast<std::uint32_t>(args.shape[2]);
        const std::uint32_t of_cloud = index / num_cells;
        const std::uint32_t in_cloud = index - of_cloud * num_cells;
        const std::uint32_t x = in_cloud / plane;
        const std::uint32_t y = (in_cloud - x * plane) / line;
        cloud = of_cloud;
        cell = {x, y, in_cloud - x * plane - y * line};
    } else if (args.bounded) {
        auto rest = static_cast<std::int64_t>(key);
        cloud = rest / args.num_cells;
        rest -= cloud * args.num_cells;
        cell.x = rest / (args.shape[1] * args.shape[2]);
        rest -= cell.x * args.shape[1] * args.shape[2];
        cell.y = rest / args.shape[2];
        cell.z = rest - cell.y * args.shape[2];
    } else {
        cloud = unpack_key(args.key_bits, key, cell);
    }
    const int4 all = make_int4(static_cast<int>(cloud), static_cast<int>(cell.x), static_cast<int>(cell.y),
                               static_cast<int>(cell.z));
    std::int32_t* to = args.coordinates + 4 * static_cast<std::int64_t>(row);
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        *reinterpret_cast<int4*>(to) = all;
    } else {
        to[0] = all.x;
        to[1] = all.y;
        to[2] = all.z;
        to[3] = all.w;
    }
}

// ---- rows by bits ---------------------------------------------------------------------------------------------------

template <class Source>
struct FindArguments {
    Places<Source> places;
    std::int64_t num_points;
    KeyBits key_bits;
    bool bounded;
    std::uint64_t no_key;
    std::uint32_t* bits;
    const std::uint32_t* before;
    std::uint64_t* keys;
    std::uint32_t* points;
    std::uint32_t* rows;
    std::int64_t* found;
    CoordinateArguments list;
};

__device__ __forceinline__ void count_dropped(bool dropped, std::int64_t* found) {
    const unsigned lanes = __ballot_sync(0xffffffffU, dropped);
    if (threadIdx.x % 32 == 0 && lanes != 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(found) + 1, static_cast<unsigned long long>(__popc(lanes)));
    }
}

__device__ __forceinline__ std::int64_t this_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * sparse_threads + threadIdx.x;
}

/// Leaves in rows[i] whether point i was the first to mark its cell.
template <class Source>
__global__ __launch_bounds__(sparse_threads) void mark_cells(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    std::int64_t cell = no_point;
    if (i < args.num_points) cell = args.places.key(i);
    bool first = false;
    if (cell >= 0) {
        const std::uint32_t bit = 1U << (cell & 31);
        first = (atomicOr(args.bits + (cell >> 5), bit) & bit) == 0;
    }
    if (i < args.num_points) args.rows[i] = first ? 1 : 0;
    count_dropped(cell == dropped_point, args.found);
}

/// The first point of a cell writes its coordinates.
template <class Source>
__global__ __launch_bounds__(sparse_threads) void find_rows(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const CoordinateArguments& list = args.list;
    if (i == 0) {
        const std::int64_t last = list.num_words - 1;
        args.found[0] = args.before[last] + static_cast<std::uint32_t>(__popc(args.bits[last]));
    }
    const std::int64_t cell = args.places.key(i);
    const bool first = args.rows[i] != 0;
    std::uint32_t row = no_row;
    if (cell >= 0) {
        const std::uint32_t below = (1U << (cell & 31)) - 1;
        row = args.before[cell >> 5] + static_cast<std::uint32_t>(__popc(args.bits[cell >> 5] & below));
        if (first) write_coordinates(list, row, static_cast<std::uint64_t>(cell));
    }
    args.rows[i] = row;
}

// ---- rows by sorting ------------------------------------------------------------------------------------------------

template <class Source>
__global__ __launch_bounds__(sparse_threads) void make_keys(const __grid_constant__ FindArguments<Source> args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    const Places<Source>& places = args.places;
    bool dropped = false;
    if (i < args.num_points) {
        typename Places<Source>::Scalar p[3];
        (void)OnDevice<Source>::read(places.source, i, p);
        Cell cell{};
        dropped = !places.grid.find(p, cell);
        const std::int64_t cloud = OnDevice<Source>::cloud_of(places.source, i);
        const std::uint64_t key = args.bounded
                                      ? static_cast<std::uint64_t>(linear_index(places.grid.shape, cloud, cell))
                                      : pack_key(args.key_bits, cloud, cell);
        args.keys[i] = dropped ? args.no_key : key;
        args.points[i] = static_cast<std::uint32_t>(i);
    }
    count_dropped(dropped, args.found);
}

__global__ __launch_bounds__(sparse_threads) void list_keys(const __grid_constant__ CoordinateArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    if (at >= args.num_points) return;
    const std::uint32_t rank = args.ranks[at];  // of the cell, from 1 on
    const std::uint64_t key = args.keys[at];
    if (at == args.num_points - 1) args.found[0] = rank;
    args.rows[args.points[at]] = key == args.no_key ? no_row : rank - 1;
    const bool first = at == 0 || args.keys[at - 1] != key;
    if (first && key != args.no_key) write_coordinates(args, rank - 1, key);
}

// ---- points add to their rows ---------------------------------------------------------------------------------------

struct AddArguments {
    FeaturesPlan features;
    Reduction reduction;
    bool deterministic;
    std::int64_t num_points;
    std::int64_t num_rows;  // that may be written
    const std::uint32_t* rows;
    std::uint32_t* counts;
    std::uint32_t* sums;
    std::uint32_t* specials;
    std::int64_t* fixed;
    std::int64_t* voxel;
    const std::int64_t* found;
    void* out;
    DType out_dtype;
    std::int32_t* out_counts;
    std::int64_t* first_points;
    std::int64_t max_points;
    std::uint32_t* points;
    const std::uint32_t* sorted_points;
    std::uint32_t* sorted_rows;
    const std::uint32_t* starts;
};

template <class In>
__device__ __forceinline__ float feature(const AddArguments& args, std::int64_t i, std::int64_t c) {
    return widen(*reinterpret_cast<const In*>(args.features.data + i * args.features.strides[3] +
                                              c * args.features.channel_stride));
}

template <class In>
__global__ __launch_bounds__(sparse_threads) void add_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const std::uint32_t row = args.rows[i];
    const bool fits = row < args.num_rows;
    if (args.voxel != nullptr) args.voxel[i] = fits ? static_cast<std::int64_t>(row) : -1;
    if (!fits) return;
    atomicAdd(args.counts + row, 1U);
    if (args.out == nullptr) return;
    const std::int64_t channels = args.features.num_channels;
    const std::int64_t first = static_cast<std::int64_t>(row) * channels;
    const bool extreme = args.reduction == Reduction::min || args.reduction == Reduction::max;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (!extreme && !args.deterministic && channels % 4 == 0) {
        for (std::int64_t c = 0; c < channels; c += 4) {
            const float4 four = make_float4(feature<In>(args, i, c), feature<In>(args, i, c + 1),
                                            feature<In>(args, i, c + 2), feature<In>(args, i, c + 3));
            atomicAdd(reinterpret_cast<float4*>(args.sums + first + c), four);
        }
        return;
    }
#endif
    for (std::int64_t c = 0; c < channels; ++c) {
        const float x = feature<In>(args, i, c);
        if (extreme) {
            atomicMax(args.sums + first + c, extreme_key(x, args.reduction == Reduction::max));
        } else if (args.deterministic) {
            atomicMax(args.sums + first + c, magnitude_of(x));
            const std::uint32_t specials = special_of(x);
            if (specials != 0) atomicOr(args.specials + first + c, specials);
        } else {
            atomicAdd(reinterpret_cast<float*>(args.sums) + first + c, x);
        }
    }
}

/// The second round of deterministic sums.
template <class In>
__global__ __launch_bounds__(sparse_threads) void add_fixed(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i >= args.num_points) return;
    const std::uint32_t row = args.rows[i];
    if (row >= args.num_rows) return;
    const std::int64_t channels = args.features.num_channels;
    const std::uint32_t n = args.counts[row];
    for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t at = static_cast<std::int64_t>(row) * channels + c;
        const std::uint32_t magnitude = args.sums[at];
        if (magnitude == 0 || args.specials[at] != 0) continue;
        const std::int64_t fixed = to_fixed(feature<In>(args, i, c), power_of_two(fixed_shift(magnitude, n)));
        atomicAdd(reinterpret_cast<unsigned long long*>(args.fixed + at), static_cast<unsigned long long>(fixed));
    }
}

__device__ __forceinline__ float row_result(const AddArguments& args, std::int64_t at, std::uint32_t n) {
    if (args.reduction == Reduction::min || args.reduction == Reduction::max) {
        return extreme_value(args.sums[at], args.reduction == Reduction::max);
    }
    const bool mean = args.reduction == Reduction::mean;
    if (!args.deterministic) {
        const float sum = reinterpret_cast<const float*>(args.sums)[at];
        return mean ? sum / static_cast<float>(n) : sum;
    }
    if (args.specials[at] != 0) return special_sum(args.specials[at]);
    if (args.sums[at] == 0) return 0.0F;
    const int shift = fixed_shift(args.sums[at], n);
    return mean ? fixed_mean(args.fixed[at], shift, n) : fixed_sum(args.fixed[at], shift);
}

/// A thread for each row and channel, or for each row where there are no features.
__global__ __launch_bounds__(sparse_threads) void write_rows(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t channels = args.out == nullptr ? 1 : args.features.num_channels;
    const std::int64_t at = this_thread();
    const std::int64_t row =
        at <= UINT32_MAX && channels <= UINT32_MAX
            ? static_cast<std::int64_t>(static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(channels))
            : at / channels;
    if (row >= args.num_rows || row >= args.found[0]) return;
    const std::uint32_t n = args.counts[row];
    if (args.out_counts != nullptr && at == row * channels) args.out_counts[row] = static_cast<std::int32_t>(n);
    if (args.out == nullptr) return;
    const float x = row_result(args, at, n);
    switch (args.out_dtype) {
        case DType::f16: static_cast<Half*>(args.out)[at] = narrow<Half>(x); break;
        case DType::bf16: static_cast<BFloat16*>(args.out)[at] = narrow<BFloat16>(x); break;
        default: static_cast<float*>(args.out)[at] = x; break;
    }
}

// ---- the first points of each row -----------------------------------------------------------------------------------

__global__ __launch_bounds__(sparse_threads) void number_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t i = this_thread();
    if (i < args.num_points) args.points[i] = static_cast<std::uint32_t>(i);
}

__global__ __launch_bounds__(sparse_threads) void clear_first_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    const std::int64_t row = at / args.max_points;
    if (row < args.num_rows && row < args.found[0]) args.first_points[at] = -1;
}

__global__ __launch_bounds__(sparse_threads) void take_first_points(const __grid_constant__ AddArguments args) {
    wait_for_earlier_work();
    const std::int64_t at = this_thread();
    if (at >= args.num_points) return;
    const std::uint32_t row = args.sorted_rows[at];
    if (row >= args.num_rows) return;
    const std::int64_t k = at - args.starts[row];
    if (k < args.max_points) args.first_points[row * args.max_points + k] = args.sorted_points[at];
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
void launch_adding(const AddArguments& args, bool fixed, cudaStream_t stream) {
    launch(&add_points<In>, args.num_points, args, stream, "voxelize_sparse: launching add_points");
    if (fixed) launch(&add_fixed<In>, args.num_points, args, stream, "voxelize_sparse: launching add_fixed");
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

std::int64_t voxelize_sparse_cuda_workspace(const SparsePlan& plan) {
    const DeviceGuard guard(plan.device.index);
    Cutter cutter(nullptr);
    (void)cut(plan, cutter);
    return cutter.used();
}

void voxelize_sparse_cuda(const SparsePlan& plan, Stream stream) {
    if (plan.num_points >= no_row) throw Unsupported("voxelize_sparse: more than 2^32 - 2 points on CUDA");
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    clear(plan.found, 16, handle);
    if (plan.num_points == 0) return;
    Cutter cutter(plan.workspace.data);
    Space space = cut(plan, cutter);
    const Size size = size_of(plan);
    find_all_rows(plan, space, handle);

    const std::int64_t channels = plan.out == nullptr ? 0 : plan.features.num_channels;
    clear(space.counts, space.to_clear, handle);  // and what lies behind it
    AddArguments args{};
    args.features = plan.features;
    args.reduction = plan.reduction;
    args.deterministic = size.fixed;
    args.num_points = plan.num_points;
    args.num_rows = size.rows;
    args.rows = space.rows;
    args.counts = space.counts;
    args.sums = space.sums;
    args.specials = space.specials;
    args.fixed = space.fixed;
    args.voxel = plan.voxel;
    args.found = plan.found;
    args.out = plan.out;
    args.out_dtype = plan.out_dtype;
    args.out_counts = plan.counts;
    args.first_points = plan.first_points;
    args.max_points = plan.max_points;
    args.points = space.points;
    args.sorted_points = space.sorted_points;
    args.sorted_rows = space.sorted_rows;
    args.starts = space.starts;
    switch (plan.features.dtype) {
        case DType::f16: launch_adding<Half>(args, size.fixed, handle); break;
        case DType::bf16: launch_adding<BFloat16>(args, size.fixed, handle); break;
        case DType::u8: launch_adding<std::uint8_t>(args, size.fixed, handle); break;
        default: launch_adding<float>(args, size.fixed, handle); break;
    }
    launch(&write_rows, size.rows * std::max<std::int64_t>(channels, 1), args, handle,
           "voxelize_sparse: launching write_rows");
    if (plan.first_points != nullptr && plan.max_points > 0 && size.rows > 0) {
        find_first_points(plan, space, args, handle);
    }
}

}  // namespace robocache::voxelize_detail
