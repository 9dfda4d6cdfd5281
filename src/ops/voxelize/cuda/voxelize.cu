// Dense grids on CUDA: which path, its workspace, its launches. Allocates nothing on the device and never waits.
#include <algorithm>
#include <vector>

#include "ops/voxelize/cuda/bins.cuh"
#include "ops/voxelize/cuda/bits.cuh"
#include "ops/voxelize/cuda/counts.cuh"
#include "ops/voxelize/cuda/depth/launch.cuh"
#include "ops/voxelize/cuda/features/kernel.cuh"
#include "ops/voxelize/cuda/slot_fill.cuh"

namespace robocache::voxelize_detail {
namespace {

constexpr std::int64_t own_bytes = 200 * 1024;  // of shared memory, for the bits of one cloud
constexpr std::int64_t own_clouds = 64;         // fewer leave multiprocessors without work
constexpr std::int64_t most_pixels = 1 << 24;   // of a row or a column, whose numbers are exact as floats
constexpr std::int64_t small_cloud = 2 << 20;   // points; fewer are cut into smaller tiles
constexpr std::int64_t enough_bins = 256;       // fewer leave multiprocessors without work, more have short spans
constexpr std::int64_t large_bin = 1 << 13;     // cells, from which on a block has more threads
constexpr std::int64_t huge_bin = 1 << 15;      // ... the most there are: its counters leave no room for another block
constexpr std::int64_t sort_blocks = 2;         // of a multiprocessor
constexpr std::int64_t one_wave = 256;          // tiles
constexpr std::int64_t most_slot_points = 1 << 24;  // with more, slots are no faster and take more memory

/// Plain points of one cloud, in a grid whose bins are not too large for one block each.
bool has_slots(const DensePlan& plan) {
    const std::int64_t cells_of_slot_bin = std::min<std::int64_t>(most_slot_cells, most_shared() / 4 / 32 * 32);
    return !plan.has_features() && !plan.from_depth && plan.points.dtype == DType::f32 && plan.num_clouds == 1 &&
           plan.num_points <= most_slot_points && slot_bytes_of_two <= most_shared() &&
           plan.grid.num_cells <= most_slot_bins * cells_of_slot_bin && DeviceGrid<float>(plan.grid).is_quick;
}

DensePath path_of(const DensePlan& plan) {
    if (has_slots(plan)) return DensePath::slots;
    if (plan.reduction != Reduction::occupancy || plan.wants_counts) return DensePath::bins;
    if (plan.from_depth) {
        const bool exact = plan.depth.width <= most_pixels && plan.depth.height <= most_pixels;
        return exact && DeviceGrid<float>(plan.grid).is_quick ? DensePath::marks : DensePath::bins;
    }
    const std::int64_t bytes = (plan.grid.num_cells + 31) / 32 * 4;
    return plan.num_clouds >= own_clouds && bytes <= std::min(own_bytes, most_shared()) ? DensePath::own
                                                                                        : DensePath::bins;
}

/// What the bins need in the workspace.
struct BinSpace {
    SortedTiles tiles{};
    std::uint32_t* points = nullptr;
    std::uint32_t* begins = nullptr;
    std::uint32_t* ends = nullptr;
    std::uint32_t* listed = nullptr;
    std::int64_t num_bins = 0;  // in all
};

/// Occupancy without counts.
bool has_marks_only(const DensePlan& plan) {
    return plan.reduction == Reduction::occupancy && !plan.wants_counts;
}

BinSpace cut_bins(const DensePlan& plan, Cutter& cutter) {
    BinSpace space;
    SortedTiles& tiles = space.tiles;
    const bool features = plan.has_features();
    const int per_thread = features || plan.num_points <= small_cloud ? 8 : 16;
    tiles.tile = per_thread * sort_threads;
    tiles.num_tiles = (plan.num_points + tiles.tile - 1) / tiles.tile;
    const int most_bits = has_marks_only(plan) ? 16 : (features ? 14 : most_bin_bits);
    const std::int64_t most = features ? wide_bins : enough_bins;
    tiles.bin_bits = least_bin_bits;
    const auto num_bins = [&] {
        return (plan.total_cells() + (std::int64_t{1} << tiles.bin_bits) - 1) >> tiles.bin_bits;
    };
    while (tiles.bin_bits < most_bits && num_bins() > most) ++tiles.bin_bits;
    while (!has_marks_only(plan) && (std::int64_t{4} << tiles.bin_bits) > most_shared()) --tiles.bin_bits;
    space.num_bins = num_bins();
    tiles.bin_keys = static_cast<std::int32_t>(tiles.tile / std::max<std::int64_t>(num_bins(), 1));
    tiles.num_bins = static_cast<std::int32_t>(std::min<std::int64_t>(space.num_bins, max_bins));
    const std::int64_t key_bytes = features ? 4 : 2;
    tiles.unit = static_cast<std::int32_t>(tiles.num_bins <= wide_bins ? 16 / key_bytes : 1);
    tiles.pitch = tiles.tile + tiles.num_bins * (tiles.unit - 1);
    tiles.pitch = (tiles.pitch + 7) / 8 * 8;
    tiles.keys = cutter.take<char>(tiles.num_tiles * tiles.pitch * key_bytes);
    tiles.spans = cutter.take<std::uint32_t>(tiles.num_tiles * tiles.num_bins);
    if (features) {
        space.points = cutter.take<std::uint32_t>(plan.num_points);
        space.begins = cutter.take<std::uint32_t>(tiles.num_bins);
        space.ends = cutter.take<std::uint32_t>(static_cast<std::int64_t>(tiles.num_bins) << tiles.bin_bits);
        space.listed = cutter.take<std::uint32_t>(1);
    }
    return space;
}

/// Which of the points can stream into shared memory: whole tiles of one cloud, without gaps, aligned.
template <class Source>
PointStream stream_of(const SortArguments<Source>& args) {
    if constexpr (std::is_same_v<Source, PointReader<float>>) {
        const PointsPlan& points = args.places.source.points;
        const bool streams = points.row_stride == 12 && points.axis_stride == 4 && args.places.source.num_clouds == 1 &&
                             args.places.grid.is_quick && reinterpret_cast<std::uintptr_t>(points.data) % 16 == 0;
        if (streams) return {points.data, args.num_points / args.tiles.tile, args.tiles.tile * 12};
    }
    return {nullptr, 0, 0};
}

template <class Source, int per_thread, class Stored>
void launch_sort(SortArguments<Source> args, cudaStream_t stream) {
    args.stream = stream_of(args);
    std::int64_t bytes =
        args.tiles.pitch * static_cast<std::int64_t>(sizeof(Stored)) + (args.tiles.num_bins + 3) / 4 * 16;
    if constexpr (per_thread == 16) {
        constexpr std::int64_t ring_bytes = sort_threads / warp_threads * ring_parts * part_bytes;
        if (bytes + ring_bytes > most_shared()) args.stream = {nullptr, 0, 0};
        if (args.stream.num_tiles > 0) bytes += ring_bytes;
    }
    constexpr auto kernel = sort_tiles<Source, per_thread, Stored>;
    allow_shared(kernel, bytes);
    const std::int64_t blocks =
        per_thread == 16 ? std::min(args.tiles.num_tiles, sort_blocks * num_multiprocessors()) : args.tiles.num_tiles;
    launch_overlapped(kernel, static_cast<unsigned>(blocks), sort_threads, static_cast<std::size_t>(bytes), stream,
                      args, "voxelize: launching sort_tiles");
}

void launch_counts(const DensePlan& plan, const SortedTiles& tiles, std::int64_t first_cell, cudaStream_t stream) {
    const CountArguments args{tiles,      first_cell,     plan.total_cells(),
                              plan.out,   plan.out_dtype, plan.reduction == Reduction::occupancy,
                              plan.counts};
    const std::int64_t cells = std::int64_t{1} << tiles.bin_bits;
    const auto launch = [&](auto* kernel, int threads, std::int64_t bytes) {
        allow_shared(kernel, bytes);
        launch_overlapped(kernel, static_cast<unsigned>(tiles.num_bins), static_cast<unsigned>(threads),
                          static_cast<std::size_t>(bytes), stream, args, "voxelize: launching a kernel of bins");
    };
    const bool large = cells >= large_bin;
    if (has_marks_only(plan) && large) return launch(&mark_bins<large_bin_threads>, large_bin_threads, cells / 8);
    if (has_marks_only(plan)) return launch(&mark_bins<bin_threads>, bin_threads, cells / 8);
    if (cells >= huge_bin) return launch(&count_bins<huge_bin_threads>, huge_bin_threads, cells * 4);
    if (large) return launch(&count_bins<large_bin_threads>, large_bin_threads, cells * 4);
    launch(&count_bins<bin_threads>, bin_threads, cells * 4);
}

void launch_features(const DensePlan& plan, const BinSpace& space, const SortedTiles& tiles, std::int64_t first_cell,
                     cudaStream_t stream) {
    const FeatureArguments args{tiles,
                                first_cell,
                                plan.total_cells(),
                                space.points,
                                space.begins,
                                space.ends,
                                space.listed,
                                plan.from_depth,
                                plan.depth,
                                plan.features,
                                plan.reduction,
                                plan.fill,
                                plan.out,
                                plan.out_dtype == DType::f32,
                                plan.counts};
    const std::int64_t bytes = std::int64_t{4} << tiles.bin_bits;
    allow_shared(list_points, bytes);
    launch_overlapped(list_points, static_cast<unsigned>(tiles.num_bins), list_threads, static_cast<std::size_t>(bytes),
                      stream, args, "voxelize: launching list_points");
    switch (plan.features.dtype) {
        case DType::f16: return launch_features_f16(args, plan.deterministic, stream);
        case DType::bf16: return launch_features_bf16(args, plan.deterministic, stream);
        case DType::u8: return launch_features_u8(args, plan.deterministic, stream);
        default: return launch_features_f32(args, plan.deterministic, stream);
    }
}

void by_bins(const DensePlan& plan, cudaStream_t stream) {
    const bool features = plan.has_features();
    if (features && plan.num_points > UINT32_MAX) {
        throw Unsupported("voxelize: features of more than 2^32 - 1 points on CUDA");
    }
    Cutter cutter(plan.workspace.data);
    const BinSpace space = cut_bins(plan, cutter);
    if (space.tiles.num_tiles > INT32_MAX) throw Unsupported("voxelize: more points than a CUDA grid has blocks");
    if (plan.dropped != nullptr) {
        check_cuda(cudaMemsetAsync(plan.dropped, 0, static_cast<std::size_t>(plan.num_clouds) * 8, stream),
                   "voxelize: clearing dropped");
    }
    for (std::int64_t first_bin = 0; first_bin < space.num_bins; first_bin += max_bins) {
        SortedTiles tiles = space.tiles;
        tiles.num_bins = static_cast<std::int32_t>(std::min<std::int64_t>(space.num_bins - first_bin, max_bins));
        const std::int64_t first_cell = first_bin << tiles.bin_bits;
        if (tiles.num_tiles > 0) {
            with_source(plan, [&](const auto& source) {
                using Source = std::decay_t<decltype(source)>;
                const SortArguments<Source> args{
                    Places<Source>(source, plan.grid),       tiles,         plan.num_points, first_cell,
                    first_bin == 0 ? plan.dropped : nullptr, PointStream{}, space.listed};
                if (features) return launch_sort<Source, 8, std::uint32_t>(args, stream);
                if (tiles.tile == 8 * sort_threads) return launch_sort<Source, 8, std::uint16_t>(args, stream);
                launch_sort<Source, 16, std::uint16_t>(args, stream);
            });
        }
        if (features) {
            launch_features(plan, space, tiles, first_cell, stream);
        } else {
            launch_counts(plan, tiles, first_cell, stream);
        }
    }
}

/// Counters of a bin have room beside two blocks of sort_slots only if all memory that can be shared is.
template <class Kernel>
void prefer_shared(Kernel* kernel) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
               "cudaFuncSetAttribute");
}

SlotTiles cut_slots(const DensePlan& plan, Cutter& cutter) {
    SlotTiles tiles{};
    const std::int64_t groups = (plan.num_points + part_points - 1) / part_points;
    tiles.groups = static_cast<std::int32_t>(
        std::clamp<std::int64_t>((groups + one_wave - 1) / one_wave, slot_warps, most_groups));
    tiles.num_tiles = static_cast<std::int32_t>((groups + tiles.groups - 1) / tiles.groups);
    const std::int64_t lots = (plan.grid.num_cells + 31) / 32;  // of 32 cells
    const std::int64_t lots_of_bin = std::max<std::int64_t>(2, (lots + most_slot_bins - 1) / most_slot_bins);
    tiles.num_bins = static_cast<std::int32_t>((lots + lots_of_bin - 1) / lots_of_bin);
    tiles.bin_cells = static_cast<std::uint32_t>(32 * lots_of_bin);
    tiles.to_bin = static_cast<std::uint32_t>(((std::int64_t{1} << 32) + lots_of_bin - 1) / lots_of_bin);
    tiles.rows = cutter.take<uint4>(std::int64_t{tiles.num_tiles} * tiles.num_bins * row_units);
    tiles.spans = cutter.take<std::uint16_t>(std::int64_t{tiles.num_tiles} * span_pitch);
    return tiles;
}

void by_slots(const DensePlan& plan, cudaStream_t stream) {
    Cutter cutter(plan.workspace.data);
    const SlotTiles tiles = cut_slots(plan, cutter);
    if (plan.dropped != nullptr) {
        check_cuda(cudaMemsetAsync(plan.dropped, 0, 8, stream), "voxelize: clearing dropped");
    }
    if (tiles.num_tiles > 0) {
        const PointReader<float> source{plan.points, plan.features, 1, plan.num_points};
        const PointsPlan& points = plan.points;
        const bool streams = points.row_stride == 12 && points.axis_stride == 4 &&
                             reinterpret_cast<std::uintptr_t>(points.data) % 16 == 0;
        const SlotArguments args{Places<PointReader<float>>(source, plan.grid), tiles, streams ? points.data : nullptr,
                                 static_cast<std::int32_t>(plan.num_points), plan.dropped};
        const std::int64_t bytes = tiles.num_tiles <= one_wave ? slot_bytes_of_two : slot_bytes_of_three;
        const auto launch = [&](auto* kernel) {
            allow_shared(kernel, bytes);
            launch_overlapped(kernel, static_cast<unsigned>(tiles.num_tiles), slot_threads,
                              static_cast<std::size_t>(bytes), stream, args, "voxelize: launching sort_slots");
        };
        if (has_marks_only(plan)) {
            launch(&sort_slots<false>);
        } else {
            prefer_shared(&sort_slots<true>);
            launch(&sort_slots<true>);
        }
    }
    const FillArguments args{
        tiles, plan.grid.num_cells, plan.out, plan.out_dtype, plan.reduction == Reduction::occupancy, plan.counts};
    const auto launch = [&](auto* kernel, std::int64_t bytes) {
        allow_shared(kernel, bytes);
        launch_overlapped(kernel, static_cast<unsigned>(tiles.num_bins), fill_threads, static_cast<std::size_t>(bytes),
                          stream, args, "voxelize: launching fill_from_slots");
    };
    const bool many = tiles.num_tiles > one_wave;
    const std::int64_t counters = tiles.bin_cells * std::int64_t{4};
    if (has_marks_only(plan)) {
        return many ? launch(&fill_from_slots<true, true>, counters / 32)
                    : launch(&fill_from_slots<true, false>, counters / 32);
    }
    if (many) return launch(&fill_from_slots<false, true>, counters);
    prefer_shared(&fill_from_slots<false, false>);
    launch(&fill_from_slots<false, false>, counters);
}

void by_own_bits(const DensePlan& plan, cudaStream_t stream) {
    with_points(plan, [&](const auto& source) {
        using Source = std::decay_t<decltype(source)>;
        const std::int64_t all_words = (plan.grid.num_cells + 31) / 32;
        const std::int64_t parts = std::clamp<std::int64_t>(num_multiprocessors() / plan.num_clouds, 1, 4);
        const std::int64_t words = ((all_words + parts - 1) / parts + 3) / 4 * 4;
        const OwnArguments<Source> args{Places<Source>(source, plan.grid),
                                        clouds_of(plan.points, plan.num_clouds, plan.num_points),
                                        static_cast<std::int32_t>((all_words + words - 1) / words),
                                        static_cast<std::int32_t>(words),
                                        plan.out,
                                        plan.out_dtype,
                                        plan.dropped};
        const auto launch = [&](auto* kernel) {
            allow_shared(kernel, 4 * words);
            launch_overlapped(kernel, blocks_for(plan.num_clouds * args.parts, 1), own_threads,
                              static_cast<std::size_t>(4 * words), stream, args, "voxelize: launching mark_own_cells");
        };
        if constexpr (std::is_same_v<Source, PointReader<float>>) return launch(&mark_own_cells<float>);
        if constexpr (std::is_same_v<Source, PointReader<Half>>) return launch(&mark_own_cells<Half>);
        if constexpr (std::is_same_v<Source, PointReader<double>>) return launch(&mark_own_cells<double>);
    });
}

}  // namespace

std::int64_t plan_voxelize_cuda(DensePlan& plan) {
    const DeviceGuard guard(plan.device.index);
    plan.path = path_of(plan);
    Cutter cutter(nullptr);
    switch (plan.path) {
        case DensePath::own: break;
        case DensePath::marks: (void)cut_marks(plan, cutter); break;
        case DensePath::bins: (void)cut_bins(plan, cutter); break;
        case DensePath::slots: (void)cut_slots(plan, cutter); break;
    }
    return cutter.used();
}

void voxelize_cuda(const DensePlan& plan, CudaQueue stream) {
    if (plan.num_clouds == 0) return;
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    switch (plan.path) {
        case DensePath::own: return by_own_bits(plan, handle);
        case DensePath::marks: return by_marks(plan, handle);
        case DensePath::bins: return by_bins(plan, handle);
        case DensePath::slots: return by_slots(plan, handle);
    }
}

std::vector<std::int64_t> read_offsets_cuda(const PointsPlan& points, std::int64_t num_clouds, Device device,
                                            CudaQueue stream) {
    const DeviceGuard guard(device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(num_clouds + 1));
    for (std::size_t b = 0; b < offsets.size(); b += points.offsets_stride == 1 ? offsets.size() : 1) {
        const std::int64_t* from = points.offsets + static_cast<std::int64_t>(b) * points.offsets_stride;
        const std::size_t count = points.offsets_stride == 1 ? offsets.size() : 1;
        check_cuda(cudaMemcpyAsync(&offsets[b], from, 8 * count, cudaMemcpyDeviceToHost, handle),
                   "voxelize: reading offsets for check=True");
    }
    check_cuda(cudaStreamSynchronize(handle), "voxelize: reading offsets for check=True");
    return offsets;
}

}  // namespace robocache::voxelize_detail
