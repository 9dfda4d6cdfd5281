// The module robocache._core: exceptions, system information, aligned memory, and the operations.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "bindings.hpp"
#include "core/thread_pool.hpp"
#include "robocache/robocache.hpp"
#include "tensor_argument.hpp"

namespace nb = nanobind;
using namespace robocache;

namespace {

void map_exceptions(nb::module_& m) {
    nb::exception<FormatError>(m, "FormatError", PyExc_RuntimeError);
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const InvalidArgument& e) {
            PyErr_SetString(PyExc_ValueError, e.what());
        } catch (const Unsupported& e) {
            PyErr_SetString(PyExc_NotImplementedError, e.what());
        } catch (const OutOfMemory& e) {
            PyErr_SetString(PyExc_MemoryError, e.what());
        } catch (const CudaError& e) {
            PyErr_SetString(PyExc_RuntimeError, e.what());
        }
    });
}

nb::dict cuda_status_dict() {
    const CudaStatus status = cuda_status();
    nb::dict result;
    result["compiled"] = status.compiled;
    result["available"] = status.available;
    result["runtime_version"] = status.runtime_version;
    result["driver_version"] = status.driver_version;
    result["devices"] = status.devices;
    result["reason"] = status.reason;
    return result;
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
    const auto bits = static_cast<std::uint8_t>(size_bytes(dtype) * 8);
    std::uint8_t code = 2;
    if (dtype == DType::boolean) code = 6;
    if (dtype >= DType::u8 && dtype <= DType::u64) code = 1;
    if (dtype >= DType::i8 && dtype <= DType::i64) code = 0;
    if (dtype == DType::bf16) code = 4;
    return {code, bits, 1};
}

std::string shape_text(const std::vector<std::size_t>& shape) {
    std::string text = "(";
    for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
    return text + ")";
}

/// Memory that is about to be written for the first time costs a fault for every page: ask for large ones.
void prefer_huge_pages(void* data, std::size_t bytes) {
    constexpr std::uintptr_t page = 4096;
    if (bytes < (std::size_t{4} << 20)) return;
    const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
    const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: it may be declined
}

/// Host memory aligned to 64 bytes, as an array that any DLPack consumer takes over without copying (JAX: 64 needed).
nb::ndarray<nb::array_api> empty(const std::vector<std::size_t>& shape, const std::string& dtype_name) {
    const DType dtype = python::dtype_from_name(dtype_name, {"empty", "dtype"});
    std::size_t bytes = static_cast<std::size_t>(size_bytes(dtype));
    bool too_large = false;
    for (const std::size_t extent : shape) too_large = __builtin_mul_overflow(bytes, extent, &bytes) || too_large;
    too_large = too_large || bytes > SIZE_MAX / 2;
    void* data = too_large ? nullptr : std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (data == nullptr) throw OutOfMemory("no memory for an output of " + shape_text(shape) + " " + dtype_name);
    prefer_huge_pages(data, bytes);
    const nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return {data, shape.size(), shape.data(), owner, nullptr, dlpack_dtype(dtype)};
}

}  // namespace

NB_MODULE(_core, m) {
    map_exceptions(m);
    detail::watch_forks();
    m.def("version", &version);
    m.def("cpu_instruction_set", &cpu_instruction_set);
    m.def("cuda_status", &cuda_status_dict);
    m.def("num_threads", &num_threads);
    m.def("set_num_threads", &set_num_threads, nb::arg("count"));
    m.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"));
    m.def(
        "prefer_huge_pages",
        [](std::uintptr_t address, std::size_t bytes) { prefer_huge_pages(reinterpret_cast<void*>(address), bytes); },
        nb::arg("address"), nb::arg("bytes"));
    python::bind_align(m);
    python::bind_align_backward(m);
}
