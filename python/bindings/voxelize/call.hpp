// One call of voxelize from Python: plan, make outputs and workspace, run without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string_view>

#include "arrays/memory.hpp"
#include "arrays/outputs.hpp"
#include "core/cuda/memory.hpp"
#include "unlocked.hpp"
#include "voxelize/arguments.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// Makes an array for Python, of the shape and dtype of `view`, which becomes a view of it. `what` it is, for messages.
using Make = std::function<nb::object(TensorView& view, const char* what, std::optional<int> fill)>;

/// Torch tensors beside `like`.
inline Make make_tensors(VoxelArguments& arguments, nb::handle like, DType like_dtype) {
    return [&arguments, like, like_dtype](TensorView& view, const char* what, std::optional<int> fill) {
        require_memory(arguments.op(), what, view);
        try {
            return new_tensor(like, like_dtype, view, arguments.reader(), false, fill);
        } catch (nb::python_error& error) {
            const bool is_memory = error.matches(PyExc_MemoryError) ||
                                   (error.matches(PyExc_RuntimeError) &&
                                    std::string_view(error.what()).find("memory") != std::string_view::npos);
            if (!is_memory) throw;
            fail_memory(arguments.op(), what, view);
        }
    };
}

/// Whatever `allocate(what, shape, dtype, fill)` of Python makes.
inline Make make_arrays(VoxelArguments& arguments, const nb::callable& allocate) {
    return [&arguments, allocate](TensorView& view, const char* what, std::optional<int> fill) {
        require_memory(arguments.op(), what, view);
        make_contiguous(view);
        nb::object filled = fill ? nb::object(nb::int_(*fill)) : nb::none();
        nb::object made = allocate(what, shape_of(view), name(view.dtype), filled);
        take_memory(view, arguments.tensor(made, what, Access::write));
        return made;
    };
}

/// The workspace of a plan, alive as long as the object.
class Scratch {
public:
    Scratch(std::int64_t bytes, Device device, const Make& make) {
        if (bytes == 0) return;
        TensorView view(static_cast<void*>(nullptr), DType::u8, {bytes}, device);
        array_ = make(view, "workspace", {});
        workspace_ = {view.data, bytes};
    }
    [[nodiscard]] Workspace workspace() const { return workspace_; }

private:
    Workspace workspace_;
    nb::object array_;
};

/// Runs without the GIL; waits where memory may be reused as soon as the call returns.
template <class Plan, class Output>
void run_unlocked(VoxelArguments& arguments, const Plan& plan, const Output& output, const Make& make) {
    const Scratch scratch(plan.workspace_bytes(), plan.device(), make);
    const TensorReader& reader = arguments.reader();
    const Unlocked unlocked;
    run(plan, output, scratch.workspace(), reader.stream());
    if (reader.must_wait()) wait_for_stream(plan.device().index, reader.stream());
}

/// What run() checks of the data, without the GIL.
template <class Plan>
void check_unlocked(VoxelArguments& arguments, const Plan& plan) {
    const CudaQueue queue = arguments.reader().stream();
    const Unlocked unlocked;
    check(plan, queue);
}

}  // namespace robocache::python
