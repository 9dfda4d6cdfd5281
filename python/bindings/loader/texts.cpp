// Texts of a batch: the text, or the ids and the mask, that each number stands for.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "arrays/outputs.hpp"
#include "arrays/tensor_reader.hpp"
#include "batch/contract.hpp"
#include "bindings.hpp"
#include "core/contract.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// int64 on the host, contiguous, (B,) or (B, T).
TensorView read_numbers(TensorReader& reader, std::string_view op, nb::handle given) {
    const TensorView numbers = reader.read(given, {op, "numbers"});
    require_dtype(op, "numbers", numbers, DType::i64);
    require_device(op, "numbers", numbers, Device{});
    loader_detail::require_contiguous(op, "numbers", numbers);
    if (numbers.rank < 1 || numbers.rank > 2) fail(op, "numbers", "have 1 or 2 dimensions", shape_text(numbers));
    return numbers;
}

/// The last of `count` for a number that is none of the others.
std::size_t known(std::int64_t number, std::size_t count) {
    const auto i = static_cast<std::size_t>(number);  // a negative one is large
    return i < count ? i : count - 1;
}

nb::object text_list(const std::int64_t* numbers, std::int64_t count, const nb::list& texts) {
    nb::object made = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
    if (!made.is_valid()) throw nb::python_error();
    const std::size_t size = nb::len(texts);
    for (std::int64_t i = 0; i < count; ++i) {
        PyObject* text = PyList_GetItem(texts.ptr(), static_cast<Py_ssize_t>(known(numbers[i], size)));
        Py_XINCREF(text);
        if (text == nullptr || PyList_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), text) != 0) {
            throw nb::python_error();
        }
    }
    return made;
}

/// A list of str, or of lists. `texts`: of each number; the last one for numbers that have none.
nb::object texts_of(nb::handle numbers, const nb::list& texts) {
    constexpr std::string_view op = "texts_of";
    TensorReader reader;
    const TensorView view = read_numbers(reader, op, numbers);
    if (nb::len(texts) == 0) fail(op, "texts", "have one for numbers without a text", "none");
    const auto* data = static_cast<const std::int64_t*>(view.data);
    if (view.rank == 1) return text_list(data, view.shape[0], texts);
    nb::list made;
    for (std::int64_t b = 0; b < view.shape[0]; ++b)
        made.append(text_list(data + b * view.shape[1], view.shape[1], texts));
    return made;
}

/// [ids, mask]: rows of (U, L) i64 and bool. index (N,) i64: the row of each number, the last one for numbers that have
/// none.
nb::list tokens_of(nb::handle numbers, nb::handle index, nb::handle ids, nb::handle mask) {
    constexpr std::string_view op = "tokens_of";
    TensorReader reader;
    const TensorView view = read_numbers(reader, op, numbers);
    const TensorView rows = reader.read(index, {op, "index"});
    loader_detail::require_list(op, "index", rows, DType::i64, Device{});
    const TensorView tables[] = {reader.read(ids, {op, "ids"}), reader.read(mask, {op, "mask"})};
    const DType dtypes[] = {DType::i64, DType::boolean};
    const nb::handle likes[] = {ids, mask};
    const auto* from = static_cast<const std::int64_t*>(rows.data);
    const auto size = static_cast<std::size_t>(rows.shape[0]);
    if (size == 0) fail(op, "index", "have a row for numbers without a text", "none");
    const auto* data = static_cast<const std::int64_t*>(view.data);
    nb::list made;
    for (std::size_t k = 0; k < 2; ++k) {
        const TensorView& table = tables[k];
        require_rank(op, k == 0 ? "ids" : "mask", table, 2);
        require_dtype(op, k == 0 ? "ids" : "mask", table, dtypes[k]);
        require_device(op, k == 0 ? "ids" : "mask", table, Device{});
        loader_detail::require_contiguous(op, k == 0 ? "ids" : "mask", table);
        TensorView out = view;
        out.dtype = dtypes[k];
        out.shape[out.rank++] = table.shape[1];
        made.append(new_output(likes[k], dtypes[k], out, reader));
        const std::int64_t bytes = table.shape[1] * size_bytes(dtypes[k]);
        const std::int64_t count = view.num_elements();
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t row = from[known(data[i], size)];
            if (row < 0 || row >= table.shape[0]) fail(op, "index", "have rows of the tables", std::to_string(row));
            std::memcpy(static_cast<char*>(out.data) + i * bytes, static_cast<const char*>(table.data) + row * bytes,
                        static_cast<std::size_t>(bytes));
        }
    }
    return made;
}

}  // namespace

void bind_texts(nb::module_& m) {
    m.def("texts_of", &texts_of, nb::arg("numbers"), nb::arg("texts"));
    m.def("tokens_of", &tokens_of, nb::arg("numbers"), nb::arg("index"), nb::arg("ids"), nb::arg("mask"));
}

}  // namespace robocache::python
