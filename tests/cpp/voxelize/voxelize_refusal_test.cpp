// What voxelize refuses, in which words, and that it has written nothing then.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/system.hpp"
#include "robocache/voxelize.hpp"
#include "voxelize_box.hpp"

namespace robocache {
namespace {

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
        const VoxelOutput output = box.output();
        expect([&] { run(plan_voxelize(view, grid, box.options), output); }, text);
    }
    void expect_grid(const VoxelGrid& grid, const std::string& text) { expect_of(box.view(), grid, text); }
};

TEST_F(Refusal, ANumberThatIsNoReduction) {
    box.options.reduction = static_cast<Reduction>(50);
    expect_grid(box.grid, "voxelize: reduction must be an enumerator, got 50");
}

TEST_F(Refusal, MemoryThatWasForgotten) {
    VoxelOutput output = box.output();
    output.grid.data = nullptr;  // as VoxelPlan::output gives it
    expect([&] { run(plan_voxelize(box.view(), box.grid, box.options), output); },
           "voxelize: output.grid must have memory, got null data");
    PointsView view = box.view();
    view.points.data = nullptr;
    expect_of(view, box.grid, "voxelize: points must have memory, got null data");
}

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
              "voxelize: reduction must be sum, mean, min, max or std where features are given, got 'count'");
}

TEST_F(Refusal, OffsetsBeforeAnythingIsWritten) {
    PointsView view = box.view();
    std::vector<std::int64_t> offsets = {0, 3, 2};
    view.offsets = TensorView(offsets.data(), DType::i64, {3});
    std::vector<float> values(48, 77);
    VoxelOutput output;
    output.grid = TensorView(values.data(), DType::f32, {2, 2, 3, 4, 1});
    const auto run = [&] { robocache::run(plan_voxelize(view, box.grid, box.options), output); };
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
        return [this, output] { robocache::run(plan_voxelize(box.view(), box.grid, box.options), output); };
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
    const auto run = [&] { robocache::run(plan_voxelize(box.view(), box.grid, box.options), output); };
    box.options.dtype = output.grid.dtype = DType::f32;
    expect(run, "voxelize: options.dtype must be uint8, int32 or int64, got float32");
    box.options.dtype = DType::i64;
    expect(run, "voxelize: output.grid must have dtype int64, got float32");
    box.options.reduction = Reduction::occupancy;
    expect(run, "voxelize: options.dtype must be bool, uint8, int32 or float32, got int64");
}

TEST_F(Refusal, CountsThatThePlanDoesNotHave) {
    VoxelOutput output = box.output();
    const auto run = [&] { robocache::run(plan_voxelize(box.view(), box.grid, box.options), output); };
    box.options.counts = false;
    expect(run, "voxelize: output.counts must be absent where options.counts is not set, got one");
    box.options.counts = true;
    output.counts.reset();
    expect(run, "voxelize: output.counts must be given where options.counts is set, got none");
}

TEST_F(Refusal, DevicesThisBuildCannotServe) {
    if (cuda_status().compiled) GTEST_SKIP() << "this build has CUDA code";
    PointsView view = box.view();
    view.points.device = view.features->device = {DeviceType::cuda, 0};
    VoxelOutput output = box.output();
    output.grid.device = output.counts->device = output.dropped->device = {DeviceType::cuda, 0};
    expect<Unsupported>([&] { run(plan_voxelize(view, box.grid, box.options), output); },
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
    const auto run = [&] { robocache::run(plan_voxelize(images, box.grid), output); };
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
    SparseLimits limits;
    limits.max_voxels = 2;
    const auto run = [&] { robocache::run(plan_voxelize_sparse(box.view(), box.grid, limits, box.options), output); };
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
    const auto run = [&] { robocache::run(plan_voxelize_backward(box.view(), box.grid, 1, box.options), to); };
    box.options.reduction = Reduction::count;
    expect(run, "voxelize_backward: reduction must be sum, mean, min, max or std to have a gradient, got 'count'");
    box.options.reduction = Reduction::max;
    expect(run, "voxelize_backward: gradient.values must be given for max, got none");
    box.options.reduction = Reduction::mean;
    to.features.strides[0] = 0;
    expect(run, "voxelize_backward: gradient.features must not overlap itself, got stride 0 in dimension 0");
}

}  // namespace
}  // namespace robocache
