// voxelize on the CPU against plain loops, to the bit where the contract says so, for every number of threads.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <ostream>

#include "robocache/threads.hpp"
#include "voxelize_reference.hpp"

namespace robocache {
namespace {

using namespace reference;

const VoxelGrid small_grid{{-1, -1, -1}, {0.1, 0.2, 0.05}, {20, 10, 40}};  // X, Y and Z differ

std::int64_t num_cells(const VoxelGrid& grid) {
    return grid.shape[0] * grid.shape[1] * grid.shape[2];
}

std::size_t index_of(const VoxelGrid& grid, const CellKey& key) {
    const auto [b, x, y, z] = key;
    return static_cast<std::size_t>(((b * grid.shape[0] + x) * grid.shape[1] + y) * grid.shape[2] + z);
}

TensorView cells_view(void* data, DType dtype, const Cloud& cloud, const VoxelGrid& grid, std::int64_t channels = 0) {
    TensorView view(data, dtype, {cloud.num_clouds(), grid.shape[0], grid.shape[1], grid.shape[2], channels});
    if (channels == 0) {
        view = TensorView(data, dtype, {cloud.num_clouds(), grid.shape[0], grid.shape[1], grid.shape[2]});
    }
    if (!cloud.offsets.empty()) return view;
    TensorView one = view;
    one.rank = view.rank - 1;
    std::copy(view.shape.begin() + 1, view.shape.begin() + view.rank, one.shape.begin());
    std::copy(view.strides.begin() + 1, view.strides.begin() + view.rank, one.strides.begin());
    return one;
}

struct Dense {
    std::vector<float> grid;
    std::vector<std::int32_t> counts;
    std::vector<std::int64_t> dropped;
};

Dense voxelize_features(const Cloud& cloud, const VoxelGrid& grid, const VoxelOptions& options) {
    const auto cells = static_cast<std::size_t>(num_cells(grid) * cloud.num_clouds());
    Dense dense{std::vector<float>(cells * static_cast<std::size_t>(cloud.channels), 77.0F),
                std::vector<std::int32_t>(cells, 77),
                std::vector<std::int64_t>(static_cast<std::size_t>(cloud.num_clouds()), 77)};
    VoxelOutput output;
    output.grid = cells_view(dense.grid.data(), DType::f32, cloud, grid, cloud.channels);
    output.counts = cells_view(dense.counts.data(), DType::i32, cloud, grid);
    output.dropped = cloud.offsets.empty() ? TensorView(dense.dropped.data(), DType::i64, {})
                                           : TensorView(dense.dropped.data(), DType::i64, {cloud.num_clouds()});
    VoxelOptions with_counts = options;
    with_counts.counts = true;
    run(plan_voxelize(cloud.view(), grid, with_counts), output);
    return dense;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::uint32_t bits(float x) {
    return std::bit_cast<std::uint32_t>(x);
}

/// Sums in another order than the reference's: equal within their rounding.
bool close(float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b || std::fabs(a - b) <= 1e-5F * std::max(1.0F, std::max(std::fabs(a), std::fabs(b)));
}

struct Threads {
    explicit Threads(int count) : before(num_threads()) { set_num_threads(count); }
    ~Threads() { set_num_threads(before); }
    int before;
};

struct Case {
    std::int64_t points;
    std::int64_t channels;
    std::int64_t clouds;
    bool specials;
};

std::ostream& operator<<(std::ostream& to, const Case& c) {
    return to << c.points << " points, " << c.channels << " channels, " << c.clouds << " clouds"
              << (c.specials ? ", special features" : "");
}

class VoxelizeValues : public testing::TestWithParam<Case> {
protected:
    Cloud cloud() const {
        const Case c = GetParam();
        return random_cloud(c.points, c.channels, c.clouds, static_cast<unsigned>(c.points + c.channels), c.specials);
    }
};

TEST_P(VoxelizeValues, DenseFeaturesAreThoseOfPlainLoops) {
    const Cloud cloud = this->cloud();
    const Cells cells = find_cells(cloud, small_grid);
    for (const Reduction reduction : {Reduction::sum, Reduction::mean, Reduction::min, Reduction::max}) {
        for (const bool deterministic : {false, true}) {
            const bool exact = deterministic || reduction >= Reduction::min;
            if (!exact && GetParam().specials) continue;  // 1e38 may overflow or not, depending on the order
            VoxelOptions options;
            options.reduction = reduction;
            options.deterministic = deterministic;
            options.fill = -3;
            const Dense dense = voxelize_features(cloud, small_grid, options);
            EXPECT_EQ(dense.dropped, cells.dropped);
            std::vector<std::int32_t> counts(dense.counts.size());
            std::vector<float> expected(dense.grid.size(), reduction >= Reduction::min ? -3.0F : 0.0F);
            for (const auto& [key, points] : cells.points) {
                const std::size_t cell = index_of(small_grid, key);
                counts[cell] = static_cast<std::int32_t>(points.size());
                for (std::int64_t c = 0; c < cloud.channels; ++c) {
                    expected[cell * static_cast<std::size_t>(cloud.channels) + static_cast<std::size_t>(c)] =
                        reduce(cloud, points, c, reduction);
                }
            }
            EXPECT_EQ(dense.counts, counts);
            std::int64_t wrong = 0;
            for (std::size_t i = 0; i < expected.size(); ++i) {
                const float got = dense.grid[i];
                const bool good = exact ? bits(got) == bits(expected[i]) : close(got, expected[i]);
                if (!good && wrong++ < 3) {
                    ADD_FAILURE() << reduction_name(reduction) << " " << deterministic << " at " << i << ": " << got
                                  << " instead of " << expected[i];
                }
            }
            EXPECT_EQ(wrong, 0);
        }
    }
}

TEST_P(VoxelizeValues, DenseResultsDoNotDependOnThreads) {
    const Cloud cloud = this->cloud();
    for (const Reduction reduction :
         {Reduction::sum, Reduction::mean, Reduction::min, Reduction::max, Reduction::std}) {
        for (const bool deterministic : {false, true}) {
            VoxelOptions options;
            options.reduction = reduction;
            options.deterministic = deterministic;
            const Threads alone(1);
            const Dense one = voxelize_features(cloud, small_grid, options);
            for (const int threads : {2, 3, 8}) {
                const Threads many(threads);
                const Dense dense = voxelize_features(cloud, small_grid, options);
                EXPECT_TRUE(same_bits(one.grid, dense.grid)) << reduction_name(reduction) << " " << threads;
                EXPECT_EQ(one.counts, dense.counts);
                EXPECT_EQ(one.dropped, dense.dropped);
            }
        }
    }
}

template <class T>
std::vector<T> voxelize_counts(Cloud cloud, const VoxelGrid& grid, Reduction reduction, DType dtype) {
    cloud.channels = 0;
    std::vector<T> out(static_cast<std::size_t>(num_cells(grid) * cloud.num_clouds()), T(77));
    VoxelOptions options;
    options.reduction = reduction;
    options.dtype = dtype;
    VoxelOutput output;
    output.grid = cells_view(out.data(), dtype, cloud, grid);
    run(plan_voxelize(cloud.view(), grid, options), output);
    return out;
}

TEST_P(VoxelizeValues, CountsAndOccupancyInEveryDtype) {
    const Cloud cloud = this->cloud();
    const Cells cells = find_cells(cloud, small_grid);
    const auto check = [&]<class T>(T, Reduction reduction, DType dtype) {
        const std::vector<T> out = voxelize_counts<T>(cloud, small_grid, reduction, dtype);
        std::vector<T> expected(out.size());
        for (const auto& [key, points] : cells.points) {
            const std::size_t most = dtype == DType::u8 ? 255 : points.size();
            expected[index_of(small_grid, key)] =
                static_cast<T>(reduction == Reduction::occupancy ? 1 : std::min(points.size(), most));
        }
        EXPECT_EQ(out, expected) << name(dtype);
    };
    check(std::uint8_t{}, Reduction::occupancy, DType::boolean);
    check(std::uint8_t{}, Reduction::occupancy, DType::u8);
    check(std::int32_t{}, Reduction::occupancy, DType::i32);
    check(float{}, Reduction::occupancy, DType::f32);
    check(std::uint8_t{}, Reduction::count, DType::u8);
    check(std::int32_t{}, Reduction::count, DType::i32);
    check(std::int64_t{}, Reduction::count, DType::i64);
}

struct Sparse {
    std::vector<std::int32_t> coordinates;
    std::vector<float> features;
    std::vector<std::int32_t> counts;
    std::vector<std::int64_t> voxel;
    std::vector<std::int64_t> first;
    std::vector<std::int64_t> found = std::vector<std::int64_t>(2, 77);
};

Sparse voxelize_cells(const Cloud& cloud, const VoxelGrid& grid, const VoxelOptions& options, std::int64_t capacity,
                      std::int64_t max_points = 2) {
    const auto rows = static_cast<std::size_t>(capacity);
    Sparse sparse;
    sparse.coordinates.assign(rows * 4, 77);
    sparse.features.assign(rows * static_cast<std::size_t>(cloud.channels), 77);
    sparse.counts.assign(rows, 77);
    sparse.voxel.assign(static_cast<std::size_t>(cloud.size()), 77);
    sparse.first.assign(rows * static_cast<std::size_t>(max_points), 77);
    SparseOutput output;
    output.coordinates = TensorView(sparse.coordinates.data(), DType::i32, {capacity, 4});
    output.features = TensorView(sparse.features.data(), DType::f32, {capacity, cloud.channels});
    output.counts = TensorView(sparse.counts.data(), DType::i32, {capacity});
    output.voxel = TensorView(sparse.voxel.data(), DType::i64, {cloud.size()});
    output.first_points = TensorView(sparse.first.data(), DType::i64, {capacity, max_points});
    output.found = TensorView(sparse.found.data(), DType::i64, {2});
    SparseLimits limits;
    limits.max_voxels = capacity;
    limits.padded = true;
    limits.max_points = max_points;
    run(plan_voxelize_sparse(cloud.view(), grid, limits, options), output);
    return sparse;
}

void check_sparse(const Cloud& cloud, const VoxelGrid& grid, Reduction reduction, std::int64_t capacity) {
    const Cells cells = find_cells(cloud, grid);
    VoxelOptions options;
    options.reduction = reduction;
    options.deterministic = true;
    const Sparse sparse = voxelize_cells(cloud, grid, options, capacity);
    std::int64_t dropped = 0;
    for (const std::int64_t n : cells.dropped) dropped += n;
    EXPECT_EQ(sparse.found, (std::vector<std::int64_t>{static_cast<std::int64_t>(cells.points.size()), dropped}));
    std::map<CellKey, std::int64_t> rows;
    Sparse expected;
    for (const auto& [key, points] : cells.points) {
        const auto row = static_cast<std::int64_t>(rows.size());
        rows[key] = row < capacity ? row : -1;
        if (row >= capacity) continue;
        const auto [b, x, y, z] = key;
        for (const std::int64_t c : {b, x, y, z}) expected.coordinates.push_back(static_cast<std::int32_t>(c));
        expected.counts.push_back(static_cast<std::int32_t>(points.size()));
        expected.first.push_back(points[0]);
        expected.first.push_back(points.size() > 1 ? points[1] : -1);
        for (std::int64_t c = 0; c < cloud.channels; ++c) {
            expected.features.push_back(reduce(cloud, points, c, reduction));
        }
    }
    // What is beyond the cells found is not written.
    expected.coordinates.resize(sparse.coordinates.size(), 77);
    expected.counts.resize(sparse.counts.size(), 77);
    expected.first.resize(sparse.first.size(), 77);
    expected.features.resize(sparse.features.size(), 77);
    for (const CellKey& key : cells.cell_of) {
        expected.voxel.push_back(std::get<0>(key) < 0 ? -1 : rows[key]);
    }
    EXPECT_EQ(sparse.coordinates, expected.coordinates);
    EXPECT_EQ(sparse.counts, expected.counts);
    EXPECT_EQ(sparse.first, expected.first);
    EXPECT_EQ(sparse.voxel, expected.voxel);
    EXPECT_TRUE(same_bits(sparse.features, expected.features));
}

TEST_P(VoxelizeValues, SparseCellsAreThoseOfPlainLoops) {
    const Cloud cloud = this->cloud();
    VoxelGrid unbounded = small_grid;
    unbounded.shape = {0, 0, 0};
    unbounded.origin = {0.03, 0, 0.2};  // negative cells
    VoxelGrid fine = unbounded;
    fine.size = {1e-4, 1e-4, 1e-4};  // keys of more than 32 bits
    VoxelGrid wide{{-1, -1, -1}, {0.01, 0.01, 0.01}, {1000, 2000, 1500}};
    for (const VoxelGrid& grid : {small_grid, unbounded, fine, wide}) {
        for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::min, Reduction::max}) {
            if (cloud.size() > 10000 && reduction != Reduction::mean) continue;  // the plain loops take their time
            check_sparse(cloud, grid, reduction, cloud.size() + 1);
        }
        check_sparse(cloud, grid, Reduction::mean, 7);
        check_sparse(cloud, grid, Reduction::mean, 0);
        check_sparse(cloud, grid, Reduction::mean, 2100);
        const Threads one(1);
        check_sparse(cloud, grid, Reduction::mean, cloud.size() + 1);
    }
}

TEST_P(VoxelizeValues, GradientsAreThoseOfPlainLoops) {
    const Cloud cloud = this->cloud();
    const Cells cells = find_cells(cloud, small_grid);
    const auto values = static_cast<std::size_t>(num_cells(small_grid) * cloud.num_clouds() * cloud.channels);
    std::vector<float> grid_gradient(values);
    for (std::size_t i = 0; i < values; ++i) grid_gradient[i] = static_cast<float>(i % 1013) - 500.0F;
    for (const Reduction reduction : {Reduction::sum, Reduction::mean, Reduction::min, Reduction::max}) {
        VoxelOptions options;
        options.reduction = reduction;
        options.deterministic = true;
        const Dense dense = voxelize_features(cloud, small_grid, options);
        std::vector<float> gradient(cloud.features.size(), 77);
        VoxelGradient to;
        to.grid = cells_view(grid_gradient.data(), DType::f32, cloud, small_grid, cloud.channels);
        to.values = cells_view(const_cast<float*>(dense.grid.data()), DType::f32, cloud, small_grid, cloud.channels);
        to.features = TensorView(gradient.data(), DType::f32, {cloud.size(), cloud.channels});
        run(plan_voxelize_backward(cloud.view(), small_grid, cloud.channels, options), to);
        std::vector<float> expected(gradient.size());
        for (const auto& [key, points] : cells.points) {
            for (std::int64_t c = 0; c < cloud.channels; ++c) {
                const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(i * cloud.channels + c); };
                const std::size_t cell =
                    index_of(small_grid, key) * static_cast<std::size_t>(cloud.channels) + static_cast<std::size_t>(c);
                const float g = grid_gradient[cell];
                if (reduction <= Reduction::mean) {
                    const float n = reduction == Reduction::mean ? static_cast<float>(points.size()) : 1.0F;
                    for (const std::int64_t i : points) expected[at(i)] = g / n;
                    continue;
                }
                for (const std::int64_t i : points) {
                    const float x = cloud.features[at(i)];
                    const float best = dense.grid[cell];
                    if (bits(x) == bits(best) || (std::isnan(x) && std::isnan(best))) {
                        expected[at(i)] = g;
                        break;
                    }
                }
            }
        }
        EXPECT_TRUE(same_bits(gradient, expected)) << reduction_name(reduction);
    }
}

INSTANTIATE_TEST_SUITE_P(Clouds, VoxelizeValues,
                         testing::Values(Case{0, 3, 1, false}, Case{1, 1, 1, false}, Case{900, 3, 1, false},
                                         Case{5000, 4, 1, true}, Case{40000, 5, 1, false}, Case{3000, 17, 6, true},
                                         Case{70000, 2, 5, false}, Case{2000, 1, 300, true}));

}  // namespace
}  // namespace robocache
