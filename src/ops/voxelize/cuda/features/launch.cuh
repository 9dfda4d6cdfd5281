// The launches of the feature kernels: a source file for each type of features, so that they compile side by side.
#pragma once

#include <algorithm>

#include "ops/voxelize/cuda/features/kernel.cuh"

namespace robocache::voxelize_detail {
namespace {

template <class In, Sums sums, int width>
void launch_features_as(const FeatureArguments& args, cudaStream_t stream) {
    const std::int64_t left = args.num_cells - args.first_cell;
    const std::int64_t cells = std::min(left, std::int64_t{args.tiles.num_bins} << args.tiles.bin_bits);
    launch_overlapped(write_features<In, sums, width>, blocks_for(cells, feature_threads), feature_threads, 0, stream,
                      args, "voxelize: launching write_features");
}

template <class In>
void launch_features_of(const FeatureArguments& args, bool deterministic, cudaStream_t stream) {
    const FeaturesPlan& f = args.features;
    std::int64_t steps = f.num_channels % 4 * static_cast<std::int64_t>(sizeof(In));
    steps |= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(f.data));
    for (const std::int64_t stride : f.strides) steps |= stride;
    const std::int64_t out_bytes = args.out_is_f32 ? 4 : static_cast<std::int64_t>(sizeof(In));
    const bool by_four = f.channel_stride == sizeof(In) && steps % (4 * static_cast<std::int64_t>(sizeof(In))) == 0 &&
                         reinterpret_cast<std::uintptr_t>(args.out) % static_cast<std::uintptr_t>(4 * out_bytes) == 0;
    with_sums(sums_of(args.reduction, deterministic), [&](auto tag) {
        constexpr Sums sums = decltype(tag)::sums;
        if constexpr (Rounds<sums>::has_variants) {
            if (by_four) return launch_features_as<In, sums, 4>(args, stream);
        }
        launch_features_as<In, sums, 1>(args, stream);
    });
}

}  // namespace
}  // namespace robocache::voxelize_detail
