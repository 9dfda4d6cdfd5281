// Outputs that C++ writes: torch tensors and NumPy arrays made here, or arrays that a callable of Python makes.
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
/// of its size: the contract gets the shape of `view` and does not use `made`.
void take_memory(TensorView& view, const TensorView& made);

/// A torch tensor without gaps on the device of `like`, which has dtype `like_dtype`, and the shape of `view`, which
/// becomes a view of it; without the first dimension (of size 1) for Python if `drop`. `fill`: what is in it. If `like`
/// is a NumPy array, a NumPy array in HostMemory.
[[nodiscard]] nanobind::object new_output(nanobind::handle like, DType like_dtype, TensorView& view,
                                          TensorReader& reader, bool drop = false, std::optional<int> fill = {});

/// Whether new_output makes NumPy arrays like it.
[[nodiscard]] bool is_numpy(nanobind::handle like);

/// Makes the outputs and the workspace of one call of `op`.
class Allocator {
public:
    /// allocate: `allocate(what, shape, dtype, fill or None)` of Python returns an array. None: as new_output
    /// makes them like `like`, which has dtype `like_dtype`.
    Allocator(std::string_view op, TensorReader& reader, nanobind::handle allocate, nanobind::handle like,
              DType like_dtype)
        : op_(op), reader_(reader), allocate_(allocate), like_(like), like_dtype_(like_dtype) {}

    /// An array of the shape and dtype of `view`, which becomes a view of it. `what` it is, for messages. `drop` and
    /// `fill` as in new_output. Throws OutOfMemory, which names the bytes.
    [[nodiscard]] nanobind::object make(TensorView& view, const char* what, bool drop = false,
                                        std::optional<int> fill = {}) const;
    /// None where there is no view.
    [[nodiscard]] nanobind::object make(std::optional<TensorView>& view, const char* what, bool drop = false,
                                        std::optional<int> fill = {}) const {
        return view ? make(*view, what, drop, fill) : nanobind::none();
    }

private:
    std::string_view op_;
    TensorReader& reader_;
    nanobind::handle allocate_;
    nanobind::handle like_;
    DType like_dtype_;
};

}  // namespace robocache::python
