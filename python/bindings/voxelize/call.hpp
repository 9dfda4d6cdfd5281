// One call of voxelize from Python: the contract speaks, outputs and workspace are made, then C++ runs without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

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
        require_memory(arguments.names().op, what, view);
        return new_tensor(like, like_dtype, view, arguments.reader(), false, fill);
    };
}

/// Whatever `allocate(what, shape, dtype, fill)` of Python makes.
inline Make make_arrays(VoxelArguments& arguments, const nb::callable& allocate) {
    return [&arguments, allocate](TensorView& view, const char* what, std::optional<int> fill) {
        require_memory(arguments.names().op, what, view);
        make_contiguous(view);
        nb::object filled = fill ? nb::object(nb::int_(*fill)) : nb::none();
        nb::object made = allocate(what, shape_of(view), name(view.dtype), filled);
        take_memory(view, arguments.tensor(made, what, Access::write));
        return made;
    };
}

/// A C-contiguous view of nothing yet.
inline TensorView planned(DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
    return TensorView(static_cast<void*>(nullptr), dtype, shape, device);
}

/// Scratch memory of `bytes`, alive as long as the object.
struct Workspace {
    Workspace(std::int64_t bytes, Device device, const Make& make) {
        if (bytes == 0) return;
        view = planned(DType::u8, {bytes}, device);
        array = make(view, "workspace", {});
    }
    TensorView view;
    nb::object array;
};

/// Plans anew, now that the outputs are there, and runs without the GIL; waits where memory may be reused as soon as
/// the call returns.
template <class View, class Output>
void run_unlocked(VoxelArguments& arguments, const View& view, const Output& output, const VoxelOptions& options,
                  const Workspace& workspace) {
    const TensorReader& reader = arguments.reader();
    const Unlocked unlocked;
    auto plan = voxelize_detail::make_plan(view, arguments.grid(), output, options, arguments.names());
    voxelize_detail::run(plan, workspace.view, reader.stream(), arguments.names());
    if (reader.must_wait()) wait_for_stream(plan.device.index, reader.stream());
}

/// The contract, before anything is made: throws, or returns the bytes of workspace.
template <class View, class Output>
std::int64_t plan_bytes(const VoxelArguments& arguments, const View& view, const Output& output,
                        const VoxelOptions& options) {
    const auto plan = voxelize_detail::make_plan(view, arguments.grid(), output, options, arguments.names());
    return voxelize_detail::workspace_bytes(plan, arguments.names());
}

/// A call on plain torch tensors: `make_call()`, then `run` of it. None for anything else, and for a call that is
/// refused or finds no memory: the general way says why.
template <class Run>
nb::object directly(const nb::tuple& source, int num_arrays, const Run& run) {
    for (int i = 0; i < num_arrays; ++i) {
        if (!source[i].is_none() && !is_plain_tensor(source[i])) return nb::none();
    }
    try {
        return run();
    } catch (const InvalidArgument&) {
        return nb::none();
    } catch (const SignalRaised&) {
        throw;  // whatever a handler raised, it is not about memory
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_RuntimeError)) throw;
        return nb::none();
    }
}

}  // namespace robocache::python
