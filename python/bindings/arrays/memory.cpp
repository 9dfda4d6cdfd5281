// Memory for outputs that no framework makes: on the host for JAX on the CPU, on a GPU for JAX there.
#include "arrays/memory.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "align/arguments.hpp"
#include "arrays/outputs.hpp"
#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "core/cuda/memory.hpp"
#include "core/limits.hpp"
#include "robocache/errors.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// What this process may use at most: the machine's memory and swap, or what its control group grants.
std::int64_t host_memory_bytes() {
    struct sysinfo info{};
    const std::int64_t granted = process_limits().most_memory_bytes;
    if (sysinfo(&info) != 0) return granted;
    return std::min(granted, static_cast<std::int64_t>((info.totalram + info.totalswap) * info.mem_unit));
}

std::string shape_text(const std::vector<std::size_t>& shape) {
    std::string text = "(";
    for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
    return text + ")";
}

void free_host(void* data) noexcept {
    std::free(data);
}

void free_on_gpu(void* data) noexcept {
    const Unlocked unlocked;  // what the GPU is doing may itself wait for Python
    free_cuda(data);
}

/// Memory aligned to 64 bytes (JAX: 64 needed) on the host or on a GPU, as an array that any DLPack consumer takes over
/// without copying. Work that writes it must be done before it is handed on: it knows nothing of streams.
nb::ndarray<nb::array_api> empty(const std::vector<std::size_t>& shape, const std::string& dtype_name,
                                 std::optional<int> gpu) {
    const DType dtype = dtype_from_name(dtype_name, {"empty", "dtype"});
    std::size_t bytes = static_cast<std::size_t>(size_bytes(dtype));
    bool too_large = false;
    for (const std::size_t extent : shape) too_large = __builtin_mul_overflow(bytes, extent, &bytes) || too_large;
    too_large = too_large || bytes > SIZE_MAX / 2;
    void* data = nullptr;
    if (!too_large) data = gpu ? allocate_cuda(bytes, *gpu) : std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (data == nullptr) throw OutOfMemory("no memory for an output of " + shape_text(shape) + " " + dtype_name);
    if (!gpu) prefer_huge_pages(data, bytes);
    const nb::capsule owner(data, gpu ? free_on_gpu : free_host);
    const auto device = gpu ? nb::device::cuda::value : nb::device::cpu::value;
    return {data, shape.size(), shape.data(), owner, nullptr, dlpack_dtype(dtype), device, gpu.value_or(0)};
}

/// Nothing where that is 2^63 or more.
std::optional<std::int64_t> bytes_of(const TensorView& view) {
    std::int64_t bytes = size_bytes(view.dtype);
    bool too_large = false;
    for (int d = 0; d < view.rank; ++d) too_large = __builtin_mul_overflow(bytes, view.shape[d], &bytes) || too_large;
    return too_large ? std::nullopt : std::optional(bytes);
}

}  // namespace

nb::dlpack::dtype dlpack_dtype(DType dtype) {
    const auto bits = static_cast<std::uint8_t>(size_bytes(dtype) * 8);
    std::uint8_t code = 2;
    if (dtype == DType::boolean) code = 6;
    if (dtype >= DType::u8 && dtype <= DType::u64) code = 1;
    if (dtype >= DType::i8 && dtype <= DType::i64) code = 0;
    if (dtype == DType::bf16) code = 4;
    return {code, bits, 1};
}

void prefer_huge_pages(void* data, std::size_t bytes) {
    constexpr std::uintptr_t page = 4096;
    if (bytes < (std::size_t{4} << 20)) return;
    const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
    const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: it may be declined
}

void require_memory(std::string_view op, std::string_view what, const TensorView& view) {
    static const std::int64_t limit = host_memory_bytes();
    const std::optional<std::int64_t> bytes = bytes_of(view);
    if (!bytes || (view.device.type != DeviceType::cuda && *bytes > limit)) fail_memory(op, what, view);
}

void fail_memory(std::string_view op, std::string_view what, const TensorView& view) {
    const std::optional<std::int64_t> bytes = bytes_of(view);
    throw OutOfMemory(std::string(op) + ": no memory for " + std::string(what) + " of " + robocache::shape_text(view) +
                      " " + name(view.dtype) + ", " + (bytes ? std::to_string(*bytes) : "more than 2^63") + " bytes");
}

void bind_memory(nb::module_& m) {
    m.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("gpu") = nb::none());
    m.def(
        "empty_like",
        [](nb::handle like, const std::vector<std::int64_t>& shape) {
            constexpr std::string_view op = "empty_like";
            TensorReader reader;
            TensorView view = reader.read(like, {op, "like"});
            if (shape.size() > TensorView::max_rank) fail(op, "shape", "have at most 8 dimensions", "more");
            view.rank = static_cast<int>(shape.size());
            std::copy(shape.begin(), shape.end(), std::begin(view.shape));
            require_memory(op, "an array", view);
            return new_output(like, view.dtype, view, reader);
        },
        nb::arg("like"), nb::arg("shape"));
    m.def(
        "are_plain_tensors",
        [](nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle streams) {
            const auto is_plain = [](nb::handle array) { return array.is_none() || is_plain_tensor(array); };
            if (!is_plain(a) || !is_plain(b) || !is_plain(c) || !is_plain(d)) return false;
            if (streams.is_none()) return true;
            for (nb::handle stream : nb::borrow<nb::list>(streams)) {
                const GivenStream& s = nb::cast<const StreamObject&>(stream).given();
                if (!is_plain(s.values) || !is_plain(s.times) || !is_plain(s.offsets)) return false;
            }
            return true;
        },
        nb::arg("a").none(), nb::arg("b").none(), nb::arg("c").none(), nb::arg("d").none() = nb::none(),
        nb::arg("streams").none() = nb::none());
}

}  // namespace robocache::python
