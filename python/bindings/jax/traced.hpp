// What a trace of JAX gets from a plan: results, workspace and the options as attributes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "arrays/outputs.hpp"
#include "jax/handler.hpp"

namespace robocache::python::xla_ffi {

/// (shape, dtype) of a result.
inline nanobind::tuple result_of(const TensorView& view) {
    return nanobind::make_tuple(shape_of(view), name(view.dtype));
}

/// The results of a call in the order in which a handler takes them, the bytes of workspace, and the attributes.
inline nanobind::tuple traced(const nanobind::list& results, std::int64_t workspace_bytes, const std::string& names,
                              const Packed& packed) {
    return nanobind::make_tuple(results, workspace_bytes, nanobind::str(names.data(), names.size()), packed.integers,
                                packed.reals);
}

void bind_align(nanobind::module_& m);
void bind_voxelize(nanobind::module_& m);
void bind_decode(nanobind::module_& m);

}  // namespace robocache::python::xla_ffi
