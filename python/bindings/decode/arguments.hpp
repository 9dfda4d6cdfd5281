// Host arrays of Python as spans.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>

#include "arrays/tensor_reader.hpp"
#include "core/contract.hpp"

namespace robocache::python {

/// An array of `columns` numbers per row, contiguous and on the host, as a span of T: a number, or a struct of them.
template <class T>
std::span<const T> host_rows(TensorReader& reader, nanobind::handle object, const Argument& argument, DType dtype,
                             std::int64_t columns) {
    const TensorView view = reader.read(object, argument);
    require_dtype(argument.op, argument.name, view, dtype);
    require_rank(argument.op, argument.name, view, columns == 1 ? 1 : 2);
    require_device(argument.op, argument.name, view, Device{});
    if (columns != 1 && view.shape[1] != columns) {
        fail(argument.op, argument.name, "have " + std::to_string(columns) + " columns", "shape " + shape_text(view));
    }
    const bool is_contiguous =
        (view.shape[0] <= 1 || view.strides[0] == columns) && (columns == 1 || view.strides[1] == 1);
    if (!is_contiguous) fail(argument.op, argument.name, "be contiguous", "strides");
    return {static_cast<const T*>(view.data), static_cast<std::size_t>(view.shape[0])};
}

template <class T>
std::span<const T> host_vector(TensorReader& reader, nanobind::handle object, const Argument& argument, DType dtype) {
    return host_rows<T>(reader, object, argument, dtype, 1);
}

}  // namespace robocache::python
