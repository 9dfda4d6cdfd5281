// What Python passes to voxelize, as the views and options of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "arrays/tensor_reader.hpp"
#include "robocache/voxelize.hpp"

namespace robocache::python {

// The arguments of Python, by their names there.

struct GivenPoints {
    nanobind::handle points, offsets, features;  // offsets, features: or None
};

struct GivenImages {
    nanobind::handle depth, intrinsics, pose, features;  // pose, features: or None
    nanobind::handle views, depth_scale, max_depth;      // depth_scale, max_depth: or None
};

struct GivenGrid {
    nanobind::handle grid_min, voxel_size, grid_size;  // grid_size: or None
};

struct GivenOptions {
    nanobind::handle mode, dtype, fill, deterministic, check;  // dtype, check: or None
};

/// From tuples of Python with the fields in this order; the tuples must outlive them.
[[nodiscard]] inline GivenGrid given_grid(const nanobind::tuple& box) {
    return {box[0], box[1], box[2]};
}
[[nodiscard]] inline GivenOptions given_options(const nanobind::tuple& settings) {
    return {settings[0], settings[1], settings[2], settings[3], settings[4]};
}

/// Names as Python's arguments have them. The characters of `op` must outlive them.
[[nodiscard]] VoxelNames python_names(std::string_view op);

/// The arguments of one call, with everything that keeps them alive.
class VoxelArguments {
public:
    /// op: what messages call the function. queue: see TensorReader.
    VoxelArguments(std::string_view op, const GivenGrid& grid, const GivenOptions& options, nanobind::handle queue);

    PointsView read(const GivenPoints& given);
    DepthView read(const GivenImages& given);

    TensorView tensor(nanobind::handle object, const ArgumentName& name, Access access = Access::read) {
        return reader_.read(object, {op(), name}, access);
    }
    std::optional<TensorView> optional_tensor(nanobind::handle object, const ArgumentName& name) {
        if (object.is_none()) return std::nullopt;
        return tensor(object, name);
    }
    /// A whole number from 1 on, or nothing where Python passes None.
    std::optional<std::int64_t> optional_count(nanobind::handle object, const char* name) const;

    [[nodiscard]] std::string_view op() const { return options_.names.op; }
    [[nodiscard]] const VoxelGrid& grid() const { return grid_; }
    /// The options of a call on `device`: offsets are checked by default where that means no waiting.
    [[nodiscard]] VoxelOptions options(Device device) const {
        VoxelOptions options = options_;
        options.check = check_.value_or(device.type != DeviceType::cuda);
        return options;
    }
    [[nodiscard]] TensorReader& reader() { return reader_; }

private:
    void read_grid(const GivenGrid& given);
    double positive(nanobind::handle number, const char* name) const;
    bool flag(nanobind::handle object, const char* name) const;

    TensorReader reader_;
    VoxelGrid grid_;
    VoxelOptions options_;
    std::optional<bool> check_;
};

}  // namespace robocache::python
