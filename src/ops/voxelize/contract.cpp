// The contract of voxelize, spoken once: what each argument must be, and the message when it is not.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "core/contract.hpp"
#include "ops/voxelize/plan.hpp"

namespace robocache::voxelize_detail {
namespace {

// ---- words ----------------------------------------------------------------------------------------------------------

std::string text(double x) {
    char buffer[40];
    return {buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr};  // the shortest that reads back the same
}

std::string field(std::string_view of, std::string_view name) {
    return std::string(of) + "." + std::string(name);
}

/// "float32, float16 or float64".
std::string choices(std::initializer_list<DType> dtypes) {
    std::string list;
    std::size_t left = dtypes.size();
    for (const DType dtype : dtypes) {
        list += name(dtype);
        if (--left > 0) list += left == 1 ? " or " : ", ";
    }
    return list;
}

void require_one_of(const Names& names, const ArgumentName& argument, DType given,
                    std::initializer_list<DType> dtypes) {
    if (std::find(dtypes.begin(), dtypes.end(), given) != dtypes.end()) return;
    // dtype= of Python is a dtype, an array has one
    const char* rule = !names.dtype.empty() && argument.name == names.dtype ? "be " : "have dtype ";
    fail(names.op, argument, rule + choices(dtypes), name(given));
}

using Shape = std::vector<std::int64_t>;

std::string text_of(const Shape& shape) {
    TensorView view;
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    return shape_text(view);
}

void require_shape(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape) {
    if (tensor.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.shape.begin())) {
        return;
    }
    fail(names.op, argument, "have shape " + text_of(shape), shape_text(tensor));
}

void require_contiguous(const Names& names, const ArgumentName& argument, const TensorView& tensor) {
    std::int64_t stride = 1;
    for (int d = tensor.rank - 1; d >= 0; --d) {
        if (tensor.shape[d] > 1 && tensor.strides[d] != stride && tensor.num_elements() > 0) {
            fail(names.op, argument, "be C-contiguous",
                 "stride " + std::to_string(tensor.strides[d]) + " in dimension " + std::to_string(d));
        }
        stride *= tensor.shape[d];
    }
}

/// An output: its shape, its device, C-contiguous.
void require_output(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape,
                    Device device) {
    require_shape(names, argument, tensor, shape);
    require_device(names.op, argument, tensor, device);
    require_contiguous(names, argument, tensor);
}

/// a * b, or -1 where that is 2^63 or more; -1 stays -1.
std::int64_t product(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result) ? -1 : result;
}

// ---- points and features --------------------------------------------------------------------------------------------

struct Source {
    PointsPlan points;
    std::int64_t num_points = 0;
    std::int64_t num_clouds = 1;
    bool batched = false;
};

Source plan_points(const PointsView& view, const Names& names) {
    const TensorView& points = view.points;
    require_rank(names.op, names.points, points, 2);
    if (points.shape[1] != 3) fail(names.op, names.points, "have shape (N, 3)", shape_text(points));
    require_one_of(names, names.points, points.dtype, {DType::f32, DType::f16, DType::f64});
    Source source;
    const std::int64_t element = size_bytes(points.dtype);
    source.points.data = static_cast<const char*>(points.data);
    source.points.dtype = points.dtype;
    source.points.row_stride = points.strides[0] * element;
    source.points.axis_stride = points.strides[1] * element;
    source.num_points = points.shape[0];
    if (!view.offsets) return source;
    const TensorView& offsets = *view.offsets;
    require_rank(names.op, names.offsets, offsets, 1);
    require_dtype(names.op, names.offsets, offsets, DType::i64);
    require_device(names.op, names.offsets, offsets, points.device);
    if (offsets.shape[0] < 1) fail(names.op, names.offsets, "have shape (clouds + 1,)", shape_text(offsets));
    source.points.offsets = static_cast<const std::int64_t*>(offsets.data);
    source.points.offsets_stride = offsets.strides[0];
    source.num_clouds = offsets.shape[0] - 1;
    source.batched = true;
    return source;
}

FeaturesPlan plan_features(const TensorView& features, const Shape& rows, Device device, const Names& names) {
    require_rank(names.op, names.features, features, static_cast<int>(rows.size()) + 1);
    Shape expected = rows;
    expected.push_back(features.shape[features.rank - 1]);
    require_shape(names, names.features, features, expected);
    require_one_of(names, names.features, features.dtype, {DType::f32, DType::f16, DType::bf16, DType::u8});
    require_device(names.op, names.features, features, device);
    FeaturesPlan plan;
    plan.data = static_cast<const char*>(features.data);
    plan.dtype = features.dtype;
    plan.num_channels = expected.back();
    plan.channel_stride = features.strides[features.rank - 1] * size_bytes(features.dtype);
    return plan;
}

bool reduces_features(Reduction reduction) {
    return reduction >= Reduction::sum;
}

void require_features(bool given, Reduction reduction, const Names& names) {
    if (reduces_features(reduction) && !given) {
        throw InvalidArgument(std::string(names.op) + ": " + std::string(names.features) + " must be given for " +
                              std::string(names.reduction) + " '" + std::string(reduction_name(reduction)) + "'");
    }
    if (!reduces_features(reduction) && given) {
        fail(names.op, names.reduction, "be sum, mean, min or max where features are given",
             "'" + std::string(reduction_name(reduction)) + "'");
    }
}

FeaturesPlan plan_features_of_points(const PointsView& view, const Source& source, const Names& names) {
    FeaturesPlan plan = plan_features(*view.features, {source.num_points}, view.points.device, names);
    plan.strides[3] = view.features->strides[0] * size_bytes(plan.dtype);
    return plan;
}

/// A grid of features, or their row in a sparse output: their own dtype (u8 has none), or f32.
void require_feature_output(const Names& names, const ArgumentName& argument, DType given, DType features) {
    if (features == DType::f32 || features == DType::u8) {
        require_one_of(names, argument, given, {DType::f32});
    } else {
        require_one_of(names, argument, given, {features, DType::f32});
    }
}

// ---- depth images ---------------------------------------------------------------------------------------------------

/// One matrix for all images, or one for each: the strides of depth's leading dimensions, then row and column.
void plan_matrices(const TensorView& matrices, const std::string_view argument, int size, const DepthView& view,
                   std::int64_t strides[4], const Names& names) {
    const TensorView& depth = view.depth;
    const int leading = depth.rank - 2;
    Shape each(depth.shape.begin(), depth.shape.begin() + leading);
    each.insert(each.end(), {size, size});
    const bool shared = matrices.rank == 2 || leading == 0;
    if (shared) {
        require_shape(names, argument, matrices, {size, size});
    } else if (matrices.rank != depth.rank || !std::equal(each.begin(), each.end(), matrices.shape.begin())) {
        fail(names.op, argument, "have shape " + text_of({size, size}) + " or " + text_of(each), shape_text(matrices));
    }
    require_dtype(names.op, argument, matrices, DType::f32);
    require_device(names.op, argument, matrices, depth.device);
    strides[2] = matrices.strides[matrices.rank - 2];
    strides[3] = matrices.strides[matrices.rank - 1];
    if (shared) return;
    if (view.views) strides[1] = matrices.strides[leading - 1];
    if (leading == (view.views ? 2 : 1)) strides[0] = matrices.strides[0];
}

float require_length(double length, std::string_view argument, const Names& names) {
    if (!(length >= 0) || !std::isfinite(length) || !std::isfinite(static_cast<float>(length)) ||
        (length > 0 && static_cast<float>(length) == 0)) {
        fail(names.op, argument, "be positive and finite in float32, or 0", text(length));
    }
    return static_cast<float>(length);
}

/// Fills what the plan says of the source; returns whether there is a batch.
bool plan_depth(DensePlan& plan, const DepthView& view, const Names& names) {
    const TensorView& depth = view.depth;
    const int least = view.views ? 3 : 2;
    if (depth.rank != least && depth.rank != least + 1) {
        fail(names.op, names.depth,
             view.views ? "have shape (V, H, W) or (B, V, H, W)" : "have shape (H, W) or (B, H, W)", shape_text(depth));
    }
    require_one_of(names, names.depth, depth.dtype, {DType::u16, DType::f32});
    const bool batched = depth.rank == least + 1;
    DepthPlan& to = plan.depth;
    const std::int64_t element = size_bytes(depth.dtype);
    to.data = static_cast<const char*>(depth.data);
    to.dtype = depth.dtype;
    to.height = depth.shape[depth.rank - 2];
    to.width = depth.shape[depth.rank - 1];
    to.strides[2] = depth.strides[depth.rank - 2] * element;
    to.strides[3] = depth.strides[depth.rank - 1] * element;
    if (view.views) {
        to.num_views = depth.shape[depth.rank - 3];
        to.strides[1] = depth.strides[depth.rank - 3] * element;
    }
    if (batched) {
        plan.num_clouds = depth.shape[0];
        to.strides[0] = depth.strides[0] * element;
    }
    plan.num_points = depth.num_elements();
    plan_matrices(view.intrinsics, names.intrinsics, 3, view, to.intrinsics_strides, names);
    to.intrinsics = static_cast<const float*>(view.intrinsics.data);
    if (view.pose) {
        plan_matrices(*view.pose, names.pose, 4, view, to.pose_strides, names);
        to.pose = static_cast<const float*>(view.pose->data);
    }
    const float unit = require_length(view.unit, names.unit, names);
    to.unit = unit > 0 ? unit : (depth.dtype == DType::u16 ? 0.001F : 1.0F);
    const float max_depth = require_length(view.max_depth, names.max_depth, names);
    to.max_depth = max_depth > 0 ? max_depth : std::numeric_limits<float>::max();
    return batched;
}

FeaturesPlan plan_features_of_depth(const DepthView& view, const Names& names) {
    const TensorView& depth = view.depth;
    const Shape rows(depth.shape.begin(), depth.shape.begin() + depth.rank);
    FeaturesPlan plan = plan_features(*view.features, rows, depth.device, names);
    const TensorView& features = *view.features;
    const std::int64_t element = size_bytes(plan.dtype);
    plan.strides[2] = features.strides[depth.rank - 2] * element;
    plan.strides[3] = features.strides[depth.rank - 1] * element;
    if (view.views) plan.strides[1] = features.strides[depth.rank - 3] * element;
    if (depth.rank == (view.views ? 4 : 3)) plan.strides[0] = features.strides[0] * element;
    return plan;
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
            fail(names.op, names.size, "be positive and finite", text(grid.size[a]));
        }
        if (!(size > 0) || !std::isfinite(size)) {
            fail(names.op, names.size, std::string("be positive and finite") + precision, text(grid.size[a]));
        }
        if (!std::isfinite(grid.origin[a])) fail(names.op, names.origin, "be finite", text(grid.origin[a]));
        if (!std::isfinite(origin)) {
            fail(names.op, names.origin, std::string("be finite") + precision, text(grid.origin[a]));
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

void require_grid_dtype(const DensePlan& plan, DType given, const Names& names) {
    const std::string argument = names.dtype.empty() ? field(names.output, "grid") : std::string(names.dtype);
    switch (plan.reduction) {
        case Reduction::occupancy:
            return require_one_of(names, argument, given, {DType::boolean, DType::u8, DType::i32, DType::f32});
        case Reduction::count: return require_one_of(names, argument, given, {DType::u8, DType::i32, DType::i64});
        default: return require_feature_output(names, argument, given, plan.features.dtype);
    }
}

float plan_fill(const DensePlan& plan, double fill) {
    return size_bytes(plan.out_dtype) == 2 ? to_float_odd(fill) : static_cast<float>(fill);
}

void plan_output(DensePlan& plan, const VoxelGrid& grid, const VoxelOutput& output, bool batched,
                 const VoxelOptions& options, const Names& names) {
    require_grid_dtype(plan, output.grid.dtype, names);
    const std::int64_t channels = plan.has_features() ? plan.features.num_channels : 1;
    require_bytes(plan.grid, plan.num_clouds, channels, output.grid.dtype, grid, names);
    Shape clouds;
    if (batched) clouds.push_back(plan.num_clouds);
    Shape cells = clouds;
    cells.insert(cells.end(), plan.grid.shape, plan.grid.shape + 3);
    Shape values = cells;
    if (plan.has_features()) values.push_back(channels);
    require_output(names, field(names.output, "grid"), output.grid, values, plan.device);
    plan.out = output.grid.data;
    plan.out_dtype = output.grid.dtype;
    plan.fill = plan_fill(plan, options.fill);
    if (output.counts) {
        require_dtype(names.op, field(names.output, "counts"), *output.counts, DType::i32);
        require_output(names, field(names.output, "counts"), *output.counts, cells, plan.device);
        plan.counts = static_cast<std::int32_t*>(output.counts->data);
    }
    if (output.dropped) {
        require_dtype(names.op, field(names.output, "dropped"), *output.dropped, DType::i64);
        require_output(names, field(names.output, "dropped"), *output.dropped, clouds, plan.device);
        plan.dropped = static_cast<std::int64_t*>(output.dropped->data);
    }
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

DensePlan make_plan(const PointsView& points, const VoxelGrid& grid, const VoxelOutput& output,
                    const VoxelOptions& options, const Names& names) {
    const Source source = plan_points(points, names);
    require_features(points.features.has_value(), options.reduction, names);
    DensePlan plan = begin_dense(points.points.device, options);
    set_source(plan, source);
    if (points.features) plan.features = plan_features_of_points(points, source, names);
    plan.grid = plan_grid(grid, plan.num_clouds, points.points.dtype == DType::f64, false, names);
    plan_output(plan, grid, output, source.batched, options, names);
    return plan;
}

DensePlan make_plan(const DepthView& images, const VoxelGrid& grid, const VoxelOutput& output,
                    const VoxelOptions& options, const Names& names) {
    DensePlan plan = begin_dense(images.depth.device, options);
    plan.from_depth = true;
    const bool batched = plan_depth(plan, images, names);
    require_features(images.features.has_value(), options.reduction, names);
    if (images.features) plan.features = plan_features_of_depth(images, names);
    plan.grid = plan_grid(grid, plan.num_clouds, false, false, names);
    plan_output(plan, grid, output, batched, options, names);
    return plan;
}

SparsePlan make_plan(const PointsView& points, const VoxelGrid& grid, const SparseOutput& output,
                     const VoxelOptions& options, const Names& names) {
    const Source source = plan_points(points, names);
    SparsePlan plan;
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
    const auto named = [&](std::string_view what) { return field(names.output, what); };
    require_rank(names.op, named("coordinates"), output.coordinates, 2);
    plan.capacity = output.coordinates.shape[0];
    const auto bind = [&](std::string_view what, const TensorView& tensor, DType dtype, const Shape& shape) {
        require_dtype(names.op, named(what), tensor, dtype);
        require_output(names, named(what), tensor, shape, plan.device);
        return tensor.data;
    };
    plan.coordinates =
        static_cast<std::int32_t*>(bind("coordinates", output.coordinates, DType::i32, {plan.capacity, 4}));
    if (output.features) {
        require_features(points.features.has_value(), options.reduction, names);
        if (!points.features) fail(names.op, named("features"), "be absent where no features are given", "one");
        plan.features = plan_features_of_points(points, source, names);
        require_feature_output(names, named("features"), output.features->dtype, plan.features.dtype);
        plan.out_dtype = output.features->dtype;
        plan.out = bind("features", *output.features, plan.out_dtype, {plan.capacity, plan.features.num_channels});
    } else if (points.features) {
        fail(names.op, named("features"), "be given where features are", "none");
    }
    if (output.counts) {
        plan.counts = static_cast<std::int32_t*>(bind("counts", *output.counts, DType::i32, {plan.capacity}));
    }
    if (output.voxel) {
        plan.voxel = static_cast<std::int64_t*>(bind("voxel", *output.voxel, DType::i64, {plan.num_points}));
    }
    if (output.first_points) {
        require_rank(names.op, named("first_points"), *output.first_points, 2);
        plan.max_points = output.first_points->shape[1];
        plan.first_points = static_cast<std::int64_t*>(
            bind("first_points", *output.first_points, DType::i64, {plan.capacity, plan.max_points}));
    }
    plan.found = static_cast<std::int64_t*>(bind("found", output.found, DType::i64, {2}));
    return plan;
}

BackwardPlan make_plan(const PointsView& points, const VoxelGrid& grid, const VoxelGradient& gradient,
                       const VoxelOptions& options, const Names& names) {
    if (!reduces_features(options.reduction)) {
        fail(names.op, names.reduction, "be sum, mean, min or max to have a gradient",
             "'" + std::string(reduction_name(options.reduction)) + "'");
    }
    const bool reads_features = options.reduction == Reduction::min || options.reduction == Reduction::max;
    const Source source = plan_points(points, names);
    BackwardPlan plan;
    plan.device = points.points.device;
    plan.reduction = options.reduction;
    plan.check = options.check;
    set_source(plan, source);
    plan.grid = plan_grid(grid, plan.num_clouds, points.points.dtype == DType::f64, false, names);
    const auto named = [&](std::string_view what) { return field(names.gradient, what); };
    const TensorView& to = gradient.features;
    require_rank(names.op, named("features"), to, 2);
    require_shape(names, named("features"), to, {plan.num_points, to.shape[1]});
    require_dtype(names.op, named("features"), to, DType::f32);
    require_device(names.op, named("features"), to, plan.device);
    for (int d = 0; d < 2; ++d) {
        if (to.shape[d] > 1 && to.strides[d] == 0 && to.num_elements() > 0) {
            fail(names.op, named("features"), "not overlap itself", "stride 0 in dimension " + std::to_string(d));
        }
    }
    plan.features.num_channels = to.shape[1];
    if (reads_features) require_features(points.features.has_value(), options.reduction, names);
    if (points.features) {
        plan.features = plan_features_of_points(points, source, names);
        require_shape(names, names.features, *points.features, {plan.num_points, to.shape[1]});
    }
    require_bytes(plan.grid, plan.num_clouds, to.shape[1], DType::f64, grid, names);
    Shape values;
    if (source.batched) values.push_back(plan.num_clouds);
    values.insert(values.end(), plan.grid.shape, plan.grid.shape + 3);
    values.push_back(to.shape[1]);
    if (!is_floating(gradient.grid.dtype)) {
        fail(names.op, named("grid"), "have a floating dtype", name(gradient.grid.dtype));
    }
    require_output(names, named("grid"), gradient.grid, values, plan.device);
    plan.out_gradient = gradient.grid.data;
    plan.out_gradient_dtype = gradient.grid.dtype;
    if (reads_features) {
        if (!gradient.values) fail(names.op, named("values"), "be given for min and max", "none");
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

Workspace bind_workspace(const TensorView& workspace, Device device, std::int64_t required, const Names& names) {
    if (required == 0) return {};
    const std::int64_t bytes = workspace.data == nullptr ? 0 : workspace.num_elements();
    if (workspace.data != nullptr) {
        require_dtype(names.op, names.workspace, workspace, DType::u8);
        require_device(names.op, names.workspace, workspace, device);
        require_contiguous(names, names.workspace, workspace);
    }
    if (bytes < required) {
        fail(names.op, names.workspace, "have at least " + std::to_string(required) + " bytes", std::to_string(bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16 != 0) {
        fail(names.op, names.workspace, "be aligned to 16 bytes",
             std::to_string(reinterpret_cast<std::uintptr_t>(workspace.data)));
    }
    return {static_cast<char*>(workspace.data), bytes};
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
