// Dense grids on CUDA: the launches of each path. Allocates nothing on the device and never waits.
#include <algorithm>

#include "ops/voxelize/cuda/bins/fill.cuh"
#include "ops/voxelize/cuda/bins/sort.cuh"
#include "ops/voxelize/cuda/depth/launch.cuh"
#include "ops/voxelize/cuda/features/features.hpp"
#include "ops/voxelize/cuda/own_bits.cuh"
#include "ops/voxelize/cuda/slots/fill.cuh"

namespace robocache::voxelize_detail {
namespace {

// ---- bins -----------------------------------------------------------------------------------------------------------

template <bool is_f32, int per_thread, class Stored>
void launch_sort(SortJob job, cudaStream_t stream) {
    const SortedTiles& tiles = job.tiles;
    std::int64_t bytes = tiles.pitch * static_cast<std::int64_t>(sizeof(Stored)) + (tiles.num_bins + 3) / 4 * 16;
    std::int64_t blocks = tiles.num_tiles;
    if (is_f32 && can_stream(job.places.points) && job.places.num_clouds == 1 && job.places.grid.is_quick) {
        job.stream = {job.places.points.data, job.places.num_points / tiles.tile, tiles.tile * 12};
    }
    if constexpr (per_thread == points_per_thread_of_many) {
        constexpr std::int64_t ring_bytes = sort_threads / warp_threads * ring_parts * part_bytes;
        if (bytes + ring_bytes > most_shared()) job.stream = {};
        if (job.stream.num_tiles > 0) bytes += ring_bytes;
        blocks = std::min(blocks, sort_blocks_per_sm * num_sms());
    }
    launch_overlapped(sort_tiles<is_f32, per_thread, Stored>, {blocks, sort_threads, bytes}, stream, job,
                      "voxelize: launching sort_tiles");
}

void sort_points(const SortJob& job, bool features, cudaStream_t stream) {
    constexpr int few = points_per_thread;
    constexpr int many = points_per_thread_of_many;
    if (job.places.is_f32()) {
        if (features) return launch_sort<true, few, std::uint32_t>(job, stream);
        if (job.tiles.tile == few * sort_threads) return launch_sort<true, few, std::uint16_t>(job, stream);
        return launch_sort<true, many, std::uint16_t>(job, stream);
    }
    features ? launch_sort<false, few, std::uint32_t>(job, stream)
             : launch_sort<false, few, std::uint16_t>(job, stream);
}

void by_bins(const DensePlan& plan, cudaStream_t stream) {
    const bool features = plan.has_features();
    if (features && plan.num_points > UINT32_MAX) {
        throw Unsupported("voxelize: features of more than 2^32 - 1 points on CUDA");
    }
    Cutter cutter(plan.workspace.data);
    BinJob job{plan, cut_bins(plan, cutter), 0};
    SortedTiles& tiles = job.space.tiles;
    if (tiles.num_tiles > INT32_MAX) throw Unsupported("voxelize: more points than a CUDA grid has blocks");
    const Places places(plan);
    for (std::int64_t first_bin = 0; first_bin < job.space.num_bins; first_bin += max_bins) {
        tiles.num_bins = static_cast<std::int32_t>(std::min<std::int64_t>(job.space.num_bins - first_bin, max_bins));
        job.first_cell = first_bin << tiles.bin_bits;
        if (tiles.num_tiles > 0) {
            std::int64_t* dropped = first_bin == 0 ? plan.dropped : nullptr;
            sort_points({places, tiles, job.first_cell, dropped, {}, job.space.listed}, features, stream);
        }
        if (features) {
            launch_features(job, stream);
            continue;
        }
        const bool marks = has_marks_only(plan);
        const std::int64_t cells = std::int64_t{1} << tiles.bin_bits;
        launch_overlapped(marks ? &fill_bins<true> : &fill_bins<false>,
                          {tiles.num_bins, fill_bin_threads(cells, marks), marks ? cells / 8 : cells * 4}, stream, job,
                          "voxelize: launching fill_bins");
    }
}

// ---- slots ----------------------------------------------------------------------------------------------------------

/// Counters of a bin fit beside two blocks of sort_slots only with the largest share of shared memory.
template <class Kernel>
void prefer_shared(Kernel* kernel) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
               "cudaFuncSetAttribute");
}

void by_slots(const DensePlan& plan, cudaStream_t stream) {
    Cutter cutter(plan.workspace.data);
    const FillJob fill{plan, cut_slots(plan, cutter)};
    const SlotTiles& tiles = fill.tiles;
    const bool marks = has_marks_only(plan);
    const bool many = tiles.num_tiles > one_wave;
    if (tiles.num_tiles > 0) {
        const SlotJob job{Places(plan), tiles, can_stream(plan.points), plan.dropped};
        if (!marks) prefer_shared(&sort_slots<true>);
        launch_overlapped(marks ? &sort_slots<false> : &sort_slots<true>,
                          {tiles.num_tiles, slot_threads, many ? slot_bytes_of_three : slot_bytes_of_two}, stream, job,
                          "voxelize: launching sort_slots");
    }
    if (!marks && !many) prefer_shared(&fill_from_slots<false, false>);
    const auto kernel = marks ? (many ? &fill_from_slots<true, true> : &fill_from_slots<true, false>)
                              : (many ? &fill_from_slots<false, true> : &fill_from_slots<false, false>);
    const std::int64_t bytes = marks ? tiles.bin_cells / 8 : tiles.bin_cells * std::int64_t{4};
    launch_overlapped(kernel, {tiles.num_bins, slot_fill_threads, bytes}, stream, fill,
                      "voxelize: launching fill_from_slots");
}

// ---- bits in shared memory ------------------------------------------------------------------------------------------

void by_own_bits(const DensePlan& plan, cudaStream_t stream) {
    const std::int64_t all_words = (plan.grid.num_cells + 31) / 32;
    const std::int64_t parts = std::clamp<std::int64_t>(num_sms() / plan.num_clouds, 1, most_own_parts);
    const std::int64_t words = ((all_words + parts - 1) / parts + 3) / 4 * 4;
    const OwnJob job{Places(plan),
                     static_cast<std::int32_t>((all_words + words - 1) / words),
                     static_cast<std::int32_t>(words),
                     plan.out,
                     plan.out_dtype,
                     plan.dropped};
    launch_overlapped(job.places.is_f32() ? &mark_own_cells<true> : &mark_own_cells<false>,
                      {plan.num_clouds * job.parts, own_threads, 4 * words}, stream, job,
                      "voxelize: launching mark_own_cells");
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
    if (plan.path == DensePath::own) return by_own_bits(plan, handle);
    if (plan.dropped != nullptr) {
        check_cuda(cudaMemsetAsync(plan.dropped, 0, static_cast<std::size_t>(plan.num_clouds) * 8, handle),
                   "voxelize: clearing dropped");
    }
    switch (plan.path) {
        case DensePath::marks: return by_marks(plan, handle);
        case DensePath::bins: return by_bins(plan, handle);
        default: return by_slots(plan, handle);
    }
}

}  // namespace robocache::voxelize_detail
