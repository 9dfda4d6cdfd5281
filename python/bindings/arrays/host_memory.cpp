// Memory of the host for NumPy arrays, and its export to other frameworks.
#include "arrays/host_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "arrays/blocks.hpp"
#include "arrays/dlpack.hpp"
#include "arrays/memory.hpp"
#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

constexpr const char* capsule_name = "dltensor";

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    const auto& memory = *nb::inst_ptr<HostMemory>(self);
    return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size_bytes()), 0, flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

/// The memory that a NumPy array is a view of; null if it has another owner.
std::shared_ptr<char> memory_of(nb::handle array) {
    nb::object owner = nb::borrow(array);
    while (nb::hasattr(owner, "base")) owner = owner.attr("base");
    return nb::isinstance<HostMemory>(owner) ? nb::cast<const HostMemory&>(owner).owner() : nullptr;
}

/// What a DLPack capsule points at, with everything that it keeps alive.
struct Shared {
    dlpack::ManagedTensor managed{};
    std::array<std::int64_t, TensorView::max_rank> shape{};
    std::shared_ptr<char> memory;
};

/// An array for `from_dlpack` of another framework. NumPy's own export has no bfloat16, and takes the GIL at the end.
class Exported {
public:
    /// `array` has no gaps. It is copied if it is not in HostMemory.
    explicit Exported(nb::handle array) {
        TensorReader reader;
        view_ = reader.read(array, {"exported", "array"});
        memory_ = memory_of(array);
        if (memory_ != nullptr && reinterpret_cast<std::uintptr_t>(view_.data) % 64 == 0) return;
        const auto size = static_cast<std::size_t>(view_.num_elements() * size_bytes(view_.dtype));
        const HostMemory copy(size);
        if (copy.data() == nullptr) fail_memory("exported", "an array", view_);
        if (size > 0) std::memcpy(copy.data(), view_.data, size);
        view_.data = copy.data();
        memory_ = copy.owner();
    }

    [[nodiscard]] nb::object dlpack(const nb::kwargs&) const { return dlpack_capsule(view_, 0, memory_); }

private:
    TensorView view_;
    std::shared_ptr<char> memory_;
};

}  // namespace

HostMemory::HostMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    constexpr std::size_t alignment = 64;
    if (size_bytes > SIZE_MAX / 2) return;
    if (size_bytes >= least_block_bytes) {
        if (Block* block = take_block(size_bytes); block != nullptr) {
            data_.reset(static_cast<char*>(block->data), [block](char*) { give_block(block); });
        }
        return;
    }
    auto* data = static_cast<char*>(std::aligned_alloc(alignment, (size_bytes / alignment + 1) * alignment));
    if (data != nullptr) data_.reset(data, [](char* unused) { std::free(unused); });
}

nb::object dlpack_capsule(const TensorView& view, int first, std::shared_ptr<char> memory) {
    auto shared = std::make_unique<Shared>();
    std::copy(view.shape.begin() + first, view.shape.begin() + view.rank, shared->shape.begin());
    shared->memory = std::move(memory);
    dlpack::ManagedTensor& managed = shared->managed;
    const nb::dlpack::dtype dtype = dlpack_dtype(view.dtype);
    managed.tensor = {view.data, {1, 0}, view.rank - first, {dtype.code, dtype.bits, dtype.lanes}, shared->shape.data(),
                      nullptr,   0};
    managed.deleter = [](dlpack::ManagedTensor* self) { delete static_cast<Shared*>(self->manager); };
    nb::object capsule = nb::steal(PyCapsule_New(&managed, capsule_name, [](PyObject* unused) {
        if (PyCapsule_IsValid(unused, capsule_name) == 0) return;  // its consumer calls the deleter
        auto* left = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(unused, capsule_name));
        left->deleter(left);
    }));
    if (!capsule.is_valid()) throw nb::python_error();
    managed.manager = shared.release();
    return capsule;
}

nb::object new_host_memory(std::size_t size_bytes) {
    HostMemory memory(size_bytes);
    if (memory.data() == nullptr) {
        PyErr_NoMemory();
        throw nb::python_error();
    }
    return nb::cast(std::move(memory));
}

void bind_host_memory(nb::module_& m) {
    const nb::class_<HostMemory> memory(m, "HostMemory", nb::type_slots(buffer_slots));
    nb::class_<Exported>(m, "Exported")
        .def(nb::init<nb::handle>(), nb::arg("array"))
        .def("__dlpack__", &Exported::dlpack, nb::arg("options"))
        .def("__dlpack_device__", [](const Exported&) { return nb::make_tuple(1, 0); });
}

}  // namespace robocache::python
