// A small call of voxelize, for the tests of its C++ API.
#pragma once

#include <cstdint>
#include <vector>

#include "robocache/voxelize.hpp"

namespace robocache {

/// Points and features into a (2, 3, 4) grid of unit cells at the origin.
struct Box {
    std::vector<float> points;
    std::vector<float> features;
    std::int64_t channels = 1;
    VoxelGrid grid{{0, 0, 0}, {1, 1, 1}, {2, 3, 4}};
    VoxelOptions options;
    std::vector<float> values = std::vector<float>(24, 77.0F);
    std::vector<std::int32_t> counts = std::vector<std::int32_t>(24, 77);
    std::int64_t dropped = 77;

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(points.size()) / 3; }
    [[nodiscard]] PointsView view() const {
        PointsView view;
        view.points = TensorView(points.data(), DType::f32, {size(), 3});
        if (!features.empty()) view.features = TensorView(features.data(), DType::f32, {size(), channels});
        return view;
    }
    /// Counts; features as well where there are any.
    VoxelOutput output() {
        VoxelOutput output;
        output.dropped = TensorView(&dropped, DType::i64, {});
        if (features.empty()) {
            options.reduction = Reduction::count;
            output.grid = TensorView(counts.data(), DType::i32, {2, 3, 4});
        } else {
            values.resize(static_cast<std::size_t>(24 * channels), 77.0F);
            output.grid = TensorView(values.data(), DType::f32, {2, 3, 4, channels});
            output.counts = TensorView(counts.data(), DType::i32, {2, 3, 4});
            options.counts = true;
        }
        return output;
    }
    void run() {
        const VoxelOutput to = output();
        robocache::run(plan_voxelize(view(), grid, options), to);
    }
    [[nodiscard]] std::int32_t count(int x, int y, int z) const {
        return counts[static_cast<std::size_t>((x * 3 + y) * 4 + z)];
    }
    [[nodiscard]] float value(int x, int y, int z) const {
        return values[static_cast<std::size_t>((x * 3 + y) * 4 + z)];
    }
    [[nodiscard]] std::int32_t total() const {
        std::int32_t sum = 0;
        for (const std::int32_t n : counts) sum += n;
        return sum;
    }
};

}  // namespace robocache
