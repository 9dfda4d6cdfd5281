// Dense grids on CUDA: which path a plan takes and how its workspace is divided.
#include "ops/voxelize/cuda/dense_plan.hpp"

#include <algorithm>

#include "core/cuda/device.hpp"
#include "ops/voxelize/cuda/tuning.hpp"

namespace robocache::voxelize_detail {
namespace {

/// Points of f32 of one cloud, in a grid whose bins are not too large for one block each.
bool has_slots(const DensePlan& plan) {
    const std::int64_t bin_cells = std::min<std::int64_t>(most_slot_cells, most_shared() / 4 / 32 * 32);
    return !plan.has_features() && !plan.from_depth && plan.points.dtype == DType::f32 && plan.num_clouds == 1 &&
           plan.num_points <= most_slot_points && slot_bytes_of_two <= most_shared() &&
           plan.grid.num_cells <= num_slot_bins(num_sms()) * bin_cells && has_quick_cells(plan.grid);
}

}  // namespace

bool has_quick_cells(const GridPlan& grid) {
    bool quick = grid.num_cells > 0 && grid.num_cells <= INT32_MAX;
    for (int a = 0; a < 3; ++a) {
        float less = 0;
        float more = 0;
        quick = quick && make_quick(grid.f32.size[a], less, more) && grid.shape[a] <= QuickGrid::most_cells;
    }
    return quick;
}

std::int64_t most_shared() {
    return shared_of_block() - own_shared_bytes;
}

DensePath path_of(const DensePlan& plan) {
    if (has_slots(plan)) return DensePath::slots;
    if (!has_marks_only(plan)) return DensePath::bins;
    if (plan.from_depth) {
        const bool exact = plan.depth.width <= most_exact_pixels && plan.depth.height <= most_exact_pixels;
        return exact && has_quick_cells(plan.grid) ? DensePath::marks : DensePath::bins;
    }
    const std::int64_t bytes = (plan.grid.num_cells + 31) / 32 * 4;
    return plan.num_clouds >= own_clouds && bytes <= std::min(own_bytes, most_shared()) ? DensePath::own
                                                                                        : DensePath::bins;
}

BinSpace cut_bins(const DensePlan& plan, Cutter& cutter) {
    BinSpace space;
    SortedTiles& tiles = space.tiles;
    const bool features = plan.has_features();
    const bool many = !features && plan.num_points > small_cloud && !plan.from_depth && plan.points.dtype == DType::f32;
    tiles.tile = (many ? points_per_thread_of_many : points_per_thread) * sort_threads;
    tiles.num_tiles = (plan.num_points + tiles.tile - 1) / tiles.tile;
    const int most_bits =
        has_marks_only(plan) ? most_mark_bin_bits : (features ? most_feature_bin_bits : most_count_bin_bits);
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
    const std::int32_t key_bytes = features ? 4 : 2;
    tiles.unit = tiles.num_bins <= wide_bins ? 16 / key_bytes : 1;
    tiles.pitch = (tiles.tile + tiles.num_bins * (tiles.unit - 1) + 7) / 8 * 8;
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

SlotTiles cut_slots(const DensePlan& plan, Cutter& cutter) {
    SlotTiles tiles{};
    const std::int64_t parts = (plan.num_points + part_points - 1) / part_points;
    tiles.parts = static_cast<std::int32_t>(
        std::clamp<std::int64_t>((parts + one_wave - 1) / one_wave, slot_threads / 32, most_slot_parts));
    tiles.num_tiles = static_cast<std::int32_t>((parts + tiles.parts - 1) / tiles.parts);
    const std::int64_t num_bins = num_slot_bins(num_sms());
    const std::int64_t lots = (plan.grid.num_cells + 31) / 32;  // of 32 cells
    const std::int64_t lots_of_bin = std::max<std::int64_t>(2, (lots + num_bins - 1) / num_bins);
    tiles.num_bins = static_cast<std::int32_t>((lots + lots_of_bin - 1) / lots_of_bin);
    tiles.bin_cells = static_cast<std::uint32_t>(32 * lots_of_bin);
    tiles.to_bin = static_cast<std::uint32_t>(((std::int64_t{1} << 32) + lots_of_bin - 1) / lots_of_bin);
    tiles.rows = cutter.take<uint4>(std::int64_t{tiles.num_tiles} * tiles.num_bins * (row_slots / 8));
    tiles.spans = cutter.take<std::uint16_t>(std::int64_t{tiles.num_tiles} * slot_span_pitch);
    return tiles;
}

}  // namespace robocache::voxelize_detail
