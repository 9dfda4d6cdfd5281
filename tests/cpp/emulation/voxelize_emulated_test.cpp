// voxelize, its sparse form and its gradient: the kernels give the bits of the CPU.
#include "both.hpp"
#include "robocache/voxelize.hpp"

namespace robocache::emulated {
namespace {

/// Points and features, as a scanner, a cluster or noise gives them.
struct Cloud {
    Memory points, offsets, features;
    PointsView view;

    /// `whole`: features are small whole numbers, whose sums are the same in any order.
    Cloud(Random& random, std::int64_t most_points, bool has_features, bool whole, double extent) {
        const std::int64_t num_clouds = random.one_of<std::int64_t>({1, 1, 1, 3, 40});
        const std::int64_t count = random.chance(0.05) ? 0 : random.integer(1, most_points);
        const DType dtype = random.one_of({DType::f32, DType::f32, DType::f32, DType::f64, DType::f16});
        const std::int64_t row = random.chance(0.2) ? 4 : 3;
        points = Memory(count * row * size_bytes(dtype));
        const std::int64_t kind = random.integer(0, 3);
        double center[3] = {0, 0, 0};
        for (std::int64_t i = 0; i < count; ++i) {
            if (kind == 1 && i % 50 == 0)
                for (double& c : center) c = random.real(-extent, extent);
            for (std::int64_t a = 0; a < row; ++a) {
                double x = random.real(-1.1 * extent, 1.1 * extent);
                if (kind == 1 && a < 3) x = center[a] + random.real(-0.05, 0.05);
                if (kind == 2) x = std::round(x * 10) / 10;  // faces of cells
                if (kind == 3) x = 0.01;                     // one cell
                if (random.chance(0.002)) x = random.one_of({std::nan(""), HUGE_VAL, -HUGE_VAL, 1e30});
                put(dtype, x, i * row + a);
            }
        }
        view.points = TensorView(points.data(), dtype, {count, row}).slice(1, 0, 3);
        if (num_clouds > 1) {
            std::vector<std::int64_t> cuts{0};
            for (std::int64_t b = 1; b < num_clouds; ++b) cuts.push_back(random.integer(0, count));
            cuts.push_back(count);
            std::sort(cuts.begin(), cuts.end());
            offsets = Memory((num_clouds + 1) * 8);
            std::memcpy(offsets.data(), cuts.data(), cuts.size() * 8);
            view.offsets = TensorView(offsets.data(), DType::i64, {num_clouds + 1});
        }
        if (!has_features) return;
        const std::int64_t channels = random.one_of<std::int64_t>({1, 2, 3, 4, 5, 8, 16, 17, 33});
        const DType type = random.one_of({DType::f32, DType::f32, DType::f16, DType::bf16, DType::u8});
        features = Memory(count * channels * size_bytes(type));
        for (std::int64_t i = 0; i < count * channels; ++i) put_feature(random, type, i, whole);
        view.features = TensorView(features.data(), type, {count, channels});
    }

    [[nodiscard]] PointsView on_device(Device device) const {
        return {on(view.points, device), on(view.offsets, device), on(view.features, device)};
    }

private:
    void put(DType dtype, double x, std::int64_t i) const {
        if (dtype == DType::f64) static_cast<double*>(points.data())[i] = x;
        if (dtype == DType::f32) static_cast<float*>(points.data())[i] = static_cast<float>(x);
        if (dtype == DType::f16)
            static_cast<_Float16*>(points.data())[i] = static_cast<_Float16>(std::clamp(x, -60000.0, 60000.0));
    }
    void put_feature(Random& random, DType dtype, std::int64_t i, bool whole) const {
        char* at = static_cast<char*>(features.data()) + i * size_bytes(dtype);
        if (!whole) return put_random(random, dtype, at, random.chance(0.1));
        const auto x = static_cast<float>(random.integer(0, 8));
        if (dtype == DType::f32) std::memcpy(at, &x, 4);
        if (dtype == DType::u8) *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(x);
        if (dtype == DType::f16) *reinterpret_cast<_Float16*>(at) = static_cast<_Float16>(x);
        if (dtype == DType::bf16) {
            const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
            std::memcpy(at, &bits, 2);
        }
    }
};

VoxelGrid make_grid(Random& random, double extent, std::int64_t most_cells) {
    VoxelGrid grid;
    do {
        const double size = random.one_of({0.1, 0.05, 0.25, 1.0 / 3});
        for (std::size_t a = 0; a < 3; ++a) {
            grid.size[a] = random.chance(0.3) ? random.real(0.05, 0.5) : size;
            grid.origin[a] = -extent * random.one_of({1.0, 0.5, 0.0});
            grid.shape[a] = random.one_of<std::int64_t>({1, 5, 16, 20, 33, 40, 64});
        }
    } while (grid.shape[0] * grid.shape[1] * grid.shape[2] > most_cells);
    return grid;
}

/// A reduction of features, and whether its result depends on the order of the points unless they are whole numbers.
VoxelOptions make_options(Random& random, bool has_features, bool whole) {
    VoxelOptions options;
    options.counts = random.chance(0.5);
    options.fill = random.one_of({0.0, -1.0, 2.5});
    options.reduction = random.one_of({Reduction::occupancy, Reduction::count});
    if (options.reduction == Reduction::occupancy)
        options.dtype = random.one_of({DType::boolean, DType::u8, DType::i32, DType::f32});
    if (options.reduction == Reduction::count) options.dtype = random.one_of({DType::u8, DType::i32, DType::i64});
    if (has_features) {
        options.dtype.reset();
        options.reduction =
            random.one_of({Reduction::sum, Reduction::mean, Reduction::min, Reduction::max, Reduction::std});
        options.deterministic = !whole || random.chance(0.3);
        if (random.chance(0.3)) options.dtype = DType::f32;
    }
    return options;
}

template <class Plan>
std::vector<Memory> run_dense(const Plan& plan) {
    VoxelOutput output = plan.output();
    std::vector<Memory> memories;
    memories.push_back(memory_of(output.grid));
    output.grid.data = memories.back().data();
    for (auto* view : {&output.counts, &output.dropped}) {
        if (!*view) continue;
        memories.push_back(memory_of(**view));
        (*view)->data = memories.back().data();
    }
    const Memory workspace(plan.workspace_bytes());
    run(plan, output, {workspace.data(), workspace.size()});
    return memories;
}

std::string describe(const PointsView& points, const VoxelGrid& grid, const VoxelOptions& options) {
    std::string text = std::string(reduction_name(options.reduction)) +
                       (options.deterministic ? " (deterministic)" : "") + " of " + name(points.points.dtype) + " " +
                       shape_text(points.points);
    if (points.offsets) text += " in " + std::to_string(points.offsets->shape[0] - 1) + " clouds";
    if (points.features)
        text += std::string(" with ") + name(points.features->dtype) + " " + shape_text(*points.features);
    return text + " into " + std::to_string(grid.shape[0]) + " x " + std::to_string(grid.shape[1]) + " x " +
           std::to_string(grid.shape[2]);
}

void expect_the_same(const std::vector<Memory>& a, const std::vector<Memory>& b, std::uint64_t seed,
                     const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(difference(a[i], b[i]), "") << "result " << i << ", seed " << seed << ": " << what;
    }
}

class VoxelizeOnTheEmulatedGpu : public testing::TestWithParam<int> {};

TEST_P(VoxelizeOnTheEmulatedGpu, DenseGridsHaveTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 20)) {
        Random random(seed);
        choose_gpu(random);
        const bool has_features = random.chance(0.5);
        const bool whole = random.chance(0.5);
        const Cloud cloud(random, random.one_of<std::int64_t>({40, 900, 9000, 60000}), has_features, whole, 2);
        const VoxelGrid grid = make_grid(random, 2, has_features ? 20000 : 300000 / (cloud.view.offsets ? 20 : 1));
        const VoxelOptions options = make_options(random, has_features, whole);
        expect_the_same(run_dense(plan_voxelize(cloud.on_device(cpu), grid, options)),
                        run_dense(plan_voxelize(cloud.on_device(gpu), grid, options)), seed,
                        describe(cloud.view, grid, options));
        if (testing::Test::HasFailure()) return;
    }
}

TEST_P(VoxelizeOnTheEmulatedGpu, SparseCellsHaveTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 20)) {
        Random random(seed);
        choose_gpu(random);
        const bool has_features = random.chance(0.6);
        const bool whole = random.chance(0.5);
        const Cloud cloud(random, random.one_of<std::int64_t>({40, 900, 5000}), has_features, whole, 2);
        VoxelGrid grid = make_grid(random, 2, 300000);
        if (random.chance(0.4)) grid.shape = {0, 0, 0};
        VoxelOptions options = make_options(random, has_features, whole);
        if (!has_features) options.dtype.reset();
        SparseLimits limits;
        if (random.chance(0.4)) limits.max_voxels = random.integer(0, 500);
        limits.padded = limits.max_voxels && random.chance(0.4);
        if (random.chance(0.4)) limits.max_points = random.integer(1, 7);
        std::vector<Memory> results[2];
        for (const Device device : {cpu, gpu}) {
            const SparseVoxelPlan plan = plan_voxelize_sparse(cloud.on_device(device), grid, limits, options);
            SparseOutput output = plan.output();
            std::vector<Memory>& memories = results[device == gpu];
            for (TensorView* view : {&output.coordinates, &output.found}) {
                memories.push_back(memory_of(*view));
                view->data = memories.back().data();
            }
            for (auto* view : {&output.features, &output.counts, &output.voxel, &output.first_points}) {
                if (!*view) continue;
                memories.push_back(memory_of(**view));
                (*view)->data = memories.back().data();
            }
            const Memory workspace(plan.workspace_bytes());
            run(plan, output, {workspace.data(), workspace.size()});
        }
        expect_the_same(results[0], results[1], seed, "sparse " + describe(cloud.view, grid, options));
        if (testing::Test::HasFailure()) return;
    }
}

TEST_P(VoxelizeOnTheEmulatedGpu, DepthImagesHaveTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 10)) {
        Random random(seed);
        choose_gpu(random);
        const std::int64_t batch = random.integer(0, 3);  // 0: one cloud
        const std::int64_t views = random.chance(0.4) ? random.integer(1, 3) : 0;
        const std::int64_t images = std::max<std::int64_t>(batch, 1) * std::max<std::int64_t>(views, 1);
        const std::int64_t height = random.integer(1, 40);
        const std::int64_t width = random.integer(1, 70);
        const DType dtype = random.one_of({DType::u16, DType::f32});
        const auto shaped = [&](void* data, DType type, std::initializer_list<std::int64_t> tail) {
            TensorView view(data, type, {1});
            view.rank = 0;
            if (batch > 0) view.shape[static_cast<std::size_t>(view.rank++)] = batch;
            if (views > 0) view.shape[static_cast<std::size_t>(view.rank++)] = views;
            for (const std::int64_t n : tail) view.shape[static_cast<std::size_t>(view.rank++)] = n;
            std::int64_t stride = 1;
            for (int d = view.rank - 1; d >= 0; --d) {
                view.strides[static_cast<std::size_t>(d)] = stride;
                stride *= view.shape[static_cast<std::size_t>(d)];
            }
            return view;
        };
        const std::int64_t pixels = images * height * width;
        const Memory depth(pixels * size_bytes(dtype));
        const double base = random.real(0.3, 3);
        for (std::int64_t p = 0; p < pixels; ++p) {
            const double d = random.chance(0.1) ? 0
                                                : base + 0.4 * std::sin(0.13 * static_cast<double>(p % width)) +
                                                      (random.chance(0.02) ? 5 : 0);
            if (dtype == DType::u16)
                static_cast<std::uint16_t*>(depth.data())[p] = static_cast<std::uint16_t>(d * 1000);
            else
                static_cast<float*>(depth.data())[p] = random.chance(0.01) ? std::nanf("") : static_cast<float>(d);
        }
        const bool own_camera = random.chance(0.5);
        const Memory intrinsics(images * 9 * 4, std::uint8_t{0});
        const Memory poses(images * 16 * 4, std::uint8_t{0});
        for (std::int64_t v = 0; v < images; ++v) {
            float* k = static_cast<float*>(intrinsics.data()) + 9 * v;
            k[0] = static_cast<float>(random.real(20, 80));
            k[4] = static_cast<float>(random.real(20, 80));
            k[2] = static_cast<float>(width) / 2;
            k[5] = static_cast<float>(height) / 2;
            k[8] = 1;
            float* t = static_cast<float*>(poses.data()) + 16 * v;
            const double angle = random.real(-1, 1);
            t[0] = t[10] = static_cast<float>(std::cos(angle));
            t[2] = static_cast<float>(std::sin(angle));
            t[8] = -t[2];
            t[5] = t[15] = 1;
            for (const int at : {3, 7, 11}) t[at] = static_cast<float>(random.real(-0.5, 0.5));
        }
        DepthView view;
        view.depth = shaped(depth.data(), dtype, {height, width});
        view.intrinsics = own_camera ? shaped(intrinsics.data(), DType::f32, {3, 3})
                                     : TensorView(intrinsics.data(), DType::f32, {3, 3});
        if (random.chance(0.6))
            view.pose =
                own_camera ? shaped(poses.data(), DType::f32, {4, 4}) : TensorView(poses.data(), DType::f32, {4, 4});
        view.views = views > 0;
        if (random.chance(0.3)) view.max_depth = random.real(0.5, 3);
        Memory features;
        const bool has_features = random.chance(0.4);
        if (has_features) {
            features = Memory(pixels * 3);
            for (std::int64_t p = 0; p < pixels * 3; ++p)
                static_cast<std::uint8_t*>(features.data())[p] = static_cast<std::uint8_t>(random.integer(0, 8));
            view.features = shaped(features.data(), DType::u8, {height, width, 3});
        }
        const VoxelGrid grid = make_grid(random, 2, 40000);
        const VoxelOptions options = make_options(random, has_features, true);
        const auto on_device = [&](Device device) {
            DepthView moved = view;
            moved.depth = on(view.depth, device);
            moved.intrinsics = on(view.intrinsics, device);
            moved.pose = on(view.pose, device);
            moved.features = on(view.features, device);
            return moved;
        };
        expect_the_same(run_dense(plan_voxelize(on_device(cpu), grid, options)),
                        run_dense(plan_voxelize(on_device(gpu), grid, options)), seed,
                        std::string(reduction_name(options.reduction)) + " of depth " + shape_text(view.depth));
        if (testing::Test::HasFailure()) return;
    }
}

TEST_P(VoxelizeOnTheEmulatedGpu, GradientsHaveTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 15)) {
        Random random(seed);
        choose_gpu(random);
        Cloud cloud(random, 3000, true, true, 2);
        const VoxelGrid grid = make_grid(random, 2, 20000);
        VoxelOptions options = make_options(random, true, true);
        options.dtype = DType::f32;
        const std::int64_t channels = cloud.view.features->shape[1];
        Memory values, gradient;
        std::vector<Memory> results[2];
        for (const Device device : {cpu, gpu}) {
            const VoxelPlan forward = plan_voxelize(cloud.on_device(device), grid, options);
            VoxelGradient to;
            to.grid = forward.output().grid;
            if (device == cpu) {
                values = std::move(run_dense(forward)[0]);
                gradient = memory_of(to.grid);
                for (std::int64_t k = 0; k < to.grid.num_elements(); ++k) {
                    static_cast<float*>(gradient.data())[k] = static_cast<float>(random.integer(-8, 8));
                }
            }
            to.values = to.grid;
            to.values->data = values.data();
            to.grid.data = gradient.data();
            const VoxelBackwardPlan plan = plan_voxelize_backward(cloud.on_device(device), grid, channels, options);
            to.features = plan.output().features;
            results[device == gpu].push_back(memory_of(to.features));
            to.features.data = results[device == gpu].back().data();
            const Memory workspace(plan.workspace_bytes());
            run(plan, to, {workspace.data(), workspace.size()});
        }
        expect_the_same(results[0], results[1], seed, "gradient of " + describe(cloud.view, grid, options));
        if (testing::Test::HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, VoxelizeOnTheEmulatedGpu, testing::Range(0, 4));

}  // namespace
}  // namespace robocache::emulated
