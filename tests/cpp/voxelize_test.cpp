// voxelize as a C++ user calls it: the contract, and by name the defects that others had.
#include "robocache/voxelize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/numeric.hpp"
#include "ops/voxelize/kernel.hpp"
#include "robocache/errors.hpp"
#include "robocache/system.hpp"

namespace robocache {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

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
        }
        return output;
    }
    void run() {
        const VoxelOutput to = output();
        voxelize(view(), grid, to, options);
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
        voxelize(view, {{0, 0, 0}, {size, size, size}, {4000, 1, 1}}, output, options);
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
    voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, output, options);
    EXPECT_EQ(counts[0], many);
    std::vector<std::uint8_t> small(24);
    output.grid = TensorView(small.data(), DType::u8, {2, 3, 4});
    voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, output, options);
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
    voxelize(view, {{0, 0, 0}, {1, 1, 1}, {2, 3, 4}}, output, options);
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
    voxelize(view, {{4e8, 4e8 - 1, 4e8 - 2}, {1, 1, 1}, {2, 3, 4}}, output, options);
    EXPECT_EQ(counts[(0 * 3 + 1) * 4 + 2], 1);
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
    voxelize_depth(images, grid, output, options);
    const auto at = [&](int x, int y, int z) { return counts[static_cast<std::size_t>((x * 2 + y) * 3 + z)]; };
    EXPECT_EQ(at(0, 0, 1), 1);
    EXPECT_EQ(at(4, 0, 2), 1);
    EXPECT_EQ(at(0, 1, 1), 1);
    EXPECT_EQ(at(2, 1, 1), 1);
    EXPECT_EQ(dropped, 0);  // 0 and 9 m are no points at all

    float pose[16] = {0, 1, 0, 0, 1, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 1};  // x and y change places, y + 10
    images.pose = TensorView(pose, DType::f32, {4, 4});
    voxelize_depth(images, grid, output, options);
    EXPECT_EQ(dropped, 4);
    pose[7] = 0;
    voxelize_depth(images, grid, output, options);
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
    std::vector<float> colour(2 * 3 * 4 * 5 * 2);
    for (std::size_t i = 0; i < colour.size(); ++i) colour[i] = static_cast<float>(i % 2 == 0 ? 1 : i / 120 + 1);
    DepthView images;
    images.depth = TensorView(depth.data(), DType::f32, {2, 3, 4, 5});
    images.intrinsics = TensorView(intrinsics.data(), DType::f32, {2, 3, 3, 3});
    images.features = TensorView(colour.data(), DType::f32, {2, 3, 4, 5, 2});
    images.views = true;
    std::vector<float> out(2 * 2, 77);
    std::vector<std::int32_t> counts(2);
    VoxelOutput output;
    output.grid = TensorView(out.data(), DType::f32, {2, 1, 1, 1, 2});
    output.counts = TensorView(counts.data(), DType::i32, {2, 1, 1, 1});
    VoxelOptions options;
    options.reduction = Reduction::sum;
    const VoxelGrid grid{{0, 0, 0}, {1, 1, 2}, {1, 1, 1}};
    voxelize_depth(images, grid, output, options);
    EXPECT_EQ(counts, (std::vector<std::int32_t>{57, 60}));
    EXPECT_EQ(out, (std::vector<float>{57, 57, 60, 120}));
    // The same through strides that no row of pixels shares.
    std::vector<float> spread(2 * 3 * 4 * 5 * 4);
    for (std::size_t i = 0; i < depth.size(); ++i) spread[2 * i] = depth[i];
    images.depth = TensorView(spread.data(), DType::f32, {2, 3, 4, 5});
    images.depth.strides = {120, 40, 10, 2};
    images.features->strides = {120, 40, 10, 2, 1};
    voxelize_depth(images, grid, output, options);
    EXPECT_EQ(out, (std::vector<float>{57, 57, 60, 120}));
}

// ---- what is refused ------------------------------------------------------------------------------------------------

struct Refusal : testing::Test {
    Box box;
    Refusal() {
        box.points = {0.5F, 0.5F, 0.5F, 1.5F, 0.5F, 0.5F};
        box.features = {1, 2};
        box.options.reduction = Reduction::mean;
    }
    template <class Exception = InvalidArgument, class Call>
    void expect(const Call& call, const std::string& text) {
        try {
            call();
            FAIL() << "expected: " << text;
        } catch (const Exception& error) {
            EXPECT_STREQ(error.what(), text.c_str());
        }
        EXPECT_EQ(box.values, std::vector<float>(24, 77.0F)) << text;
        EXPECT_EQ(box.counts, std::vector<std::int32_t>(24, 77)) << text;
        EXPECT_EQ(box.dropped, 77) << text;
    }
    void expect_of(const PointsView& view, const VoxelGrid& grid, const std::string& text) {
        expect([&] { voxelize(view, grid, box.output(), box.options); }, text);
    }
    void expect_grid(const VoxelGrid& grid, const std::string& text) { expect_of(box.view(), grid, text); }
};

TEST_F(Refusal, Grids) {
    VoxelGrid grid = box.grid;
    grid.size = {0.1, -0.1, 0.1};
    expect_grid(grid, "voxelize: grid.size must be positive and finite, got -0.1");
    grid.size = {0.1, 0, 0.1};
    expect_grid(grid, "voxelize: grid.size must be positive and finite, got 0");
    grid.size = {std::nan(""), 1, 1};
    expect_grid(grid, "voxelize: grid.size must be positive and finite, got nan");
    grid.size = {1e-50, 1, 1};
    expect_grid(grid, "voxelize: grid.size must be positive and finite in float32, got 1e-50");
    grid = box.grid;
    grid.origin[1] = HUGE_VAL;
    expect_grid(grid, "voxelize: grid.origin must be finite, got inf");
    grid = box.grid;
    grid.shape = {2, 0, 4};
    expect_grid(grid, "voxelize: grid.shape must be positive, got (2, 0, 4)");
    grid.shape = {0, 0, 0};
    expect_grid(grid, "voxelize: grid.shape must be positive, got (0, 0, 0)");
    grid.shape = {2, 3, -4};
    expect_grid(grid, "voxelize: grid.shape must be positive, got (2, 3, -4)");
    grid.shape = {1 << 30, 1 << 30, 1 << 30};
    expect_grid(grid,
                "voxelize: grid.shape must have fewer than 2^63 cells for 1 clouds, got (1073741824, 1073741824, "
                "1073741824)");
    grid.shape = {1 << 30, 1 << 30, 4};
    expect_grid(grid,
                "voxelize: grid.shape must make a grid of fewer than 2^63 bytes, got (1073741824, 1073741824, 4)");
}

TEST_F(Refusal, Points) {
    PointsView view = box.view();
    view.points.rank = 1;
    expect_of(view, box.grid, "voxelize: points must have 2 dimensions, got shape (2,)");
    view = box.view();
    view.points.shape[1] = 2;
    expect_of(view, box.grid, "voxelize: points must have shape (N, 3), got (2, 2)");
    view = box.view();
    view.points.dtype = DType::i32;
    expect_of(view, box.grid, "voxelize: points must have dtype float32, float16 or float64, got int32");
}

TEST_F(Refusal, Features) {
    PointsView view = box.view();
    view.features.reset();
    expect_of(view, box.grid, "voxelize: features must be given for reduction 'mean'");
    view = box.view();
    view.features->shape[0] = 3;
    expect_of(view, box.grid, "voxelize: features must have shape (2, 1), got (3, 1)");
    view = box.view();
    view.features->dtype = DType::i64;
    expect_of(view, box.grid, "voxelize: features must have dtype float32, float16, bfloat16 or uint8, got int64");
    view = box.view();
    view.features->device = {DeviceType::cuda, 0};
    expect_of(view, box.grid, "voxelize: features must be on cpu, got cuda:0");
    box.options.reduction = Reduction::count;
    expect_of(box.view(), box.grid,
              "voxelize: reduction must be sum, mean, min or max where features are given, got 'count'");
}

TEST_F(Refusal, OffsetsBeforeAnythingIsWritten) {
    PointsView view = box.view();
    std::vector<std::int64_t> offsets = {0, 3, 2};
    view.offsets = TensorView(offsets.data(), DType::i64, {3});
    std::vector<float> values(48, 77);
    VoxelOutput output;
    output.grid = TensorView(values.data(), DType::f32, {2, 2, 3, 4, 1});
    const auto run = [&] { voxelize(view, box.grid, output, box.options); };
    expect(run, "voxelize: offsets must not decrease, got 2 after 3 at position 2");
    offsets = {1, 1, 2};
    expect(run, "voxelize: offsets must begin with 0, got 1");
    offsets = {0, 1, 1};
    expect(run, "voxelize: offsets must end with the number of points 2, got 1");
    view.offsets->dtype = DType::i32;
    expect(run, "voxelize: offsets must have dtype int64, got int32");
    EXPECT_EQ(values, std::vector<float>(48, 77));
    // Nobody checks: wrong numbers, but inside the arrays.
    view.offsets->dtype = DType::i64;
    box.options.check = false;
    for (const std::vector<std::int64_t>& bad :
         {std::vector<std::int64_t>{5, -7, 9}, {0, 1000000, 2}, {-3, -2, -1}, {2, 1, 0}}) {
        offsets = bad;
        run();
    }
}

TEST_F(Refusal, Outputs) {
    const auto run = [&](const VoxelOutput& output) {
        return [this, output] { voxelize(box.view(), box.grid, output, box.options); };
    };
    VoxelOutput output = box.output();
    output.grid.shape[3] = 2;
    expect(run(output), "voxelize: output.grid must have shape (2, 3, 4, 1), got (2, 3, 4, 2)");
    output = box.output();
    output.grid.dtype = DType::f64;
    expect(run(output), "voxelize: output.grid must have dtype float32, got float64");
    output = box.output();
    output.grid.strides[0] = 24;
    expect(run(output), "voxelize: output.grid must be C-contiguous, got stride 24 in dimension 0");
    output = box.output();
    output.counts->dtype = DType::i64;
    expect(run(output), "voxelize: output.counts must have dtype int32, got int64");
    output = box.output();
    output.dropped->device = {DeviceType::cuda, 1};
    expect(run(output), "voxelize: output.dropped must be on cpu, got cuda:1");
    output = box.output();
    output.dropped = TensorView(&box.dropped, DType::i64, {1});
    expect(run(output), "voxelize: output.dropped must have shape (), got (1,)");
}

TEST_F(Refusal, DtypesOfCountsAndOccupancy) {
    box.features.clear();
    VoxelOutput output = box.output();
    output.grid.dtype = DType::f32;
    expect([&] { voxelize(box.view(), box.grid, output, box.options); },
           "voxelize: output.grid must have dtype uint8, int32 or int64, got float32");
    box.options.reduction = Reduction::occupancy;
    output.grid.dtype = DType::i64;
    expect([&] { voxelize(box.view(), box.grid, output, box.options); },
           "voxelize: output.grid must have dtype bool, uint8, int32 or float32, got int64");
}

TEST_F(Refusal, DevicesThisBuildCannotServe) {
    if (cuda_status().compiled) GTEST_SKIP() << "this build has CUDA code";
    PointsView view = box.view();
    view.points.device = view.features->device = {DeviceType::cuda, 0};
    VoxelOutput output = box.output();
    output.grid.device = output.counts->device = output.dropped->device = {DeviceType::cuda, 0};
    expect<Unsupported>([&] { voxelize(view, box.grid, output, box.options); },
                        "voxelize: this build contains no CUDA code, got tensors on cuda:0");
}

TEST_F(Refusal, DepthImages) {
    std::vector<float> depth(12, 1);
    std::vector<float> matrix(16);
    DepthView images;
    images.depth = TensorView(depth.data(), DType::f32, {3, 4});
    images.intrinsics = TensorView(matrix.data(), DType::f32, {3, 3});
    VoxelOutput output;
    output.grid = TensorView(box.counts.data(), DType::i32, {2, 3, 4});
    const auto run = [&] { voxelize_depth(images, box.grid, output); };
    images.views = true;
    expect(run, "voxelize_depth: depth must have shape (V, H, W) or (B, V, H, W), got (3, 4)");
    images.views = false;
    images.depth.dtype = DType::i32;
    expect(run, "voxelize_depth: depth must have dtype uint16 or float32, got int32");
    images.depth.dtype = DType::f32;
    images.intrinsics.shape[0] = 4;
    expect(run, "voxelize_depth: intrinsics must have shape (3, 3), got (4, 3)");
    images.intrinsics = TensorView(matrix.data(), DType::f32, {1, 3, 3});
    expect(run, "voxelize_depth: intrinsics must have shape (3, 3), got (1, 3, 3)");
    images.intrinsics = TensorView(matrix.data(), DType::f32, {3, 3});
    images.pose = TensorView(matrix.data(), DType::f64, {4, 4});
    expect(run, "voxelize_depth: pose must have dtype float32, got float64");
    images.pose.reset();
    images.max_depth = -1;
    expect(run, "voxelize_depth: max_depth must be positive and finite in float32, or 0, got -1");
}

TEST_F(Refusal, SparseOutputs) {
    std::vector<std::int32_t> coordinates(8, 77);
    std::vector<std::int64_t> found(2, 77);
    SparseOutput output;
    output.coordinates = TensorView(coordinates.data(), DType::i32, {2, 4});
    output.found = TensorView(found.data(), DType::i64, {2});
    const auto run = [&] { voxelize_sparse(box.view(), box.grid, output, box.options); };
    expect(run, "voxelize_sparse: output.features must be given where features are, got none");
    output.features = TensorView(box.values.data(), DType::f32, {3, 1});
    expect(run, "voxelize_sparse: output.features must have shape (2, 1), got (3, 1)");
    output.features = TensorView(box.values.data(), DType::f32, {2, 1});
    output.coordinates.shape[1] = 3;
    expect(run, "voxelize_sparse: output.coordinates must have shape (2, 4), got (2, 3)");
    output.coordinates.shape[1] = 4;
    box.grid.shape = {std::int64_t{1} << 33, 1, 1};
    expect(run, "voxelize_sparse: grid.shape must be at most 2^31 along an axis, got (8589934592, 1, 1)");
    EXPECT_EQ(found, (std::vector<std::int64_t>{77, 77}));
    EXPECT_EQ(coordinates, std::vector<std::int32_t>(8, 77));
}

TEST_F(Refusal, Gradients) {
    std::vector<float> gradient(24);
    VoxelGradient to;
    to.grid = TensorView(gradient.data(), DType::f32, {2, 3, 4, 1});
    to.features = TensorView(box.values.data(), DType::f32, {2, 1});
    const auto run = [&] { voxelize_backward(box.view(), box.grid, to, box.options); };
    box.options.reduction = Reduction::count;
    expect(run, "voxelize_backward: reduction must be sum, mean, min or max to have a gradient, got 'count'");
    box.options.reduction = Reduction::max;
    expect(run, "voxelize_backward: gradient.values must be given for min and max, got none");
    box.options.reduction = Reduction::mean;
    to.features.strides[0] = 0;
    expect(run, "voxelize_backward: gradient.features must not overlap itself, got stride 0 in dimension 0");
}

TEST(Voxelize, NamesOfReductions) {
    for (const char* name : {"occupancy", "count", "sum", "mean", "min", "max"}) {
        EXPECT_EQ(reduction_name(reduction_from_name(name)), name);
    }
    EXPECT_THROW((void)reduction_from_name("median"), InvalidArgument);
}

// ---- the math both backends share -----------------------------------------------------------------------------------

TEST(VoxelizeKernel, KeysOfAnUnboundedGridKeepTheOrderOfCells) {
    using namespace voxelize_detail;
    EXPECT_EQ(key_bits(1).axis_bits, 21);
    EXPECT_EQ(key_bits(2).axis_bits, 20);
    EXPECT_EQ(key_bits(17).axis_bits, 19);
    for (const std::int64_t clouds : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1000}}) {
        const KeyBits bits = key_bits(clouds);
        const std::int64_t edge = std::int64_t{1} << (bits.axis_bits - 1);
        std::uint64_t last = 0;
        for (const Cell& cell : {Cell{-edge, -edge, -edge}, Cell{-1, edge - 1, 0}, Cell{0, -1, 5}, Cell{0, 0, -1},
                                 Cell{0, 0, 0}, Cell{edge - 1, edge - 1, edge - 1}}) {
            const std::uint64_t key = pack_key(bits, clouds - 1, cell);
            Cell back{};
            EXPECT_EQ(unpack_key(bits, key, back), clouds - 1);
            EXPECT_EQ(back.x, cell.x);
            EXPECT_EQ(back.y, cell.y);
            EXPECT_EQ(back.z, cell.z);
            EXPECT_TRUE(key > last || cell.x == -edge);
            last = key;
        }
    }
}

TEST(VoxelizeKernel, ExtremesOrderEveryFloat) {
    using namespace voxelize_detail;
    const float ordered[] = {-infinity, -1, -1e-42F, -0.0F, 0.0F, 1e-42F, 1, infinity};
    for (std::size_t i = 0; i < std::size(ordered); ++i) {
        for (const bool want_max : {false, true}) {
            const std::uint32_t key = extreme_key(ordered[i], want_max);
            EXPECT_NE(key, 0U);
            EXPECT_LT(key, extreme_key(nan, want_max));
            EXPECT_EQ(std::signbit(extreme_value(key, want_max)), std::signbit(ordered[i]));
            EXPECT_EQ(extreme_value(key, want_max), ordered[i]);
            if (i > 0) EXPECT_EQ(key > extreme_key(ordered[i - 1], want_max), want_max);
        }
    }
    EXPECT_TRUE(std::isnan(extreme_value(extreme_key(-nan, false), false)));
}

}  // namespace
/// Around every face of the grid, at distances of a few units in the last place, and anywhere.
TEST(VoxelizeKernel, QuickCellsAreExactCells) {
    using namespace voxelize_detail;
    std::mt19937 random(7);
    std::uniform_real_distribution<float> anywhere(-60.0F, 60.0F);
    for (const float size : {0.1F, 0.05F, 0.075F, 0.3F, 1.0F / 3.0F, 1.0F, 1e-3F, 7.7F, 1e-15F, 1e15F}) {
        for (const float origin : {0.0F, -10.0F, -0.05F, 1e-3F, 54.3F}) {
            const CellGrid<float> cells{{origin, 0, 0}, {size, 1, 1}, {0, 0, 0}, {1000, 3, 5}};
            QuickGrid quick{{origin, 0, 0}, {size, 1, 1}, {}, {}, {1000, 3, 5}};
            for (int a = 0; a < 3; ++a) ASSERT_TRUE(make_quick(cells.size[a], quick.less[a], quick.more[a]));
            int settled = 0;
            const auto check = [&](float x) {
                const float p[3] = {x, 2.5F, 3.5F};
                Cell cell{};
                const std::int64_t shape[3] = {1000, 3, 5};
                const std::int64_t expected = find_cell(cells, p, cell) ? linear_index(shape, 0, cell) : dropped_point;
                const std::int32_t found = index_quickly(quick, p);
                settled += found == unsettled ? 0 : 1;
                ASSERT_EQ(found == unsettled ? settle_index(quick, p) : found, expected)
                    << "x " << x << " origin " << origin << " size " << size;
            };
            for (int k = -3; k < 1005; ++k) {
                float p = origin + static_cast<float>(k) * size;
                for (int step = 0; step < 4; ++step) p = std::nextafter(p, -INFINITY);
                for (int step = 0; step < 9; ++step) {
                    check(p);
                    p = std::nextafter(p, INFINITY);
                }
            }
            settled = 0;
            int inside = 0;
            for (int k = 0; k < 2000; ++k) {
                const float x = origin + anywhere(random) * size;
                check(x);
                inside += is_within(place(x, origin, size), 0.0F, 1000.0F) ? 1 : 0;
            }
            if (origin == 0.0F) EXPECT_GT(settled, inside * 9 / 10) << "size " << size;
            for (const float p : {0.0F, -0.0F, 1e-45F, -1e-45F, 1e38F, -1e38F, 4194304.5F, 1e9F}) check(p);
            for (const float p : {INFINITY, -INFINITY, NAN}) check(p);
        }
    }
    float less = 0;
    float more = 0;
    for (const float size : {1e-40F, 3e38F, 0.0F, -1.0F, NAN}) EXPECT_FALSE(make_quick(size, less, more));
}

}  // namespace robocache
