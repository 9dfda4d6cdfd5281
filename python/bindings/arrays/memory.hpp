// Memory that is about to become an output.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <string_view>

#include "robocache/tensor.hpp"

namespace robocache::python {

/// Host memory that is about to be written for the first time costs a fault for every page: asks for large ones, where
/// there are enough bytes for it.
void prefer_huge_pages(void* data, std::size_t bytes);

[[nodiscard]] nanobind::dlpack::dtype dlpack_dtype(DType dtype);

/// Throws OutOfMemory, which names the bytes, where `view` is on the host and larger than all of its memory. An
/// allocation of that size may well succeed; whoever writes to it is killed.
void require_memory(std::string_view op, std::string_view what, const TensorView& view);

/// Throws OutOfMemory, which names the bytes of `view`.
[[noreturn]] void fail_memory(std::string_view op, std::string_view what, const TensorView& view);

}  // namespace robocache::python
