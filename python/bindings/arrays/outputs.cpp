// Making outputs.
#include "arrays/outputs.hpp"

#include <stdexcept>

#include "arrays/memory.hpp"

namespace nb = nanobind;

namespace robocache::python {

void make_contiguous(TensorView& view) {
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.strides[d] = stride;
        stride *= view.shape[d];
    }
}

nb::object shape_of(const TensorView& view, int first) {
    nb::object shape = nb::steal(PyTuple_New(view.rank - first));
    if (!shape.is_valid()) throw nb::python_error();
    for (int d = first; d < view.rank; ++d) {
        PyObject* extent = PyLong_FromLongLong(view.shape[d]);
        if (extent == nullptr || PyTuple_SetItem(shape.ptr(), d - first, extent) != 0) throw nb::python_error();
    }
    return shape;
}

void take_memory(TensorView& view, const TensorView& made) {
    const auto bytes = [](const TensorView& tensor) { return tensor.num_elements() * size_bytes(tensor.dtype); };
    if (bytes(made) != bytes(view)) {
        throw std::logic_error("an output of shape " + shape_text(view) + " cannot be in memory of shape " +
                               shape_text(made));
    }
    view.data = made.data;
    view.device = made.device;
}

nb::object new_tensor(nb::handle like, DType like_dtype, TensorView& view, TensorReader& reader, bool drop,
                      std::optional<int> fill) {
    static const nb::handle torch = nb::module_::import_("torch").release();
    make_contiguous(view);
    const nb::object shape = shape_of(view, drop ? 1 : 0);
    nb::object tensor;
    if (fill) {
        tensor = like.attr("new_full")(shape, *fill, nb::arg("dtype") = torch.attr(name(view.dtype)));
    } else if (view.dtype == like_dtype) {
        tensor = like.attr("new_empty")(shape);
    } else {
        tensor = like.attr("new_empty")(shape, nb::arg("dtype") = torch.attr(name(view.dtype)));
    }
    const TensorView made = reader.read(tensor, {"new_tensor", "out"}, Access::write);
    take_memory(view, made);
    if (made.device.type == DeviceType::cpu && !fill) {
        prefer_huge_pages(view.data, static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype)));
    }
    return tensor;
}

}  // namespace robocache::python
