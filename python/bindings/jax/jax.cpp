// For JAX under jit: XLA FFI handlers as capsules, and the plans of traced calls. Nothing without the headers of XLA.
#include "bindings.hpp"

#ifdef ROBOCACHE_HAS_JAX
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/tensor_reader.hpp"
#include "jax/traced.hpp"
#include "robocache/system.hpp"
#endif

namespace nb = nanobind;

namespace robocache::python {

#ifdef ROBOCACHE_HAS_JAX
namespace {

AbstractArray abstract_array(const std::vector<std::int64_t>& shape, const std::string& dtype, bool cuda,
                             const std::string& op, const std::string& argument) {
    if (shape.size() > static_cast<std::size_t>(TensorView::max_rank)) {
        fail(op, argument, "have at most 8 dimensions", std::to_string(shape.size()));
    }
    AbstractArray array;
    TensorView& view = array.view;
    view.dtype = dtype_from_name(dtype, {op, argument});
    view.device.type = cuda ? DeviceType::cuda : DeviceType::cpu;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.shape[d] = shape[static_cast<std::size_t>(d)];
        view.strides[d] = stride;
        stride *= view.shape[d];
    }
    return array;
}

nb::capsule capsule_of(XLA_FFI_Handler* handler) {
    return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

/// [(name, platform, capsule), ...]
nb::list all_handlers() {
    nb::list result;
    for (const auto& of_op : {xla_ffi::align_handlers(), xla_ffi::voxelize_handlers(), xla_ffi::decode_handlers()}) {
        for (const xla_ffi::Handlers& handlers : of_op) {
            const std::string waiting = std::string(handlers.name) + "_waiting";
            result.append(nb::make_tuple(handlers.name, "cpu", capsule_of(handlers.cpu)));
            result.append(nb::make_tuple(waiting, "cpu", capsule_of(handlers.cpu)));
            if (!cuda_status().compiled) continue;
            result.append(nb::make_tuple(handlers.name, "CUDA", capsule_of(handlers.cuda)));
            result.append(nb::make_tuple(waiting, "CUDA", capsule_of(handlers.cuda_waiting)));
        }
    }
    return result;
}

}  // namespace
#endif

void bind_jax(nb::module_& m) {
#ifdef ROBOCACHE_HAS_JAX
    m.attr("xla_ffi_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
    nb::class_<AbstractArray>(m, "AbstractArray")
        .def_static("make", &abstract_array, nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda"), nb::arg("op"),
                    nb::arg("argument"));
    m.def("xla_handlers", &all_handlers);
    xla_ffi::bind_align(m);
    xla_ffi::bind_voxelize(m);
    xla_ffi::bind_decode(m);
#else
    m.attr("xla_ffi_version") = nb::none();
#endif
}

}  // namespace robocache::python
