// One call of voxelize from Python: plan, make outputs and workspace, run without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "arrays/memory.hpp"
#include "arrays/outputs.hpp"
#include "core/cuda/memory.hpp"
#include "unlocked.hpp"
#include "voxelize/arguments.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// The workspace of a plan, alive as long as the object.
class Scratch {
public:
    Scratch(std::int64_t bytes, Device device, const Allocator& allocator) {
        if (bytes == 0) return;
        TensorView view(static_cast<void*>(nullptr), DType::u8, {bytes}, device);
        array_ = allocator.make(view, "workspace");
        workspace_ = {view.data, bytes};
    }
    [[nodiscard]] Workspace workspace() const { return workspace_; }

private:
    Workspace workspace_;
    nb::object array_;
};

/// Runs without the GIL; waits where memory may be reused as soon as the call returns.
template <class Plan, class Output>
void run_unlocked(VoxelArguments& arguments, const Plan& plan, const Output& output, const Allocator& allocator) {
    const Scratch scratch(plan.workspace_bytes(), plan.device(), allocator);
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
