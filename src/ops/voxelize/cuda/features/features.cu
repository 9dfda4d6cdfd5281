// The launches of the feature kernels.
#include "ops/voxelize/cuda/features/features.hpp"

#include <algorithm>

#include "ops/voxelize/cuda/features/kernel.cuh"

namespace robocache::voxelize_detail {
namespace {

template <int bytes, Sums sums, int width>
void launch_write(const BinJob& job, cudaStream_t stream) {
    const SortedTiles& tiles = job.space.tiles;
    const std::int64_t cells =
        std::min(job.plan.total_cells() - job.first_cell, std::int64_t{tiles.num_bins} << tiles.bin_bits);
    launch_overlapped(write_features<bytes, sums, width>,
                      {(cells + feature_threads - 1) / feature_threads, feature_threads}, stream, job,
                      "voxelize: launching write_features");
}

/// Whether four channels can be read and written at once.
bool goes_by_four(const DensePlan& plan, std::int64_t bytes) {
    const FeaturesPlan& f = plan.features;
    std::int64_t steps = f.num_channels % 4 * bytes;
    steps |= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(f.data));
    for (const std::int64_t stride : f.strides) steps |= stride;
    const std::uintptr_t out_bytes = plan.out_dtype == DType::f32 ? 4 : 2;
    return f.channel_stride == bytes && steps % (4 * bytes) == 0 &&
           reinterpret_cast<std::uintptr_t>(plan.out) % (4 * out_bytes) == 0;
}

}  // namespace

void launch_features(const BinJob& job, cudaStream_t stream) {
    const SortedTiles& tiles = job.space.tiles;
    launch_overlapped(list_points, {tiles.num_bins, list_threads, std::int64_t{4} << tiles.bin_bits}, stream, job,
                      "voxelize: launching list_points");
    const std::int64_t bytes = job.plan.features.dtype == DType::f32 ? 4 : 2;
    const bool by_four = job.plan.features.dtype != DType::u8 && goes_by_four(job.plan, bytes);
    with_sums(sums_of(job.plan.reduction, job.plan.deterministic), [&](auto tag) {
        constexpr Sums sums = decltype(tag)::sums;
        if constexpr (Rounds<sums>::has_variants) {
            if (by_four && bytes == 4) return launch_write<4, sums, 4>(job, stream);
            if (by_four) return launch_write<2, sums, 4>(job, stream);
        }
        launch_write<any_bytes, sums, 1>(job, stream);
    });
}

}  // namespace robocache::voxelize_detail
