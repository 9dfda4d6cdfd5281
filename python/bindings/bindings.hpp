// One function per layer that puts its bindings into the module.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_align(nanobind::module_& m);
void bind_cache(nanobind::module_& m);
void bind_batch(nanobind::module_& m);
void bind_feature(nanobind::module_& m);
void bind_texts(nanobind::module_& m);
void bind_decode(nanobind::module_& m);
void bind_host_memory(nanobind::module_& m);
void bind_jax(nanobind::module_& m);
void bind_loader(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_picture_index(nanobind::module_& m);
void bind_video(nanobind::module_& m);
void bind_voxelize(nanobind::module_& m);
void bind_voxelize_sparse(nanobind::module_& m);

}  // namespace robocache::python
