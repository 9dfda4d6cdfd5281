// A scan of a room becomes an occupancy grid, and the mean of the points in every occupied cell, in plain C++.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <robocache/robocache.hpp>
#include <vector>

using namespace robocache;

int main() {
    // 64 beams, 2048 steps: the walls of a room of 8 m x 6 m x 3 m, seen from its middle.
    const std::int64_t num_points = 64 * 2048;
    std::vector<float> points(num_points * 3);
    for (std::int64_t i = 0; i < num_points; ++i) {
        const float azimuth = 6.2831853F * static_cast<float>(i / 64) / 2048;
        const float elevation = 0.8F * (static_cast<float>(i % 64) / 63 - 0.5F);
        const float ray[3] = {std::cos(azimuth) * std::cos(elevation), std::sin(azimuth) * std::cos(elevation),
                              std::sin(elevation)};
        const float half[3] = {4, 3, 1.5F};
        float distance = 100;
        for (int a = 0; a < 3; ++a) distance = std::fmin(distance, half[a] / std::fmax(std::fabs(ray[a]), 1e-6F));
        for (int a = 0; a < 3; ++a) points[i * 3 + a] = ray[a] * distance;
    }
    PointsView scan;
    scan.points = TensorView(points.data(), DType::f32, {num_points, 3});

    // Dense: which cells of 10 cm have a point. Points outside are counted, never put into a border cell.
    const VoxelGrid grid{{-4, -4, -2}, {0.1, 0.1, 0.1}, {80, 80, 40}};
    std::vector<std::uint8_t> occupied(80 * 80 * 40);
    std::int64_t dropped = 0;
    VoxelOutput dense;
    dense.grid = TensorView(occupied.data(), DType::boolean, {80, 80, 40});
    dense.dropped = TensorView(&dropped, DType::i64, {});
    run(plan_voxelize(scan, grid, {.dtype = DType::boolean}), dense);
    std::int64_t num_occupied = 0;
    for (const std::uint8_t cell : occupied) num_occupied += cell;

    // Sparse: the same cells as a list, with the mean of the points in each.
    const std::int64_t capacity = 50'000;
    std::vector<std::int32_t> coordinates(capacity * 4);
    std::vector<float> means(capacity * 3);
    std::int64_t found[2] = {0, 0};
    scan.features = scan.points;
    SparseOutput sparse;
    sparse.coordinates = TensorView(coordinates.data(), DType::i32, {capacity, 4});
    sparse.features = TensorView(means.data(), DType::f32, {capacity, 3});
    sparse.found = TensorView(found, DType::i64, {2});
    run(plan_voxelize_sparse(scan, grid, {.max_voxels = capacity}, {.reduction = Reduction::mean}), sparse);

    std::printf("%lld points, %lld dropped, %lld of %zu cells occupied; the first is (%d, %d, %d)\n",
                static_cast<long long>(num_points), static_cast<long long>(dropped),
                static_cast<long long>(num_occupied), occupied.size(), coordinates[1], coordinates[2], coordinates[3]);
    return found[0] == num_occupied && found[1] == dropped && num_occupied > 1000 ? 0 : 1;
}
