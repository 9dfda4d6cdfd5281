// Reading the arguments of voxelize: the grid, the options, points or depth images.
#include "voxelize/arguments.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <string>

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// Anything that float() takes but a string.
std::optional<double> number(nb::handle object) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value != -1.0 || PyErr_Occurred() == nullptr) return value;
    PyErr_Clear();
    return std::nullopt;
}

std::optional<std::int64_t> whole_number(nb::handle object) {
    const nb::object whole = nb::steal(PyNumber_Index(object.ptr()));
    PyErr_Clear();
    int overflow = 0;
    const long long value = whole.is_valid() ? PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow) : 0;
    if (!whole.is_valid() || overflow != 0) return std::nullopt;
    return value;
}

/// Three of them, from a tuple, a list or an array.
template <class T>
std::optional<std::array<T, 3>> three(nb::handle object, std::optional<T> (*read)(nb::handle)) {
    const nb::object items = nb::steal(PySequence_Fast(object.ptr(), ""));
    PyErr_Clear();
    if (!items.is_valid() || nb::len(items) != 3) return std::nullopt;
    std::array<T, 3> result{};
    for (std::size_t i = 0; i < 3; ++i) {
        const std::optional<T> value = read(nb::object(items[i]));
        if (!value) return std::nullopt;
        result[i] = *value;
    }
    return result;
}

}  // namespace

VoxelNames python_names(std::string_view op) {
    VoxelNames names;
    names.op = op;
    names.origin = "grid_min";
    names.size = "voxel_size";
    names.shape = "grid_size";
    names.reduction = "mode";
    names.dtype = "dtype";
    names.unit = "depth_scale";
    names.max_voxels = "max_voxels";
    return names;
}

VoxelArguments::VoxelArguments(std::string_view op, const GivenGrid& grid, const GivenOptions& options,
                               nb::handle queue)
    : reader_(queue) {
    options_.names = python_names(op);
    read_grid(grid);
    if (!PyUnicode_Check(options.mode.ptr())) fail(op, "mode", "be a name", repr_of(options.mode));
    options_.reduction = reduction_from_name(text(options.mode), op, "mode");
    if (!options.dtype.is_none()) options_.dtype = dtype_from_name(text(options.dtype), {op, "dtype"});
    const std::optional<double> fill = number(options.fill);
    if (!fill) fail(op, "fill", "be a number", repr_of(options.fill));
    options_.fill = *fill;
    options_.deterministic = flag(options.deterministic, "deterministic");
    if (!options.check.is_none()) check_ = flag(options.check, "check");
}

void VoxelArguments::read_grid(const GivenGrid& given) {
    const auto origin = three<double>(given.grid_min, number);
    if (!origin) fail(op(), "grid_min", "be three numbers", repr_of(given.grid_min));
    grid_.origin = *origin;
    if (const auto size = three<double>(given.voxel_size, number)) {
        grid_.size = *size;
    } else if (const auto same = number(given.voxel_size)) {
        grid_.size = {*same, *same, *same};
    } else {
        fail(op(), "voxel_size", "be a number or three numbers", repr_of(given.voxel_size));
    }
    if (given.grid_size.is_none()) return;
    const auto shape = three<std::int64_t>(given.grid_size, whole_number);
    if (!shape) fail(op(), "grid_size", "be three whole numbers", repr_of(given.grid_size));
    // "No bounds" is zeros in C++ and None in Python.
    if (*shape == std::array<std::int64_t, 3>{}) fail(op(), "grid_size", "be positive", "(0, 0, 0)");
    grid_.shape = *shape;
}

PointsView VoxelArguments::read(const GivenPoints& given) {
    PointsView view;
    view.points = tensor(given.points, "points");
    view.offsets = optional_tensor(given.offsets, "offsets");
    view.features = optional_tensor(given.features, "features");
    return view;
}

DepthView VoxelArguments::read(const GivenImages& given) {
    DepthView view;
    view.depth = tensor(given.depth, "depth");
    view.intrinsics = tensor(given.intrinsics, "intrinsics");
    view.pose = optional_tensor(given.pose, "pose");
    view.features = optional_tensor(given.features, "features");
    view.views = flag(given.views, "views");
    if (!given.depth_scale.is_none()) view.unit = positive(given.depth_scale, "depth_scale");
    if (!given.max_depth.is_none()) view.max_depth = positive(given.max_depth, "max_depth");
    return view;
}

std::optional<std::int64_t> VoxelArguments::optional_count(nb::handle object, const char* name) const {
    if (object.is_none()) return std::nullopt;
    const std::optional<std::int64_t> value = whole_number(object);
    if (!value || *value < 1) fail(op(), name, "be a whole number from 1", repr_of(object));
    return value;
}

/// 0 means "not given" in C++, so a given 0 is refused here.
double VoxelArguments::positive(nb::handle object, const char* name) const {
    const std::optional<double> value = number(object);
    const auto rounded = static_cast<float>(value.value_or(0));
    if (!(rounded > 0) || !std::isfinite(rounded)) {
        fail(op(), name, "be positive and finite in float32", repr_of(object));
    }
    return *value;
}

bool VoxelArguments::flag(nb::handle object, const char* name) const {
    bool value = false;
    if (!nb::try_cast(object, value)) fail(op(), name, "be True or False", repr_of(object));
    return value;
}

}  // namespace robocache::python
