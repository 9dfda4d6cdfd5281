// voxelize_sparse for Python.
#include <algorithm>

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
          options_(arguments_.options(device())),
          filled_(nb::cast<bool>(limits[3])) {
        const bool padded = nb::cast<bool>(limits[2]);
        const std::optional<std::int64_t> max_voxels = arguments_.optional_count(limits[0], "max_voxels");
        const std::optional<std::int64_t> max_points = arguments_.optional_count(limits[1], "max_points");
        if (padded && !max_voxels) fail(arguments_.names().op, "max_voxels", "be given with padded=True", "None");
        plan_output(padded ? *max_voxels : std::min(most_voxels(), max_voxels.value_or(INT64_MAX)), max_points);
        workspace_bytes_ = plan_bytes(arguments_, points_, output_, options_);
    }

    void require_memory_for_rows() const {
        const auto require = [&](const char* what, const std::optional<TensorView>& view) {
            if (view) require_memory(arguments_.names().op, what, *view);
        };
        require("coordinates", output_.coordinates);
        require("features", output_.features);
        require("first_points", output_.first_points);
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
        const Workspace workspace(workspace_bytes_, device(), make);
        run_unlocked(arguments_, points_, output_, options_, workspace);
        return nb::make_tuple(coordinates, features, counts, voxel, first, found);
    }
    nb::object run_into_tensors(nb::handle like) { return run(make_tensors(arguments_, like, points_.points.dtype)); }
    nb::object run_into_arrays(const nb::callable& allocate) { return run(make_arrays(arguments_, allocate)); }

private:
    [[nodiscard]] Device device() const { return points_.points.device; }

    /// A cell for every point, or every cell of the grid.
    [[nodiscard]] std::int64_t most_voxels() const {
        std::int64_t cells = points_.offsets ? std::max<std::int64_t>(points_.offsets->shape[0] - 1, 0) : 1;
        for (const std::int64_t extent : arguments_.grid().shape) {
            if (extent < 1 || __builtin_mul_overflow(cells, extent, &cells)) return points_.points.shape[0];
        }
        return std::min(points_.points.shape[0], cells);
    }

    void plan_output(std::int64_t capacity, std::optional<std::int64_t> max_points) {
        output_.coordinates = planned(DType::i32, {capacity, 4}, device());
        if (points_.features) {
            const std::int64_t width =
                points_.features->rank > 0 ? points_.features->shape[points_.features->rank - 1] : 0;
            output_.features = planned(arguments_.grid_dtype(points_.features), {capacity, width}, device());
        }
        output_.counts = planned(DType::i32, {capacity}, device());
        output_.voxel = planned(DType::i64, {points_.points.shape[0]}, device());
        if (max_points) output_.first_points = planned(DType::i64, {capacity, *max_points}, device());
        output_.found = planned(DType::i64, {2}, device());
    }

    VoxelArguments arguments_;
    PointsView points_;
    VoxelOptions options_;
    bool filled_;
    SparseOutput output_;
    std::int64_t workspace_bytes_ = 0;
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
            return directly(source, 3, [&]() -> nb::object {
                return SparseCall(op, source, grid, options, limits, nb::none()).run_into_tensors(source[0]);
            });
        },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("limits"));
    m.def(
        "check_voxelize_sparse",
        [](nb::handle op, const nb::tuple& source, const nb::tuple& grid, const nb::tuple& options,
           const nb::tuple& limits,
           nb::handle queue) { SparseCall(op, source, grid, options, limits, queue).require_memory_for_rows(); },
        nb::arg("op"), nb::arg("source"), nb::arg("grid"), nb::arg("options"), nb::arg("limits"),
        nb::arg("queue") = nb::none());
}

}  // namespace robocache::python
