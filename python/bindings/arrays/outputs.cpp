// Making outputs.
#include "arrays/outputs.hpp"

#include <array>
#include <stdexcept>

#include "arrays/blocks.hpp"
#include "arrays/host_memory.hpp"
#include "arrays/known.hpp"
#include "arrays/memory.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// One for each dtype.
using KnownDTypes = std::array<Known, 16>;

Known& of(KnownDTypes& known, DType dtype) {
    return known.at(static_cast<std::size_t>(dtype));
}

/// torch.float32 and the others.
PyObject* torch_dtype(DType dtype) {
    static constinit KnownDTypes known;
    return of(known, dtype).attribute("torch", name(dtype));
}

/// numpy.dtype("float32") and the others; bfloat16 every time anew, since its package may be missing.
nb::object numpy_dtype(DType dtype) {
    if (dtype == DType::bf16) return nb::module_::import_("robocache.ops.arrays").attr("numpy_dtype")(name(dtype));
    static constinit KnownDTypes known;
    const auto look_up = [&] { return nb::object(nb::module_::import_("numpy").attr("dtype")(name(dtype))); };
    return nb::borrow(of(known, dtype).get(look_up));
}

PyObject* ndarray_type() {
    static constinit Known type;
    return type.attribute("numpy", "ndarray");
}

/// numpy.ndarray(shape, dtype, memory)
nb::object new_ndarray(const nb::object& shape, TensorView& view) {
    const nb::object memory = new_host_memory(static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype)));
    view.data = nb::inst_ptr<HostMemory>(memory)->data();
    view.device = {};
    const nb::object dtype = numpy_dtype(view.dtype);
    PyObject* const arguments[] = {shape.ptr(), dtype.ptr(), memory.ptr()};
    PyObject* made = PyObject_Vectorcall(ndarray_type(), arguments, 3, nullptr);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

/// like.new_empty(shape), or with another dtype.
nb::object new_empty(nb::handle like, const nb::object& shape, PyObject* dtype) {
    static constinit Known method;
    static constinit Known keywords;
    PyObject* const names =
        dtype == nullptr ? nullptr : keywords.get([] { return nb::object(nb::make_tuple("dtype")); });
    PyObject* const arguments[] = {like.ptr(), shape.ptr(), dtype};
    PyObject* made = PyObject_VectorcallMethod(method.interned("new_empty"), arguments, 2, names);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

/// A tensor from dimension `first` on, in a block of HostMemory; nothing if that is not worth it, or `like` is not a
/// tensor of torch on the host. Its storage cannot be resized.
nb::object new_in_block(nb::handle like, TensorView& view, int first) {
    const auto bytes = static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype));
    const bool has_dlpack = view.dtype != DType::u16 && view.dtype != DType::u32 && view.dtype != DType::u64;
    if (bytes < least_block_bytes || !has_dlpack || !is_plain_tensor(like)) return {};
    if (!nb::cast<bool>(like.attr("is_cpu"))) return {};
    static constinit Known from_dlpack;
    const HostMemory memory(bytes);
    if (memory.data() == nullptr) return {};
    view.data = memory.data();
    view.device = {};
    return nb::handle(from_dlpack.attribute("torch.utils.dlpack", "from_dlpack"))(
        dlpack_capsule(view, first, memory.owner()));
}

}  // namespace

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

bool is_numpy(nb::handle like) {
    return PyType_IsSubtype(Py_TYPE(like.ptr()), reinterpret_cast<PyTypeObject*>(ndarray_type())) != 0;
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

nb::object new_output(nb::handle like, DType like_dtype, TensorView& view, TensorReader& reader, bool drop,
                      std::optional<int> fill) {
    make_contiguous(view);
    const nb::object shape = shape_of(view, drop ? 1 : 0);
    nb::object tensor;
    if (is_numpy(like)) {
        tensor = new_ndarray(shape, view);
        if (fill) tensor.attr("fill")(*fill);
        return tensor;
    }
    if (!fill) tensor = new_in_block(like, view, drop ? 1 : 0);
    if (tensor.is_valid()) return tensor;
    if (fill) {
        tensor = like.attr("new_full")(shape, *fill, nb::arg("dtype") = nb::handle(torch_dtype(view.dtype)));
    } else {
        tensor = new_empty(like, shape, view.dtype == like_dtype ? nullptr : torch_dtype(view.dtype));
    }
    const TensorView made = reader.read(tensor, {"new_output", "out"}, Access::write);
    take_memory(view, made);
    if (made.device.type == DeviceType::cpu && !fill) {
        prefer_huge_pages(view.data, static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype)));
    }
    return tensor;
}

nb::object Allocator::make(TensorView& view, const char* what, bool drop, std::optional<int> fill) const {
    require_memory(op_, what, view);
    try {
        if (allocate_.is_none()) return new_output(like_, like_dtype_, view, reader_, drop, fill);
        make_contiguous(view);
        const nb::object filled = fill ? nb::object(nb::int_(*fill)) : nb::none();
        nb::object made = allocate_(what, shape_of(view, drop ? 1 : 0), name(view.dtype), filled);
        take_memory(view, reader_.read(made, {op_, what}, Access::write));
        return made;
    } catch (nb::python_error& error) {
        const bool is_memory = error.matches(PyExc_MemoryError) ||
                               (error.matches(PyExc_RuntimeError) &&
                                std::string_view(error.what()).find("memory") != std::string_view::npos);
        if (!is_memory) throw;
        fail_memory(op_, what, view);
    }
}

}  // namespace robocache::python
