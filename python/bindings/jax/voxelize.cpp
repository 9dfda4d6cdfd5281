// voxelize as XLA FFI handlers: dense grids of points and of depth images, their gradient, and padded lists of cells.
#include "robocache/voxelize.hpp"

#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "jax/traced.hpp"
#include "voxelize/arguments.hpp"

namespace nb = nanobind;

namespace robocache::python::xla_ffi {
namespace {

// ---- options
// ---------------------------------------------------------------------------------------------------------

/// Of grid and options; the inverse of unpack.
Packed pack(const VoxelGrid& grid, const VoxelOptions& options) {
    Packed packed;
    const auto add = [&](auto value) { packed.integers.push_back(static_cast<std::int64_t>(value)); };
    for (std::int64_t size : grid.shape) add(size);
    add(options.reduction);
    add(options.dtype ? static_cast<std::int64_t>(*options.dtype) : -1);
    for (bool flag : {options.counts, options.deterministic, options.check}) add(flag);
    packed.reals.assign(grid.origin.begin(), grid.origin.end());
    packed.reals.insert(packed.reals.end(), grid.size.begin(), grid.size.end());
    packed.reals.push_back(options.fill);
    return packed;
}

struct Settings {
    VoxelGrid grid;
    VoxelOptions options;
};

Settings unpack(Unpacker& packed, std::string_view op) {
    Settings settings;
    auto& [grid, options] = settings;
    for (std::int64_t& size : grid.shape) size = packed.integer();
    options.reduction = packed.as<Reduction>();
    if (const std::int64_t dtype = packed.integer(); dtype >= 0) options.dtype = static_cast<DType>(dtype);
    for (bool* flag : {&options.counts, &options.deterministic, &options.check}) *flag = packed.flag();
    for (double& x : grid.origin) x = packed.real();
    for (double& x : grid.size) x = packed.real();
    options.fill = packed.real();
    options.names = python_names(op);
    return settings;
}

/// Flags: offsets, features. Operands: points, and those of the two that are there.
PointsView take_points(Buffers& buffers, Unpacker& packed) {
    const bool has_offsets = packed.flag();
    const bool has_features = packed.flag();
    PointsView view;
    view.points = buffers.operand();
    if (has_offsets) view.offsets = buffers.operand(Role::wide);
    if (has_features) view.features = buffers.operand();
    return view;
}

void add_flags(Packed& packed, const PointsView& view) {
    packed.integers.push_back(view.offsets.has_value());
    packed.integers.push_back(view.features.has_value());
}

// ---- dense grids
// -----------------------------------------------------------------------------------------------------

/// Results: the grid; with VoxelOptions::counts also counts and dropped.
void run_dense(const VoxelPlan& plan, bool info, Buffers& buffers, CudaQueue queue) {
    VoxelOutput output;
    output.grid = buffers.result();
    if (info) {
        output.counts = buffers.result();
        output.dropped = buffers.result(Role::wide);
    }
    run(plan, output, buffers.workspace(plan.workspace_bytes()), queue);
}

void compute_points(Buffers& buffers, std::string_view op, Unpacker packed, CudaQueue queue) {
    const Settings settings = unpack(packed, op);
    const PointsView view = take_points(buffers, packed);
    run_dense(plan_voxelize(view, settings.grid, settings.options), settings.options.counts, buffers, queue);
}

/// Options: pose, features, views. Operands: depth, intrinsics, and those of the first two that are there.
void compute_depth(Buffers& buffers, std::string_view op, Unpacker packed, CudaQueue queue) {
    const Settings settings = unpack(packed, op);
    const bool has_pose = packed.flag();
    const bool has_features = packed.flag();
    DepthView view;
    view.views = packed.flag();
    view.unit = packed.real();
    view.max_depth = packed.real();
    view.depth = buffers.operand();
    view.intrinsics = buffers.operand();
    if (has_pose) view.pose = buffers.operand();
    if (has_features) view.features = buffers.operand();
    run_dense(plan_voxelize(view, settings.grid, settings.options), settings.options.counts, buffers, queue);
}

/// Options: whether the grid's values are there. Operands: points, offsets, features, the gradient of the grid, values.
/// Result: the gradient of the features.
void compute_points_backward(Buffers& buffers, std::string_view op, Unpacker packed, CudaQueue queue) {
    const Settings settings = unpack(packed, op);
    const PointsView view = take_points(buffers, packed);
    VoxelGradient gradient;
    gradient.grid = buffers.operand();
    if (packed.flag()) gradient.values = buffers.operand();
    gradient.features = buffers.result();
    const VoxelBackwardPlan plan =
        plan_voxelize_backward(view, settings.grid, gradient.features.shape[1], settings.options);
    run(plan, gradient, buffers.workspace(plan.workspace_bytes()), queue);
}

// ---- padded lists of cells
// -------------------------------------------------------------------------------------------

/// Options: max_voxels, max_points. Operands: points, offsets, features, then what unused rows of the first results
/// contain, which becomes these results: coordinates, features, counts, first_points. Then voxel and found.
void compute_sparse(Buffers& buffers, std::string_view op, Unpacker packed, CudaQueue queue) {
    const Settings settings = unpack(packed, op);
    const PointsView view = take_points(buffers, packed);
    SparseLimits limits;
    limits.padded = true;
    limits.max_voxels = packed.integer();
    limits.max_points = packed.integer();
    SparseOutput output;
    output.coordinates = buffers.result();
    if (view.features) output.features = buffers.result();
    output.counts = buffers.result();
    if (limits.max_points > 0) output.first_points = buffers.result(Role::wide);
    output.voxel = buffers.result(Role::wide);
    output.found = buffers.result(Role::wide);
    const SparseVoxelPlan plan = plan_voxelize_sparse(view, settings.grid, limits, settings.options);
    run(plan, output, buffers.workspace(plan.workspace_bytes()), queue);
}

// ---- traces
// ----------------------------------------------------------------------------------------------------------

VoxelOptions checked_options(const VoxelArguments& arguments, Device device, bool info) {
    VoxelOptions options = arguments.options(device);
    options.counts = info;
    return options;
}

void require_bounds(const VoxelArguments& arguments, nb::handle grid_size) {
    if (grid_size.is_none()) fail(arguments.op(), "grid_size", "be three whole numbers", "None");
}

nb::list dense_results(const VoxelOutput& output, bool info) {
    nb::list results;
    results.append(result_of(output.grid));
    if (!info) return results;
    results.append(result_of(*output.counts));
    results.append(result_of(*output.dropped));
    return results;
}

nb::tuple trace_points(const std::string& op, const nb::tuple& cloud, const nb::tuple& box, const nb::tuple& settings,
                       bool info) {
    VoxelArguments arguments(op, given_grid(box), given_options(settings), nb::none());
    const PointsView view = arguments.read(GivenPoints{cloud[0], cloud[1], cloud[2]});
    require_bounds(arguments, box[2]);
    const VoxelOptions options = checked_options(arguments, view.points.device, info);
    const VoxelPlan plan = plan_voxelize(view, arguments.grid(), options);
    Packed packed = pack(arguments.grid(), options);
    add_flags(packed, view);
    return traced(dense_results(plan.output(), info), plan.workspace_bytes(), op, packed);
}

nb::tuple trace_depth(const std::string& op, const nb::tuple& images, const nb::tuple& box, const nb::tuple& settings,
                      bool info) {
    VoxelArguments arguments(op, given_grid(box), given_options(settings), nb::none());
    const DepthView view =
        arguments.read(GivenImages{images[0], images[1], images[2], images[3], images[4], images[5], images[6]});
    require_bounds(arguments, box[2]);
    const VoxelOptions options = checked_options(arguments, view.depth.device, info);
    const VoxelPlan plan = plan_voxelize(view, arguments.grid(), options);
    Packed packed = pack(arguments.grid(), options);
    for (bool flag : {view.pose.has_value(), view.features.has_value(), view.views}) packed.integers.push_back(flag);
    packed.reals.push_back(view.unit);
    packed.reals.push_back(view.max_depth);
    return traced(dense_results(plan.output(), info), plan.workspace_bytes(), op, packed);
}

/// `values`: the grid, where the gradient reads it, or None.
nb::tuple trace_points_backward(const std::string& op, const nb::tuple& cloud, const nb::tuple& box,
                                const nb::tuple& settings, std::int64_t num_channels, nb::handle values) {
    VoxelArguments arguments(op, given_grid(box), given_options(settings), nb::none());
    const PointsView view = arguments.read(GivenPoints{cloud[0], cloud[1], cloud[2]});
    const VoxelOptions options = checked_options(arguments, view.points.device, false);
    const VoxelBackwardPlan plan = plan_voxelize_backward(view, arguments.grid(), num_channels, options);
    Packed packed = pack(arguments.grid(), options);
    add_flags(packed, view);
    packed.integers.push_back(!values.is_none());
    nb::list results;
    results.append(result_of(plan.output().features));
    return traced(results, plan.workspace_bytes(), op, packed);
}

nb::tuple trace_sparse(const std::string& op, const nb::tuple& cloud, const nb::tuple& box, const nb::tuple& settings,
                       nb::handle max_voxels, nb::handle max_points) {
    VoxelArguments arguments(op, given_grid(box), given_options(settings), nb::none());
    const PointsView view = arguments.read(GivenPoints{cloud[0], cloud[1], cloud[2]});
    SparseLimits limits;
    limits.padded = true;
    limits.max_voxels = arguments.optional_count(max_voxels, "max_voxels");
    limits.max_points = arguments.optional_count(max_points, "max_points").value_or(0);
    if (!limits.max_voxels) fail(op, "max_voxels", "be given with padded=True", "None");
    const VoxelOptions options = checked_options(arguments, view.points.device, false);
    const SparseVoxelPlan plan = plan_voxelize_sparse(view, arguments.grid(), limits, options);
    Packed packed = pack(arguments.grid(), options);
    add_flags(packed, view);
    packed.integers.push_back(*limits.max_voxels);
    packed.integers.push_back(limits.max_points);
    const SparseOutput& output = plan.output();
    nb::list results;
    results.append(result_of(output.coordinates));
    if (output.features) results.append(result_of(*output.features));
    results.append(result_of(*output.counts));
    if (output.first_points) results.append(result_of(*output.first_points));
    results.append(result_of(*output.voxel));
    results.append(result_of(output.found));
    return traced(results, plan.workspace_bytes(), op, packed);
}

}  // namespace

std::vector<Handlers> voxelize_handlers() {
    return {handlers<compute_points>("robocache_voxelize"),
            handlers<compute_points_backward>("robocache_voxelize_backward"),
            handlers<compute_depth>("robocache_voxelize_depth"), handlers<compute_sparse>("robocache_voxelize_sparse")};
}

void bind_voxelize(nb::module_& m) {
    m.def("trace_voxelize", &trace_points, nb::arg("op"), nb::arg("cloud"), nb::arg("box"), nb::arg("settings"),
          nb::arg("info"));
    m.def("trace_voxelize_depth", &trace_depth, nb::arg("op"), nb::arg("images"), nb::arg("box"), nb::arg("settings"),
          nb::arg("info"));
    m.def("trace_voxelize_backward", &trace_points_backward, nb::arg("op"), nb::arg("cloud"), nb::arg("box"),
          nb::arg("settings"), nb::arg("num_channels"), nb::arg("values").none());
    m.def("trace_voxelize_sparse", &trace_sparse, nb::arg("op"), nb::arg("cloud"), nb::arg("box"), nb::arg("settings"),
          nb::arg("max_voxels").none(), nb::arg("max_points").none());
}

}  // namespace robocache::python::xla_ffi
