// voxelize_pointcloud and voxelize_depth for Python, and the gradient.
#include "robocache/voxelize.hpp"

#include "bindings.hpp"
#include "voxelize/call.hpp"

namespace robocache::python {
namespace {

// What differs between points and depth images.
PointsView read(VoxelArguments& arguments, const nb::tuple& source, PointsView*) {
    return arguments.read_points(source);
}
DepthView read(VoxelArguments& arguments, const nb::tuple& source, DepthView*) {
    return arguments.read_depth(source);
}
const TensorView& main_tensor(const PointsView& view) {
    return view.points;
}
const TensorView& main_tensor(const DepthView& view) {
    return view.depth;
}

/// A call that writes a dense grid.
template <class View>
class DenseCall {
public:
    DenseCall(nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info,
              nb::handle queue)
        : arguments_(op, grid, options, queue),
          view_(read(arguments_, source, static_cast<View*>(nullptr))),
          plan_(plan(grid, info)),
          output_(plan_.output()) {
        if (!info) output_.dropped.reset();
    }

    /// Checks everything and computes nothing: ((shape, dtype name), ...) of the outputs: grid, and with info counts
    /// and dropped.
    nb::list check() {
        require_memory(arguments_.op(), "a grid", output_.grid);
        check_unlocked(arguments_, plan_);
        nb::list result;
        result.append(nb::make_tuple(shape_of(output_.grid), name(output_.grid.dtype)));
        if (output_.counts) result.append(nb::make_tuple(shape_of(*output_.counts), "int32"));
        if (output_.dropped) result.append(nb::make_tuple(shape_of(*output_.dropped), "int64"));
        return result;
    }

    /// (grid, counts or None, dropped or None)
    nb::object run(const Make& make) {
        nb::object grid = make(output_.grid, "a grid", {});
        nb::object counts = output_.counts ? make(*output_.counts, "counts", {}) : nb::none();
        nb::object dropped = output_.dropped ? make(*output_.dropped, "dropped", {}) : nb::none();
        run_unlocked(arguments_, plan_, output_, make);
        return nb::make_tuple(grid, counts, dropped);
    }
    nb::object run_into_tensors(nb::handle like) {
        return run(make_tensors(arguments_, like, main_tensor(view_).dtype));
    }
    nb::object run_into_arrays(const nb::callable& allocate) { return run(make_arrays(arguments_, allocate)); }

private:
    [[nodiscard]] VoxelPlan plan(const nb::tuple& grid, bool info) const {
        if (grid[2].is_none()) fail(arguments_.op(), "grid_size", "be three whole numbers", "None");
        VoxelOptions options = arguments_.options(main_tensor(view_).device);
        options.counts = info;
        return plan_voxelize(view_, arguments_.grid(), options);
    }

    VoxelArguments arguments_;
    View view_;
    VoxelPlan plan_;
    VoxelOutput output_;
};

template <class View>
void bind_dense(nb::module_& m, const char* any, const char* tensors, const char* check) {
    using Call = DenseCall<View>;
    m.def(
        any,
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info,
           const nb::callable& allocate,
           nb::handle queue) { Call(op, source, grid, options, info, queue).run_into_arrays(allocate); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("info"), nb::arg("allocate"),
        nb::arg("queue") = nb::none());
    m.def(
        tensors,
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info) {
            return Call(op, source, grid, options, info, nb::none()).run_into_tensors(source[0]);
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("info"));
    m.def(
        check,
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info,
           nb::handle queue) { return Call(op, source, grid, options, info, queue).check(); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("info"),
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

}  // namespace

void bind_voxelize(nb::module_& m) {
    m.def("voxel_reductions", &reductions);
    bind_dense<PointsView>(m, "voxelize", "voxelize_tensors", "check_voxelize");
    bind_dense<DepthView>(m, "voxelize_depth", "voxelize_depth_tensors", "check_voxelize_depth");
    m.def(
        "voxelize_backward",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& given, const nb::callable& allocate) {
            VoxelArguments arguments(op, grid, options, nb::none());
            const PointsView points = arguments.read_points(source);
            const VoxelGradient gradient{arguments.tensor(given[0], "gradient"),
                                         arguments.optional_tensor(given[1], "values"),
                                         arguments.tensor(given[2], "gradient of features", Access::write)};
            VoxelOptions chosen = arguments.options(points.points.device);
            chosen.check = false;  // the call whose gradient this is has done that
            const std::int64_t num_channels = gradient.features.rank == 2 ? gradient.features.shape[1] : 0;
            const VoxelBackwardPlan plan = plan_voxelize_backward(points, arguments.grid(), num_channels, chosen);
            run_unlocked(arguments, plan, gradient, make_arrays(arguments, allocate));
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("gradient"),
        nb::arg("allocate"));
}

}  // namespace robocache::python
