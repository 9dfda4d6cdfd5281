// Outputs that Python makes and C++ writes: torch tensors made here, or arrays that a callable of Python makes.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "arrays/tensor_reader.hpp"

namespace robocache::python {

/// `view`'s strides as those of an array without gaps.
void make_contiguous(TensorView& view);

/// The shape of `view` as a tuple, from dimension `first` on.
[[nodiscard]] nanobind::object shape_of(const TensorView& view, int first = 0);

/// `view`, of an array without gaps, becomes a view of `made`, the memory that Python has for it. Throws if that is not
/// of its size: the contract is told the shape of `view`, and sees nothing of `made`.
void take_memory(TensorView& view, const TensorView& made);

/// A torch tensor without gaps on the device of `like`, which has dtype `like_dtype`, and the shape of `view`, which
/// becomes a view of it; without the first dimension (of size 1) for Python if `drop`. `fill`: what is in it.
[[nodiscard]] nanobind::object new_tensor(nanobind::handle like, DType like_dtype, TensorView& view,
                                          TensorReader& reader, bool drop = false, std::optional<int> fill = {});

}  // namespace robocache::python
