// voxelize_pointcloud and voxelize_depth for Python, and the gradient.
#include "robocache/voxelize.hpp"

#include "bindings.hpp"
#include "voxelize/call.hpp"

namespace robocache::python {
namespace {

// What differs between points and depth images.
const TensorView& main_tensor(const PointsView& view) {
    return view.points;
}
const TensorView& main_tensor(const DepthView& view) {
    return view.depth;
}

/// A call that writes a dense grid, from points or from depth images.
template <class View>
class DenseCall {
public:
    template <class Given>
    DenseCall(std::string_view op, const Given& source, const GivenGrid& grid, const GivenOptions& options, bool info,
              nb::handle queue)
        : arguments_(op, grid, options, queue),
          view_(arguments_.read(source)),
          plan_(plan(grid, info)),
          output_(plan_.output()) {
        if (!info) output_.dropped.reset();
    }

    /// Checks everything and computes nothing: the name of the grid's dtype.
    const char* check() {
        require_memory(arguments_.op(), "a grid", output_.grid);
        check_unlocked(arguments_, plan_);
        return name(output_.grid.dtype);
    }

    /// (grid, counts or None, dropped or None)
    nb::object run(nb::handle allocate, nb::handle like) {
        const Allocator allocator(arguments_.op(), arguments_.reader(), allocate, like, main_tensor(view_).dtype);
        nb::object grid = allocator.make(output_.grid, "a grid");
        nb::object counts = allocator.make(output_.counts, "counts");
        nb::object dropped = allocator.make(output_.dropped, "dropped");
        run_unlocked(arguments_, plan_, output_, allocator);
        return nb::make_tuple(grid, counts, dropped);
    }

private:
    [[nodiscard]] VoxelPlan plan(const GivenGrid& grid, bool info) const {
        if (grid.grid_size.is_none()) fail(arguments_.op(), "grid_size", "be three whole numbers", "None");
        VoxelOptions options = arguments_.options(main_tensor(view_).device);
        options.counts = info;
        return plan_voxelize(view_, arguments_.grid(), options);
    }

    VoxelArguments arguments_;
    View view_;
    VoxelPlan plan_;
    VoxelOutput output_;
};

using PointsCall = DenseCall<PointsView>;
using DepthCall = DenseCall<DepthView>;
constexpr const char* points_op = "voxelize_pointcloud";
constexpr const char* depth_op = "voxelize_depth";

void bind_points(nb::module_& m) {
    const auto define = [&](const char* name, auto function, const auto&... last) {
        m.def(name, function, nb::arg("points").none(), nb::arg("offsets").none(), nb::arg("features").none(),
              nb::arg("grid_min").none(), nb::arg("voxel_size").none(), nb::arg("grid_size").none(),
              nb::arg("mode").none(), nb::arg("dtype").none(), nb::arg("fill").none(), nb::arg("deterministic").none(),
              nb::arg("check").none(), last...);
    };
    define(
        "voxelize",
        [](nb::handle points, nb::handle offsets, nb::handle features, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, bool info, nb::handle allocate, nb::handle queue) {
            PointsCall call(points_op, GivenPoints{points, offsets, features}, {grid_min, voxel_size, grid_size},
                            {mode, dtype, fill, deterministic, check}, info, queue);
            return call.run(allocate, points);
        },
        nb::arg("info"), nb::arg("allocate") = nb::none(), nb::arg("queue") = nb::none());
    define(
        "check_voxelize",
        [](nb::handle points, nb::handle offsets, nb::handle features, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, nb::handle queue) {
            PointsCall call(points_op, GivenPoints{points, offsets, features}, {grid_min, voxel_size, grid_size},
                            {mode, dtype, fill, deterministic, check}, false, queue);
            return call.check();
        },
        nb::arg("queue") = nb::none());
}

/// [(name, of_features, fills, gradient), ...]
nb::list reductions() {
    constexpr const char* gradients[] = {"none", "cells", "features", "values"};
    nb::list result;
    for (const ReductionTraits& traits : reduction_traits()) {
        result.append(nb::make_tuple(nb::str(traits.name.data(), traits.name.size()),
                                     traits.family != ReductionFamily::count, traits.fills,
                                     gradients[static_cast<std::size_t>(traits.gradient)]));
    }
    return result;
}

void bind_depth(nb::module_& m) {
    const auto define = [&](const char* name, auto function, const auto&... last) {
        m.def(name, function, nb::arg("depth").none(), nb::arg("intrinsics").none(), nb::arg("pose").none(),
              nb::arg("features").none(), nb::arg("views").none(), nb::arg("depth_scale").none(),
              nb::arg("max_depth").none(), nb::arg("grid_min").none(), nb::arg("voxel_size").none(),
              nb::arg("grid_size").none(), nb::arg("mode").none(), nb::arg("dtype").none(), nb::arg("fill").none(),
              nb::arg("deterministic").none(), nb::arg("check").none(), last...);
    };
    define(
        "voxelize_depth",
        [](nb::handle depth, nb::handle intrinsics, nb::handle pose, nb::handle features, nb::handle views,
           nb::handle depth_scale, nb::handle max_depth, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, bool info, nb::handle allocate, nb::handle queue) {
            DepthCall call(depth_op, GivenImages{depth, intrinsics, pose, features, views, depth_scale, max_depth},
                           {grid_min, voxel_size, grid_size}, {mode, dtype, fill, deterministic, check}, info, queue);
            return call.run(allocate, depth);
        },
        nb::arg("info"), nb::arg("allocate") = nb::none(), nb::arg("queue") = nb::none());
    define(
        "check_voxelize_depth",
        [](nb::handle depth, nb::handle intrinsics, nb::handle pose, nb::handle features, nb::handle views,
           nb::handle depth_scale, nb::handle max_depth, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, nb::handle queue) {
            DepthCall call(depth_op, GivenImages{depth, intrinsics, pose, features, views, depth_scale, max_depth},
                           {grid_min, voxel_size, grid_size}, {mode, dtype, fill, deterministic, check}, false, queue);
            return call.check();
        },
        nb::arg("queue") = nb::none());
}

/// The gradient of a grid of points, into the tensor `total`. `values`: the grid, for min and max.
void bind_backward(nb::module_& m) {
    m.def(
        "voxelize_backward",
        [](nb::handle grad, nb::handle values, nb::handle total, nb::handle points, nb::handle offsets,
           nb::handle features, nb::handle grid_min, nb::handle voxel_size, nb::handle grid_size, nb::handle mode) {
            const nb::float_ fill(0.0);
            const nb::bool_ no(false);  // the call whose gradient this is has checked its arguments
            VoxelArguments arguments(points_op, {grid_min, voxel_size, grid_size}, {mode, nb::none(), fill, no, no},
                                     nb::none());
            const PointsView view = arguments.read(GivenPoints{points, offsets, features});
            const VoxelGradient gradient{arguments.tensor(grad, "gradient"),
                                         arguments.optional_tensor(values, "values"),
                                         arguments.tensor(total, "gradient of features", Access::write)};
            const std::int64_t num_channels = gradient.features.rank == 2 ? gradient.features.shape[1] : 0;
            const VoxelBackwardPlan plan =
                plan_voxelize_backward(view, arguments.grid(), num_channels, arguments.options(view.points.device));
            const Allocator allocator(points_op, arguments.reader(), nb::none(), points, view.points.dtype);
            run_unlocked(arguments, plan, gradient, allocator);
        },
        nb::arg("grad"), nb::arg("values").none(), nb::arg("total"), nb::arg("points"), nb::arg("offsets").none(),
        nb::arg("features").none(), nb::arg("grid_min"), nb::arg("voxel_size"), nb::arg("grid_size"), nb::arg("mode"));
}

}  // namespace

void bind_voxelize(nb::module_& m) {
    m.def("voxel_reductions", &reductions);
    bind_points(m);
    bind_depth(m);
    bind_backward(m);
}

}  // namespace robocache::python
