// Making outputs.
#include "arrays/outputs.hpp"

#include <array>
#include <stdexcept>

#include "arrays/blocks.hpp"
#include "arrays/memory.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// torch.float32 and the others, looked up once.
PyObject* torch_dtype(DType dtype) {
    static std::array<PyObject*, 16> known{};
    PyObject*& found = known.at(static_cast<std::size_t>(dtype));
    if (found == nullptr) found = nb::object(nb::module_::import_("torch").attr(name(dtype))).release().ptr();
    return found;
}

/// like.new_empty(shape), or with another dtype.
nb::object new_empty(nb::handle like, const nb::object& shape, PyObject* dtype) {
    static PyObject* const method = PyUnicode_InternFromString("new_empty");
    static PyObject* const keywords = nb::make_tuple("dtype").release().ptr();
    PyObject* const arguments[] = {like.ptr(), shape.ptr(), dtype};
    PyObject* made = PyObject_VectorcallMethod(method, arguments, 2, dtype == nullptr ? nullptr : keywords);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

/// In a block; nothing where that is not worth it, or `like` is not a tensor
/// of torch on the host. Its storage cannot be resized.
nb::object new_in_block(nb::handle like, const TensorView& view, int first) {
    const auto bytes = static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype));
    const bool has_dlpack = view.dtype != DType::u16 && view.dtype != DType::u32 && view.dtype != DType::u64;
    if (bytes < least_block_bytes || !has_dlpack || !is_plain_tensor(like)) return {};
    if (!nb::cast<bool>(like.attr("is_cpu"))) return {};
    Block* block = take_block(bytes);
    if (block == nullptr) return {};
    const nb::capsule owner(block, give_block);
    std::array<std::size_t, TensorView::max_rank> shape{};
    for (int d = first; d < view.rank; ++d)
        shape.at(static_cast<std::size_t>(d - first)) = static_cast<std::size_t>(view.shape[d]);
    return nb::cast(nb::ndarray<nb::pytorch>(block->data, static_cast<std::size_t>(view.rank - first), shape.data(),
                                             owner, nullptr, dlpack_dtype(view.dtype)));
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
    make_contiguous(view);
    const nb::object shape = shape_of(view, drop ? 1 : 0);
    nb::object tensor;
    if (!fill) tensor = new_in_block(like, view, drop ? 1 : 0);
    if (tensor.is_valid()) {
        take_memory(view, reader.read(tensor, {"new_tensor", "out"}, Access::write));
        return tensor;
    }
    if (fill) {
        tensor = like.attr("new_full")(shape, *fill, nb::arg("dtype") = nb::handle(torch_dtype(view.dtype)));
    } else {
        tensor = new_empty(like, shape, view.dtype == like_dtype ? nullptr : torch_dtype(view.dtype));
    }
    const TensorView made = reader.read(tensor, {"new_tensor", "out"}, Access::write);
    take_memory(view, made);
    if (made.device.type == DeviceType::cpu && !fill) {
        prefer_huge_pages(view.data, static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype)));
    }
    return tensor;
}

nb::object Allocator::make(TensorView& view, const char* what, bool drop, std::optional<int> fill) const {
    require_memory(op_, what, view);
    try {
        if (allocate_.is_none()) return new_tensor(like_, like_dtype_, view, reader_, drop, fill);
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
