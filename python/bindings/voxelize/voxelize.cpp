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
std::optional<std::int64_t> batch_of(const PointsView& view) {
    if (!view.offsets) return std::nullopt;
    return view.offsets->shape[0] - 1;
}
std::optional<std::int64_t> batch_of(const DepthView& view) {
    if (view.depth.rank != (view.views ? 4 : 3)) return std::nullopt;
    return view.depth.shape[0];
}
constexpr int num_arrays(PointsView*) {
    return 3;
}
constexpr int num_arrays(DepthView*) {
    return 4;
}
/// A call that writes a dense grid.
template <class View>
class DenseCall {
public:
    DenseCall(nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info,
              nb::handle queue)
        : arguments_(op, grid, options, queue),
          view_(read(arguments_, source, static_cast<View*>(nullptr))),
          options_(arguments_.options(device())) {
        if (grid[2].is_none()) fail(arguments_.names().op, "grid_size", "be three whole numbers", "None");
        plan_output(info);
        workspace_bytes_ = plan_bytes(arguments_, view_, output_, options_);
    }

    /// ((shape, dtype name), ...) of the outputs: grid, and with info counts and dropped.
    nb::list shapes() const {
        require_memory(arguments_.names().op, "a grid", output_.grid);
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
        const Workspace workspace(workspace_bytes_, device(), make);
        run_unlocked(arguments_, view_, output_, options_, workspace);
        return nb::make_tuple(grid, counts, dropped);
    }
    nb::object run_into_tensors(nb::handle like) {
        return run(make_tensors(arguments_, like, main_tensor(view_).dtype));
    }
    nb::object run_into_arrays(const nb::callable& allocate) { return run(make_arrays(arguments_, allocate)); }

private:
    [[nodiscard]] Device device() const { return main_tensor(view_).device; }

    void plan_output(bool info) {
        const auto [x, y, z] = arguments_.grid().shape;
        const std::optional<std::int64_t> batch = batch_of(view_);
        const auto cells = [&](DType dtype) {
            return batch ? planned(dtype, {*batch, x, y, z}, device()) : planned(dtype, {x, y, z}, device());
        };
        output_.grid = cells(arguments_.grid_dtype(view_.features));
        if (arguments_.reduces_features() && view_.features && view_.features->rank > 0) {
            output_.grid.shape[output_.grid.rank++] = view_.features->shape[view_.features->rank - 1];
            make_contiguous(output_.grid);
        }
        if (!info) return;
        output_.counts = cells(DType::i32);
        output_.dropped = batch ? planned(DType::i64, {*batch}, device()) : planned(DType::i64, {}, device());
    }

    VoxelArguments arguments_;
    View view_;
    VoxelOptions options_;
    VoxelOutput output_;
    std::int64_t workspace_bytes_ = 0;
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
            return directly(source, num_arrays(static_cast<View*>(nullptr)), [&]() -> nb::object {
                return Call(op, source, grid, options, info, nb::none()).run_into_tensors(source[0]);
            });
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("info"));
    m.def(
        check,
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options, bool info,
           nb::handle queue) { return Call(op, source, grid, options, info, queue).shapes(); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("info"),
        nb::arg("queue") = nb::none());
}

}  // namespace

void bind_voxelize(nb::module_& m) {
    bind_dense<PointsView>(m, "voxelize", "voxelize_tensors", "check_voxelize");
    bind_dense<DepthView>(m, "voxelize_depth", "voxelize_depth_tensors", "check_voxelize_depth");
    m.def(
        "voxelize_backward",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& given, const nb::callable& allocate) {
            VoxelArguments arguments(op, grid, options, nb::none());
            const PointsView points = arguments.read_points(source);
            const Device device = points.points.device;
            const VoxelGradient gradient{arguments.tensor(given[0], "gradient"),
                                         arguments.optional_tensor(given[1], "values"),
                                         arguments.tensor(given[2], "gradient of features", Access::write)};
            VoxelOptions chosen = arguments.options(device);
            chosen.check = false;  // the call whose gradient this is has done that
            const std::int64_t bytes = plan_bytes(arguments, points, gradient, chosen);
            const Workspace workspace(bytes, device, make_arrays(arguments, allocate));
            run_unlocked(arguments, points, gradient, chosen, workspace);
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("gradient"),
        nb::arg("allocate"));
    m.def(
        "check_offsets",
        [](nb::handle op, nb::handle offsets, std::int64_t num_points) {
            VoxelArguments::check_offsets(op, offsets, num_points);
        },
        nb::arg("op"), nb::arg("offsets"), nb::arg("num_points"));
}

}  // namespace robocache::python
