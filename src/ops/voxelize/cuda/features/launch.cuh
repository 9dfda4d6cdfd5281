// The launches of the feature kernels: a source file for each type of features, so that they compile side by side.
#pragma once

#include <algorithm>

#include "ops/voxelize/cuda/features/bins.cuh"

namespace robocache::voxelize_detail {
namespace {

constexpr unsigned left_blocks = 384;  // for bins that write_bins leaves

template <class In, Sums sums, int width>
void launch_features_as(const FeatureArguments& args, cudaStream_t stream) {
    const auto bins = static_cast<unsigned>(args.tiles.num_bins);
    if (args.piece_cells == 0) {
        const std::int64_t left = args.num_cells - args.first_cell;
        const std::int64_t cells = std::min(left, std::int64_t{args.tiles.num_bins} << args.tiles.bin_bits);
        launch_overlapped(write_features<In, sums, width>, blocks_for(cells, feature_threads), feature_threads, 0,
                          stream, args, "voxelize: launching write_features");
        return;
    }
    constexpr auto kernel = write_bins<In, sums, width>;
    allow_shared(kernel, sizeof(BinShared));
    launch_overlapped(kernel, bins, list_threads, sizeof(BinShared), stream, PointFeatures{args},
                      "voxelize: launching write_bins");
    const unsigned parts = (1U << args.tiles.bin_bits) / feature_threads;
    launch_overlapped(write_left_bins<In, sums, width>, parts * std::min(bins, left_blocks / parts), feature_threads, 0,
                      stream, args, "voxelize: launching write_left_bins");
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
    const bool extreme = args.reduction == Reduction::min || args.reduction == Reduction::max;
    if (extreme && by_four) return launch_features_as<In, Sums::extreme, 4>(args, stream);
    if (extreme) return launch_features_as<In, Sums::extreme, 1>(args, stream);
    if (deterministic && by_four) return launch_features_as<In, Sums::fixed, 4>(args, stream);
    if (deterministic) return launch_features_as<In, Sums::fixed, 1>(args, stream);
    if (by_four) return launch_features_as<In, Sums::plain, 4>(args, stream);
    launch_features_as<In, Sums::plain, 1>(args, stream);
}

}  // namespace
}  // namespace robocache::voxelize_detail
