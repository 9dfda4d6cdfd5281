// voxelize_sparse for Python.
#include "bindings.hpp"
#include "voxelize/call.hpp"

namespace robocache::python {
namespace {

/// A call that lists occupied cells. limits: (max_voxels or None, max_points or None, padded, filled): whether there
/// are max_voxels rows, whether unused ones are defined.
class SparseCall {
public:
    SparseCall(nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
               const nb::tuple& limits, nb::handle queue)
        : arguments_(op, grid, options, queue),
          points_(arguments_.read_points(source)),
          plan_(plan_voxelize_sparse(points_, arguments_.grid(), read_limits(limits),
                                     arguments_.options(points_.points.device))),
          output_(plan_.output()),
          filled_(nb::cast<bool>(limits[3])) {}

    /// Checks everything and computes nothing.
    void check() {
        const auto require = [&](const char* what, const std::optional<TensorView>& view) {
            if (view) require_memory(arguments_.op(), what, *view);
        };
        require("coordinates", output_.coordinates);
        require("features", output_.features);
        require("first_points", output_.first_points);
        check_unlocked(arguments_, plan_);
    }

    /// (coordinates, features or None, counts, voxel, first_points or None, found)
    nb::object run(const Make& make) {
        const auto filled = [&](int value) { return filled_ ? std::optional<int>(value) : std::nullopt; };
        nb::object coordinates = make(output_.coordinates, "coordinates", filled(-1));
        nb::object features = output_.features ? make(*output_.features, "features", filled(0)) : nb::none();
        nb::object counts = make(*output_.counts, "counts", filled(0));
        nb::object voxel = make(*output_.voxel, "voxel", {});
        nb::object first = output_.first_points ? make(*output_.first_points, "first_points", filled(-1)) : nb::none();
        nb::object found = make(output_.found, "found", {});
        run_unlocked(arguments_, plan_, output_, make);
        return nb::make_tuple(coordinates, features, counts, voxel, first, found);
    }
    nb::object run_into_tensors(nb::handle like) { return run(make_tensors(arguments_, like, points_.points.dtype)); }
    nb::object run_into_arrays(const nb::callable& allocate) { return run(make_arrays(arguments_, allocate)); }

private:
    [[nodiscard]] SparseLimits read_limits(const nb::tuple& limits) const {
        SparseLimits result;
        result.padded = nb::cast<bool>(limits[2]);
        result.max_voxels = arguments_.optional_count(limits[0], "max_voxels");
        result.max_points = arguments_.optional_count(limits[1], "max_points").value_or(0);
        if (result.padded && !result.max_voxels) {
            fail(arguments_.op(), "max_voxels", "be given with padded=True", "None");
        }
        return result;
    }

    VoxelArguments arguments_;
    PointsView points_;
    SparseVoxelPlan plan_;
    SparseOutput output_;
    bool filled_;
};

}  // namespace

void bind_voxelize_sparse(nb::module_& m) {
    m.def(
        "voxelize_sparse",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& limits, const nb::callable& allocate,
           nb::handle queue) { SparseCall(op, source, grid, options, limits, queue).run_into_arrays(allocate); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("limits"), nb::arg("allocate"),
        nb::arg("queue") = nb::none());
    m.def(
        "voxelize_sparse_tensors",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& limits) {
            return SparseCall(op, source, grid, options, limits, nb::none()).run_into_tensors(source[0]);
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("limits"));
    m.def(
        "check_voxelize_sparse",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& limits, nb::handle queue) { SparseCall(op, source, grid, options, limits, queue).check(); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("limits"),
        nb::arg("queue") = nb::none());
}

}  // namespace robocache::python
