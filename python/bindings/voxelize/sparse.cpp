// voxelize_sparse for Python.
#include "bindings.hpp"
#include "voxelize/call.hpp"

namespace robocache::python {
namespace {

/// The arguments of Python: rows of the output. padded: there are max_voxels rows. filled: unused ones are defined.
struct GivenLimits {
    nb::handle max_voxels, max_points;  // or None
    bool padded, filled;
};

/// A call that lists occupied cells.
class SparseCall {
public:
    SparseCall(const GivenPoints& points, const GivenGrid& grid, const GivenOptions& options, const GivenLimits& limits,
               nb::handle queue)
        : arguments_("voxelize_sparse", grid, options, queue),
          points_(arguments_.read(points)),
          plan_(plan_voxelize_sparse(points_, arguments_.grid(), read(limits),
                                     arguments_.options(points_.points.device))),
          output_(plan_.output()),
          filled_(limits.filled) {}

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
    nb::object run(nb::handle allocate, nb::handle like) {
        const Allocator allocator(arguments_.op(), arguments_.reader(), allocate, like, points_.points.dtype);
        const auto filled = [&](int value) { return filled_ ? std::optional<int>(value) : std::nullopt; };
        nb::object coordinates = allocator.make(output_.coordinates, "coordinates", false, filled(-1));
        nb::object features = allocator.make(output_.features, "features", false, filled(0));
        nb::object counts = allocator.make(output_.counts, "counts", false, filled(0));
        nb::object voxel = allocator.make(output_.voxel, "voxel");
        nb::object first = allocator.make(output_.first_points, "first_points", false, filled(-1));
        nb::object found = allocator.make(output_.found, "found");
        run_unlocked(arguments_, plan_, output_, allocator);
        return nb::make_tuple(coordinates, features, counts, voxel, first, found);
    }

private:
    [[nodiscard]] SparseLimits read(const GivenLimits& limits) const {
        SparseLimits result;
        result.padded = limits.padded;
        result.max_voxels = arguments_.optional_count(limits.max_voxels, "max_voxels");
        result.max_points = arguments_.optional_count(limits.max_points, "max_points").value_or(0);
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
    const auto define = [&](const char* name, auto function, const auto&... last) {
        m.def(name, function, nb::arg("points").none(), nb::arg("offsets").none(), nb::arg("features").none(),
              nb::arg("grid_min").none(), nb::arg("voxel_size").none(), nb::arg("grid_size").none(),
              nb::arg("mode").none(), nb::arg("dtype").none(), nb::arg("fill").none(), nb::arg("deterministic").none(),
              nb::arg("check").none(), nb::arg("max_voxels").none(), nb::arg("max_points").none(), nb::arg("padded"),
              last...);
    };
    define(
        "voxelize_sparse",
        [](nb::handle points, nb::handle offsets, nb::handle features, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, nb::handle max_voxels, nb::handle max_points, bool padded, bool filled,
           nb::handle allocate, nb::handle queue) {
            SparseCall call({points, offsets, features}, {grid_min, voxel_size, grid_size},
                            {mode, dtype, fill, deterministic, check}, {max_voxels, max_points, padded, filled}, queue);
            return call.run(allocate, points);
        },
        nb::arg("filled"), nb::arg("allocate") = nb::none(), nb::arg("queue") = nb::none());
    define(
        "check_voxelize_sparse",
        [](nb::handle points, nb::handle offsets, nb::handle features, nb::handle grid_min, nb::handle voxel_size,
           nb::handle grid_size, nb::handle mode, nb::handle dtype, nb::handle fill, nb::handle deterministic,
           nb::handle check, nb::handle max_voxels, nb::handle max_points, bool padded, nb::handle queue) {
            SparseCall call({points, offsets, features}, {grid_min, voxel_size, grid_size},
                            {mode, dtype, fill, deterministic, check}, {max_voxels, max_points, padded, false}, queue);
            call.check();
        },
        nb::arg("queue") = nb::none());
}

}  // namespace robocache::python
