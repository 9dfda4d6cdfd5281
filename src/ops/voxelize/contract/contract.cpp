// The contract of voxelize, spoken once: what each argument must be, and the message when it is not.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ops/voxelize/contract/source_rules.hpp"

namespace robocache::voxelize_detail {
namespace {

/// a * b, or -1 where that is 2^63 or more; -1 stays -1.
std::int64_t product(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result) ? -1 : result;
}

// ---- the grid -------------------------------------------------------------------------------------------------------

/// The smallest Scalar that is not below a whole number: below it is below the number, for every Scalar.
template <class Scalar>
Scalar not_below(std::int64_t n) {
    const auto nearest = static_cast<Scalar>(n);
    const bool below = nearest < Scalar(0x1p63) && static_cast<std::int64_t>(nearest) < n;
    return below ? std::nextafter(nearest, std::numeric_limits<Scalar>::infinity()) : nearest;
}

template <class Scalar>
CellGrid<Scalar> cell_grid(const VoxelGrid& grid, const GridPlan& plan) {
    CellGrid<Scalar> cells{};
    for (int a = 0; a < 3; ++a) {
        cells.origin[a] = static_cast<Scalar>(grid.origin[a]);
        cells.size[a] = static_cast<Scalar>(grid.size[a]);
        if (plan.num_cells > 0) {
            cells.limit[a] = not_below<Scalar>(plan.shape[a]);
        } else {
            cells.limit[a] = static_cast<Scalar>(std::int64_t{1} << (plan.key_bits.axis_bits - 1));
            cells.low[a] = -cells.limit[a];
        }
    }
    return cells;
}

void require_boxes(const VoxelGrid& grid, bool in_f64, const Names& names) {
    const char* precision = in_f64 ? "" : " in float32";
    for (int a = 0; a < 3; ++a) {
        const double origin = in_f64 ? grid.origin[a] : static_cast<double>(static_cast<float>(grid.origin[a]));
        const double size = in_f64 ? grid.size[a] : static_cast<double>(static_cast<float>(grid.size[a]));
        if (!(grid.size[a] > 0) || !std::isfinite(grid.size[a])) {
            fail(names.op, names.size, "be positive and finite", number_text(grid.size[a]));
        }
        if (!(size > 0) || !std::isfinite(size)) {
            fail(names.op, names.size, std::string("be positive and finite") + precision, number_text(grid.size[a]));
        }
        if (!std::isfinite(grid.origin[a])) fail(names.op, names.origin, "be finite", number_text(grid.origin[a]));
        if (!std::isfinite(origin)) {
            fail(names.op, names.origin, std::string("be finite") + precision, number_text(grid.origin[a]));
        }
    }
}

std::string shape_of(const VoxelGrid& grid) {
    return text_of({grid.shape[0], grid.shape[1], grid.shape[2]});
}

GridPlan plan_grid(const VoxelGrid& grid, std::int64_t num_clouds, bool in_f64, bool may_be_unbounded,
                   const Names& names) {
    require_boxes(grid, in_f64, names);
    GridPlan plan;
    plan.key_bits = key_bits(num_clouds);
    const bool unbounded = grid.shape[0] == 0 && grid.shape[1] == 0 && grid.shape[2] == 0;
    if (!unbounded || !may_be_unbounded) {
        for (int a = 0; a < 3; ++a) {
            if (grid.shape[a] < 1) fail(names.op, names.shape, "be positive", shape_of(grid));
            plan.shape[a] = grid.shape[a];
        }
        plan.num_cells = product(product(grid.shape[0], grid.shape[1]), grid.shape[2]);
        if (plan.num_cells < 0 || product(plan.num_cells, std::max<std::int64_t>(num_clouds, 1)) < 0) {
            fail(names.op, names.shape, "have fewer than 2^63 cells for " + std::to_string(num_clouds) + " clouds",
                 shape_of(grid));
        }
    }
    plan.f32 = cell_grid<float>(grid, plan);
    plan.f64 = cell_grid<double>(grid, plan);
    return plan;
}

/// The largest array over all cells must have fewer than 2^63 bytes.
void require_bytes(const GridPlan& grid, std::int64_t num_clouds, std::int64_t channels, DType dtype,
                   const VoxelGrid& given, const Names& names) {
    const std::int64_t cell = std::max<std::int64_t>(product(channels, size_bytes(dtype)), 4);
    if (product(product(grid.num_cells, std::max<std::int64_t>(num_clouds, 1)), cell) >= 0) return;
    fail(names.op, names.shape, "make a grid of fewer than 2^63 bytes", shape_of(given));
}

// ---- dense outputs --------------------------------------------------------------------------------------------------

void require_grid_dtype(const DensePlan& plan, const Names& names) {
    switch (plan.reduction) {
        case Reduction::occupancy:
            return require_one_of(names, names.dtype, plan.out_dtype,
                                  {DType::boolean, DType::u8, DType::i32, DType::f32});
        case Reduction::count:
            return require_one_of(names, names.dtype, plan.out_dtype, {DType::u8, DType::i32, DType::i64});
        default: return require_feature_output(names, names.dtype, plan.out_dtype, plan.features.dtype);
    }
}

/// The given dtype; else i32 for counts, f32 for features of u8, their own for others.
DType grid_dtype(const VoxelOptions& options, DType features) {
    if (options.dtype) return *options.dtype;
    if (!reduces_features(options.reduction)) return DType::i32;
    return features == DType::u8 ? DType::f32 : features;
}

/// A C-contiguous tensor without data.
TensorView planned(DType dtype, const Shape& shape, Device device) {
    TensorView view;
    view.dtype = dtype;
    view.device = device;
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.strides[d] = stride;
        if (d > 0) stride *= view.shape[d];  // the whole may be larger than any memory
    }
    return view;
}

/// The memory of an output that must be as planned.
template <class T>
T* memory_of(const TensorView& given, const TensorView& expected, std::string_view what, std::string_view list,
             const Names& names) {
    const std::string argument = field(list, what);
    require_dtype(names.op, argument, given, expected.dtype);
    const Shape shape(expected.shape.begin(), expected.shape.begin() + expected.rank);
    require_output(names, argument, given, shape, expected.device);
    return static_cast<T*>(given.data);
}

float plan_fill(const DensePlan& plan, double fill) {
    return size_bytes(plan.out_dtype) == 2 ? to_float_odd(fill) : static_cast<float>(fill);
}

void plan_output(DenseState& state, const VoxelGrid& grid, bool batched, const VoxelOptions& options) {
    DensePlan& plan = state.plan;
    plan.out_dtype = grid_dtype(options, plan.features.dtype);
    require_grid_dtype(plan, state.names);
    const std::int64_t channels = plan.has_features() ? plan.features.num_channels : 1;
    require_bytes(plan.grid, plan.num_clouds, channels, plan.out_dtype, grid, state.names);
    if (traits_of(plan.reduction).fills) plan.fill = plan_fill(plan, options.fill);
    plan.wants_counts = options.counts;
    Shape clouds;
    if (batched) clouds.push_back(plan.num_clouds);
    Shape cells = clouds;
    cells.insert(cells.end(), plan.grid.shape, plan.grid.shape + 3);
    Shape values = cells;
    if (plan.has_features()) values.push_back(channels);
    state.output.grid = planned(plan.out_dtype, values, plan.device);
    if (plan.wants_counts) state.output.counts = planned(DType::i32, cells, plan.device);
    state.output.dropped = planned(DType::i64, clouds, plan.device);
}

DensePlan begin_dense(Device device, const VoxelOptions& options) {
    DensePlan plan;
    plan.device = device;
    plan.reduction = options.reduction;
    plan.deterministic = options.deterministic;
    plan.check = options.check;
    return plan;
}

template <class Plan>
void set_source(Plan& plan, const Source& source) {
    plan.points = source.points;
    plan.num_points = source.num_points;
    plan.num_clouds = source.num_clouds;
}

}  // namespace

// ---- the four plans -------------------------------------------------------------------------------------------------

void make_plan(DenseState& state, const PointsView& points, const VoxelGrid& grid, const VoxelOptions& options) {
    const Names& names = state.names;
    const Source source = plan_points(points, names);
    require_features(points.features.has_value(), options.reduction, names);
    DensePlan& plan = state.plan = begin_dense(points.points.device, options);
    set_source(plan, source);
    if (points.features) plan.features = plan_features_of_points(points, source, names);
    plan.grid = plan_grid(grid, plan.num_clouds, points.points.dtype == DType::f64, false, names);
    plan_output(state, grid, source.batched, options);
}

void make_plan(DenseState& state, const DepthView& images, const VoxelGrid& grid, const VoxelOptions& options) {
    const Names& names = state.names;
    DensePlan& plan = state.plan = begin_dense(images.depth.device, options);
    plan.from_depth = true;
    const bool batched = plan_depth(plan, images, names);
    require_features(images.features.has_value(), options.reduction, names);
    if (images.features) plan.features = plan_features_of_depth(images, names);
    plan.grid = plan_grid(grid, plan.num_clouds, false, false, names);
    plan_output(state, grid, batched, options);
}

DensePlan bind(const DenseState& state, const VoxelOutput& output) {
    DensePlan plan = state.plan;
    const Names& names = state.names;
    plan.out = memory_of<void>(output.grid, state.output.grid, "grid", names.output, names);
    if (output.counts.has_value() != plan.wants_counts) {
        fail(names.op, field(names.output, "counts"),
             plan.wants_counts ? "be given where options.counts is set" : "be absent where options.counts is not set",
             plan.wants_counts ? "none" : "one");
    }
    if (output.counts) {
        plan.counts = memory_of<std::int32_t>(*output.counts, *state.output.counts, "counts", names.output, names);
    }
    if (output.dropped) {
        plan.dropped = memory_of<std::int64_t>(*output.dropped, *state.output.dropped, "dropped", names.output, names);
    }
    return plan;
}

void make_plan(SparseState& state, const PointsView& points, const VoxelGrid& grid, const SparseLimits& limits,
               const VoxelOptions& options) {
    const Names& names = state.names;
    const Source source = plan_points(points, names);
    SparsePlan& plan = state.plan;
    plan.device = points.points.device;
    plan.reduction = options.reduction;
    plan.deterministic = options.deterministic;
    plan.check = options.check;
    set_source(plan, source);
    constexpr std::int64_t i32_cells = std::int64_t{1} << 31;  // coordinates are i32
    if (plan.num_clouds > i32_cells) {
        fail(names.op, names.offsets, "have at most 2^31 clouds", std::to_string(plan.num_clouds));
    }
    plan.grid = plan_grid(grid, plan.num_clouds, points.points.dtype == DType::f64, true, names);
    if (*std::max_element(plan.grid.shape, plan.grid.shape + 3) > i32_cells) {
        fail(names.op, names.shape, "be at most 2^31 along an axis", shape_of(grid));
    }
    if (points.features) {
        require_features(true, options.reduction, names);
        plan.features = plan_features_of_points(points, source, names);
        plan.out_dtype = grid_dtype(options, plan.features.dtype);
        require_feature_output(names, names.dtype, plan.out_dtype, plan.features.dtype);
    }
    if (limits.padded && !limits.max_voxels) fail(names.op, names.max_voxels, "be given with padded", "nothing");
    if (limits.max_voxels && *limits.max_voxels < 0) {
        fail(names.op, names.max_voxels, "be at least 0", std::to_string(*limits.max_voxels));
    }
    // A cell for every point, or every cell of the grid.
    const std::int64_t most =
        plan.bounded() ? std::min(plan.num_points, plan.num_clouds * plan.grid.num_cells) : plan.num_points;
    plan.capacity = limits.padded ? *limits.max_voxels : std::min(most, limits.max_voxels.value_or(most));
    plan.max_points = limits.max_points;
    SparseOutput& output = state.output;
    output.coordinates = planned(DType::i32, {plan.capacity, 4}, plan.device);
    if (points.features) {
        output.features = planned(plan.out_dtype, {plan.capacity, plan.features.num_channels}, plan.device);
    }
    output.counts = planned(DType::i32, {plan.capacity}, plan.device);
    output.voxel = planned(DType::i64, {plan.num_points}, plan.device);
    if (plan.max_points > 0) {
        output.first_points = planned(DType::i64, {plan.capacity, plan.max_points}, plan.device);
    }
    output.found = planned(DType::i64, {2}, plan.device);
}

SparsePlan bind(const SparseState& state, const SparseOutput& output) {
    SparsePlan plan = state.plan;
    const Names& names = state.names;
    const SparseOutput& expected = state.output;
    plan.coordinates =
        memory_of<std::int32_t>(output.coordinates, expected.coordinates, "coordinates", names.output, names);
    if (output.features.has_value() != expected.features.has_value()) {
        fail(names.op, field(names.output, "features"),
             expected.features ? "be given where features are" : "be absent where no features are given",
             expected.features ? "none" : "one");
    }
    if (output.features) {
        plan.out = memory_of<void>(*output.features, *expected.features, "features", names.output, names);
    }
    if (output.counts) {
        plan.counts = memory_of<std::int32_t>(*output.counts, *expected.counts, "counts", names.output, names);
    }
    if (output.voxel) {
        plan.voxel = memory_of<std::int64_t>(*output.voxel, *expected.voxel, "voxel", names.output, names);
    }
    if (output.first_points) {
        if (!expected.first_points) {
            fail(names.op, field(names.output, "first_points"), "be absent where limits.max_points is 0", "one");
        }
        plan.first_points =
            memory_of<std::int64_t>(*output.first_points, *expected.first_points, "first_points", names.output, names);
    }
    plan.found = memory_of<std::int64_t>(output.found, expected.found, "found", names.output, names);
    return plan;
}

void make_plan(BackwardState& state, const PointsView& points, const VoxelGrid& grid, std::int64_t num_channels,
               const VoxelOptions& options) {
    const Names& names = state.names;
    const ReductionGradient needs = traits_of(options.reduction).gradient;
    if (needs == ReductionGradient::none) {
        const auto included = [](const ReductionTraits& traits) { return traits.gradient != ReductionGradient::none; };
        fail(names.op, names.reduction, "be " + reduction_choices(included) + " to have a gradient",
             "'" + std::string(reduction_name(options.reduction)) + "'");
    }
    const Source source = plan_points(points, names);
    BackwardPlan& plan = state.plan;
    plan.device = points.points.device;
    plan.reduction = options.reduction;
    plan.check = options.check;
    set_source(plan, source);
    plan.grid = plan_grid(grid, plan.num_clouds, points.points.dtype == DType::f64, false, names);
    plan.features.num_channels = num_channels;
    if (needs != ReductionGradient::cells) require_features(points.features.has_value(), options.reduction, names);
    if (points.features) {
        plan.features = plan_features_of_points(points, source, names);
        require_shape(names, names.features, *points.features, {plan.num_points, num_channels});
    }
    require_bytes(plan.grid, plan.num_clouds, num_channels, DType::f64, grid, names);
    Shape values;
    if (source.batched) values.push_back(plan.num_clouds);
    values.insert(values.end(), plan.grid.shape, plan.grid.shape + 3);
    values.push_back(num_channels);
    state.output.grid = planned(DType::f32, values, plan.device);
    if (needs == ReductionGradient::values) {
        state.output.values = planned(grid_dtype(options, plan.features.dtype), values, plan.device);
    }
    state.output.features = planned(DType::f32, {plan.num_points, num_channels}, plan.device);
}

BackwardPlan bind(const BackwardState& state, const VoxelGradient& gradient) {
    BackwardPlan plan = state.plan;
    const Names& names = state.names;
    const auto named = [&](std::string_view what) { return field(names.gradient, what); };
    const TensorView& expected = state.output.grid;
    const Shape values(expected.shape.begin(), expected.shape.begin() + expected.rank);
    const TensorView& to = gradient.features;
    require_rank(names.op, named("features"), to, 2);
    require_shape(names, named("features"), to, {plan.num_points, plan.features.num_channels});
    require_dtype(names.op, named("features"), to, DType::f32);
    require_device(names.op, named("features"), to, plan.device);
    require_not_null(names.op, named("features"), to);
    for (int d = 0; d < 2; ++d) {
        if (to.shape[d] > 1 && to.strides[d] == 0 && to.num_elements() > 0) {
            fail(names.op, named("features"), "not overlap itself", "stride 0 in dimension " + std::to_string(d));
        }
    }
    if (!is_floating(gradient.grid.dtype)) {
        fail(names.op, named("grid"), "have a floating dtype", name(gradient.grid.dtype));
    }
    require_output(names, named("grid"), gradient.grid, values, plan.device);
    plan.out_gradient = gradient.grid.data;
    plan.out_gradient_dtype = gradient.grid.dtype;
    if (state.output.values) {
        if (!gradient.values)
            fail(names.op, named("values"), "be given for " + std::string(reduction_name(plan.reduction)), "none");
        require_feature_output(names, named("values"), gradient.values->dtype, plan.features.dtype);
        require_output(names, named("values"), *gradient.values, values, plan.device);
        plan.values = gradient.values->data;
        plan.values_dtype = gradient.values->dtype;
    }
    plan.gradient = static_cast<float*>(to.data);
    plan.gradient_row_stride = to.strides[0];
    plan.gradient_channel_stride = to.strides[1];
    return plan;
}

// ---- workspace and offsets ------------------------------------------------------------------------------------------

Workspace bind_workspace(Workspace workspace, std::int64_t required, const Names& names) {
    if (required == 0) return {};
    const std::int64_t bytes = workspace.data == nullptr ? 0 : workspace.size_bytes;
    if (bytes < required) {
        fail(names.op, names.workspace, "have at least " + std::to_string(required) + " bytes", std::to_string(bytes));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
    if (address % 16 != 0) fail(names.op, names.workspace, "be aligned to 16 bytes", std::to_string(address));
    return workspace;
}

void check_offsets(const std::int64_t* offsets, std::int64_t stride, std::int64_t num_clouds, std::int64_t num_points,
                   const Names& names) {
    const auto at = [&](std::int64_t b) { return offsets[b * stride]; };
    if (at(0) != 0) fail(names.op, names.offsets, "begin with 0", std::to_string(at(0)));
    for (std::int64_t b = 0; b < num_clouds; ++b) {
        if (at(b + 1) < at(b)) {
            fail(names.op, names.offsets, "not decrease",
                 std::to_string(at(b + 1)) + " after " + std::to_string(at(b)) + " at position " +
                     std::to_string(b + 1));
        }
    }
    if (at(num_clouds) != num_points) {
        fail(names.op, names.offsets, "end with the number of points " + std::to_string(num_points),
             std::to_string(at(num_clouds)));
    }
}

}  // namespace robocache::voxelize_detail
