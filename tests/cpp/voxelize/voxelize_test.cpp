// voxelize as a C++ user calls it: the contract, and by name the defects that others had.
#include "robocache/voxelize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.hpp"
#include "robocache/errors.hpp"
#include "voxelize_box.hpp"

namespace robocache {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(Voxelize, CellsAreInTheOrderXYZOnAGridThatIsNoCube) {
    Box box;
    box.points = {1.5F, 2.5F, 3.5F, 1.5F, 0.5F, 0.5F, 0.5F, 0.5F, 3.5F, 0.5F, 0.5F, 3.6F};
    box.run();
    EXPECT_EQ(box.count(1, 2, 3), 1);
    EXPECT_EQ(box.count(1, 0, 0), 1);
    EXPECT_EQ(box.count(0, 0, 3), 2);
    EXPECT_EQ(box.total(), 4);
    EXPECT_EQ(box.dropped, 0);
}

TEST(Voxelize, PointsOutsideOrNotFiniteAreDroppedAndCounted) {
    Box box;
    box.points = {nan,  0.5F, 0.5F, 0.5F, infinity, 0.5F, 0.5F, 0.5F,    -infinity, -0.5F, 0.5F,
                  0.5F, 0.5F, 3.5F, 0.5F, 1e30F,    0.5F, 0.5F, -1e-40F, 0.5F,      0.5F};
    box.run();
    EXPECT_EQ(box.total(), 0);
    EXPECT_EQ(box.dropped, 7);
}

TEST(Voxelize, UpperFacesAreOutsideAndLowerFacesInside) {
    Box box;
    box.points = {2, 0, 0, 0, 3, 0, 0, 0, 4, -0.0F, 0, 0, 1, 2, 3, std::nextafter(2.0F, 0.0F), 2.999999F, 3.999999F};
    box.run();
    EXPECT_EQ(box.dropped, 3);
    EXPECT_EQ(box.count(0, 0, 0), 1);
    EXPECT_EQ(box.count(1, 2, 3), 2);
}

TEST(Voxelize, SizesWithoutAnExactReciprocalDivide) {
    for (const double size : {0.1, 0.05, 0.3}) {
        std::vector<float> points;
        for (int k = 0; k < 3000; ++k) {
            points.insert(points.end(), {static_cast<float>(k) * static_cast<float>(size), 0, 0});
        }
        std::vector<std::int64_t> counts(4000);
        PointsView view;
        view.points = TensorView(points.data(), DType::f32, {3000, 3});
        VoxelOutput output;
        output.grid = TensorView(counts.data(), DType::i64, {4000, 1, 1});
        VoxelOptions options;
        options.reduction = Reduction::count;
        options.dtype = DType::i64;
        run(plan_voxelize(view, {{0, 0, 0}, {size, size, size}, {4000, 1, 1}}, options), output);
        std::vector<std::int64_t> expected(4000);
        for (int k = 0; k < 3000; ++k) {
            ++expected[static_cast<std::size_t>(
                std::floor(points[static_cast<std::size_t>(3 * k)] / static_cast<float>(size)))];
        }
        EXPECT_EQ(counts, expected) << size;
    }
}

TEST(Voxelize, NegativeFeaturesHaveAMaximum) {
    Box box;
    box.points = {0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F};
    box.features = {-5, -3};
    box.options.reduction = Reduction::max;
    box.options.fill = -100;
    box.run();
    EXPECT_EQ(box.value(0, 0, 0), -3.0F);
    EXPECT_EQ(box.value(1, 1, 1), -100.0F);
}

TEST(Voxelize, NaNFeaturesPropagateAndZerosHaveAnOrder) {
    Box box;
    box.points = {0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 1.5F, 0.5F, 0.5F, 1.5F};
    box.features = {nan, 1, 0.0F, -0.0F};
    box.options.reduction = Reduction::min;
    box.run();
    EXPECT_TRUE(std::isnan(box.value(0, 0, 0)));
    EXPECT_TRUE(std::signbit(box.value(0, 0, 1)));
    box.options.reduction = Reduction::max;
    box.run();
    EXPECT_TRUE(std::isnan(box.value(0, 0, 0)));
    EXPECT_FALSE(std::signbit(box.value(0, 0, 1)));
}

TEST(Voxelize, CountsStayExactWhereFloatsWouldStop) {
    constexpr std::int64_t many = (1 << 24) + 3;
    const float point[3] = {0.5F, 0.5F, 0.5F};
    PointsView view;
    view.points = TensorView(point, DType::f32, {many, 3});
    view.points.strides[0] = 0;  // all the same point
    std::vector<std::int64_t> counts(24);
    VoxelOutput output;
    output.grid = TensorView(counts.data(), DType::i64, {2, 3, 4});
    VoxelOptions options;
    options.reduction = Reduction::count;
    options.dtype = DType::i64;
    run(plan_voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, options), output);
    EXPECT_EQ(counts[0], many);
    std::vector<std::uint8_t> small(24);
    output.grid = TensorView(small.data(), DType::u8, {2, 3, 4});
    options.dtype = DType::u8;
    run(plan_voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, options), output);
    EXPECT_EQ(small[0], 255);
}

TEST(Voxelize, DeterministicSumsDoNotDependOnTheOrder) {
    Box box;
    for (int k = 0; k < 1000; ++k) {
        box.points.insert(box.points.end(), {0.5F, 0.5F, 0.5F});
        box.features.push_back(std::ldexp(static_cast<float>(k % 97) - 48.0F, k % 31 - 15));
    }
    box.options.reduction = Reduction::sum;
    box.options.deterministic = true;
    box.run();
    const float forwards = box.value(0, 0, 0);
    std::reverse(box.features.begin(), box.features.end());
    box.run();
    EXPECT_EQ(forwards, box.value(0, 0, 0));
    double exact = 0;
    for (const float x : box.features) exact += static_cast<double>(x);
    EXPECT_EQ(forwards, static_cast<float>(exact));
}

TEST(Voxelize, NoPointsMakeAnEmptyGrid) {
    Box box;
    box.run();
    EXPECT_EQ(box.counts, std::vector<std::int32_t>(24, 0));
    EXPECT_EQ(box.dropped, 0);
}

TEST(Voxelize, AnyStridesHalvesAndDoubles) {
    const std::vector<double> columns = {0.5, 1.5, -9, 0.5, 2.5, 0, 3.5, 0.5, 0};  // (3, 3) by columns
    PointsView view;
    view.points = TensorView(columns.data(), DType::f64, {3, 3});
    view.points.strides = {1, 3};
    std::vector<std::uint16_t> features = {to_half(2).bits, 99, to_half(4).bits, 99, to_half(6).bits, 99};
    view.features = TensorView(features.data(), DType::f16, {3, 1});
    view.features->strides[0] = 2;
    std::vector<std::uint16_t> out(24);
    VoxelOutput output;
    output.grid = TensorView(out.data(), DType::f16, {2, 3, 4, 1});
    VoxelOptions options;
    options.reduction = Reduction::mean;
    run(plan_voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, options), output);
    EXPECT_EQ(to_float(Half{out[3]}), 2.0F);
    EXPECT_EQ(to_float(Half{out[(1 * 3 + 2) * 4]}), 4.0F);
}

TEST(Voxelize, CellsOfDoublesAreComputedInDouble) {
    const double far = 4e8 + 0.25;  // float32 has steps of 32 there
    const double points[3] = {far, far, far};
    PointsView view;
    view.points = TensorView(points, DType::f64, {1, 3});
    std::vector<std::int32_t> counts(24);
    VoxelOutput output;
    output.grid = TensorView(counts.data(), DType::i32, {2, 3, 4});
    VoxelOptions options;
    options.reduction = Reduction::count;
    run(plan_voxelize(view, {{4e8, 4e8 - 1, 4e8 - 2}, {1, 1, 1}, {2, 3, 4}}, options), output);
    EXPECT_EQ(counts[(0 * 3 + 1) * 4 + 2], 1);
}

TEST(Voxelize, APlanGivesTheOutputsAndIsRunAgain) {
    Box box;
    box.points = {0.5F, 0.5F, 0.5F};
    box.features = {3};
    box.options.reduction = Reduction::mean;
    const VoxelOutput to = box.output();
    const VoxelPlan plan = plan_voxelize(box.view(), box.grid, box.options);
    EXPECT_EQ(shape_text(plan.output().grid), "(2, 3, 4, 1)");
    EXPECT_EQ(plan.output().grid.dtype, DType::f32);
    EXPECT_EQ(plan.output().grid.data, nullptr);
    EXPECT_EQ(shape_text(*plan.output().counts), "(2, 3, 4)");
    EXPECT_EQ(shape_text(*plan.output().dropped), "()");
    EXPECT_EQ(plan.workspace_bytes(), 0);
    EXPECT_EQ(plan.device(), Device{});
    run(plan, to);
    EXPECT_EQ(box.value(0, 0, 0), 3.0F);
    box.features[0] = 5;
    run(plan, to);
    EXPECT_EQ(box.value(0, 0, 0), 5.0F);
}

TEST(Voxelize, ASparsePlanHasRoomForTheCellsThatThereCanBe) {
    Box box;
    for (int i = 0; i < 90; ++i) box.points.push_back(0.5F);
    const auto rows = [&](const VoxelGrid& grid, const SparseLimits& limits) {
        return plan_voxelize_sparse(box.view(), grid, limits, {Reduction::mean}).output().coordinates.shape[0];
    };
    EXPECT_EQ(rows(box.grid, {}), 24);
    EXPECT_EQ(rows({{0, 0, 0}, {1, 1, 1}, {0, 0, 0}}, {}), 30);
    SparseLimits limits;
    limits.max_voxels = 7;
    EXPECT_EQ(rows(box.grid, limits), 7);
    limits.max_voxels = 50;
    EXPECT_EQ(rows(box.grid, limits), 24);
    limits.padded = true;
    EXPECT_EQ(rows(box.grid, limits), 50);
}

// ---- depth ----------------------------------------------------------------------------------------------------------

TEST(VoxelizeDepth, PixelsBecomePointsAndNoMeasurementIsNoPoint) {
    const std::uint16_t depth[2][3] = {{1000, 0, 2000}, {1000, 9000, 1000}};
    const float intrinsics[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    DepthView images;
    images.depth = TensorView(&depth[0][0], DType::u16, {2, 3});
    images.intrinsics = TensorView(intrinsics, DType::f32, {3, 3});
    images.max_depth = 8;
    std::vector<std::int32_t> counts(5 * 2 * 3, 77);
    std::int64_t dropped = 77;
    VoxelOutput output;
    output.grid = TensorView(counts.data(), DType::i32, {5, 2, 3});
    output.dropped = TensorView(&dropped, DType::i64, {});
    VoxelOptions options;
    options.reduction = Reduction::count;
    const VoxelGrid grid{{0, 0, 0}, {1, 1, 1}, {5, 2, 3}};
    run(plan_voxelize(images, grid, options), output);
    const auto at = [&](int x, int y, int z) { return counts[static_cast<std::size_t>((x * 2 + y) * 3 + z)]; };
    EXPECT_EQ(at(0, 0, 1), 1);
    EXPECT_EQ(at(4, 0, 2), 1);
    EXPECT_EQ(at(0, 1, 1), 1);
    EXPECT_EQ(at(2, 1, 1), 1);
    EXPECT_EQ(dropped, 0);  // 0 and 9 m are no points at all

    float pose[16] = {0, 1, 0, 0, 1, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 1};  // x and y change places, y + 10
    images.pose = TensorView(pose, DType::f32, {4, 4});
    run(plan_voxelize(images, grid, options), output);
    EXPECT_EQ(dropped, 4);
    pose[7] = 0;
    run(plan_voxelize(images, grid, options), output);
    EXPECT_EQ(at(1, 0, 1), 1);
    EXPECT_EQ(dropped, 2);
}

TEST(VoxelizeDepth, ImagesOfABatchAndViewsOfACloud) {
    std::vector<float> depth(2 * 3 * 4 * 5, 1.5F);  // (B, V, H, W)
    std::vector<float> intrinsics;
    for (int i = 0; i < 6; ++i) intrinsics.insert(intrinsics.end(), {1e3F, 0, 0, 0, 1e3F, 0, 0, 0, 1});
    depth[0] = nan;
    depth[1] = -1;
    depth[2] = infinity;
    std::vector<float> color(2 * 3 * 4 * 5 * 2);
    for (std::size_t i = 0; i < color.size(); ++i) color[i] = static_cast<float>(i % 2 == 0 ? 1 : i / 120 + 1);
    DepthView images;
    images.depth = TensorView(depth.data(), DType::f32, {2, 3, 4, 5});
    images.intrinsics = TensorView(intrinsics.data(), DType::f32, {2, 3, 3, 3});
    images.features = TensorView(color.data(), DType::f32, {2, 3, 4, 5, 2});
    images.views = true;
    std::vector<float> out(2 * 2, 77);
    std::vector<std::int32_t> counts(2);
    VoxelOutput output;
    output.grid = TensorView(out.data(), DType::f32, {2, 1, 1, 1, 2});
    output.counts = TensorView(counts.data(), DType::i32, {2, 1, 1, 1});
    VoxelOptions options;
    options.reduction = Reduction::sum;
    options.counts = true;
    const VoxelGrid grid{{0, 0, 0}, {1, 1, 2}, {1, 1, 1}};
    run(plan_voxelize(images, grid, options), output);
    EXPECT_EQ(counts, (std::vector<std::int32_t>{57, 60}));
    EXPECT_EQ(out, (std::vector<float>{57, 57, 60, 120}));
    // The same through strides that no row of pixels shares.
    std::vector<float> spread(2 * 3 * 4 * 5 * 4);
    for (std::size_t i = 0; i < depth.size(); ++i) spread[2 * i] = depth[i];
    images.depth = TensorView(spread.data(), DType::f32, {2, 3, 4, 5});
    images.depth.strides = {120, 40, 10, 2};
    images.features->strides = {120, 40, 10, 2, 1};
    run(plan_voxelize(images, grid, options), output);
    EXPECT_EQ(out, (std::vector<float>{57, 57, 60, 120}));
}

TEST(Voxelize, NamesOfReductions) {
    for (const char* name : {"occupancy", "count", "sum", "mean", "min", "max", "std"}) {
        EXPECT_EQ(reduction_name(reduction_from_name(name)), name);
    }
    EXPECT_THROW((void)reduction_from_name("median"), InvalidArgument);
}

}  // namespace
}  // namespace robocache
