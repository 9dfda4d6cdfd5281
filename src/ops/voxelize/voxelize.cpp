// The public API of voxelize: names, the plans, and dispatch to the device of the tensors.
#include "robocache/voxelize.hpp"

#include <string>
#include <utility>

#include "core/contract.hpp"
#include "ops/voxelize/contract/plan.hpp"
#include "ops/voxelize/contract/source_rules.hpp"

namespace robocache {
namespace voxelize_detail {
namespace {

// ---- the backends, by plan ------------------------------------------------------------------------------------------

#ifdef ROBOCACHE_HAS_CUDA
std::int64_t plan_cuda(DensePlan& plan) {
    return plan_voxelize_cuda(plan);
}
std::int64_t plan_cuda(const SparsePlan& plan) {
    return plan_voxelize_sparse_cuda(plan);
}
std::int64_t plan_cuda(const BackwardPlan& plan) {
    return plan_voxelize_backward_cuda(plan);
}
void run_cuda(const DensePlan& plan, CudaQueue queue) {
    voxelize_cuda(plan, queue);
}
void run_cuda(const SparsePlan& plan, CudaQueue queue) {
    voxelize_sparse_cuda(plan, queue);
}
void run_cuda(const BackwardPlan& plan, CudaQueue queue) {
    voxelize_backward_cuda(plan, queue);
}
#endif

void run_cpu(const DensePlan& plan) {
    voxelize_cpu(plan);
}
void run_cpu(const SparsePlan& plan) {
    voxelize_sparse_cpu(plan);
}
void run_cpu(const BackwardPlan& plan) {
    voxelize_backward_cpu(plan);
}

// ---- plan and run ---------------------------------------------------------------------------------------------------

template <class Output, class... Arguments>
VoxelPlanFor<Output> plan_anywhere(std::string_view op, const VoxelOptions& options, const Arguments&... arguments) {
    auto state = std::make_unique<typename VoxelPlanFor<Output>::State>();
    state->names = options.names;
    if (state->names.op.empty()) state->names.op = op;
    if (static_cast<std::size_t>(options.reduction) >= std::size(reductions)) {
        fail(state->names.op, state->names.reduction, "be an enumerator",
             std::to_string(static_cast<int>(options.reduction)));
    }
    make_plan(*state, arguments..., options);
    if (state->plan.device.type == DeviceType::cuda) {
#ifdef ROBOCACHE_HAS_CUDA
        state->workspace_bytes = plan_cuda(state->plan);
#else
        throw Unsupported(std::string(state->names.op) + ": this build contains no CUDA code, got tensors on " +
                          name(state->plan.device));
#endif
    }
    return VoxelPlanFor<Output>(std::move(state));
}

template <class Plan>
void check_data(const Plan& plan, const Names& names, [[maybe_unused]] CudaQueue queue) {
    if (!plan.check || plan.points.offsets == nullptr) return;
    if (plan.device.type != DeviceType::cuda) {
        return check_offsets(plan.points.offsets, plan.points.offsets_stride, plan.num_clouds, plan.num_points, names);
    }
#ifdef ROBOCACHE_HAS_CUDA
    const std::vector<std::int64_t> offsets = read_offsets_cuda(plan.points, plan.num_clouds, plan.device, queue);
    check_offsets(offsets.data(), 1, plan.num_clouds, plan.num_points, names);
#endif
}

/// The points or images have memory; the plan has not read it.
template <class Plan>
void require_inputs(const Plan& plan, const Names& names) {
    const void* data = plan.points.data;
    std::string_view argument = names.points;
    if constexpr (requires { plan.from_depth; }) {
        if (plan.from_depth) {
            data = plan.depth.data;
            argument = names.depth;
        }
    }
    if (data == nullptr && plan.num_points > 0) fail(names.op, argument, "have memory", "null data");
}

template <class State, class Output>
void run_anywhere(const State& state, const Output& output, Workspace workspace, CudaQueue queue) {
    auto plan = bind(state, output);
    require_inputs(plan, state.names);
    plan.workspace = bind_workspace(workspace, state.workspace_bytes, state.names);
    check_data(plan, state.names, queue);
    if (plan.device.type != DeviceType::cuda) return run_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    run_cuda(plan, queue);
#endif
}

}  // namespace
}  // namespace voxelize_detail

using namespace voxelize_detail;

Reduction reduction_from_name(std::string_view name, std::string_view op, std::string_view argument) {
    for (const ReductionTraits& traits : reductions) {
        if (traits.name == name) return traits.reduction;
    }
    fail(op, argument, "be " + reduction_choices([](const ReductionTraits&) { return true; }),
         "'" + std::string(name) + "'");
}

std::string_view reduction_name(Reduction reduction) noexcept {
    return traits_of(reduction).name;
}

std::span<const ReductionTraits> reduction_traits() noexcept {
    return reductions;
}

template <class Output>
VoxelPlanFor<Output>::VoxelPlanFor(std::unique_ptr<const State> state) noexcept : state_(std::move(state)) {}
template <class Output>
VoxelPlanFor<Output>::~VoxelPlanFor() = default;
template <class Output>
VoxelPlanFor<Output>::VoxelPlanFor(VoxelPlanFor&&) noexcept = default;
template <class Output>
VoxelPlanFor<Output>& VoxelPlanFor<Output>::operator=(VoxelPlanFor&&) noexcept = default;

template <class Output>
Device VoxelPlanFor<Output>::device() const noexcept {
    return state_->plan.device;
}

template <class Output>
const Output& VoxelPlanFor<Output>::output() const noexcept {
    return state_->output;
}

template <class Output>
std::int64_t VoxelPlanFor<Output>::workspace_bytes() const noexcept {
    return state_->workspace_bytes;
}

template class VoxelPlanFor<VoxelOutput>;
template class VoxelPlanFor<SparseOutput>;
template class VoxelPlanFor<VoxelGradient>;

VoxelPlan plan_voxelize(const PointsView& points, const VoxelGrid& grid, const VoxelOptions& options) {
    return plan_anywhere<VoxelOutput>("voxelize", options, points, grid);
}

VoxelPlan plan_voxelize(const DepthView& images, const VoxelGrid& grid, const VoxelOptions& options) {
    return plan_anywhere<VoxelOutput>("voxelize_depth", options, images, grid);
}

SparseVoxelPlan plan_voxelize_sparse(const PointsView& points, const VoxelGrid& grid, const SparseLimits& limits,
                                     const VoxelOptions& options) {
    return plan_anywhere<SparseOutput>("voxelize_sparse", options, points, grid, limits);
}

VoxelBackwardPlan plan_voxelize_backward(const PointsView& points, const VoxelGrid& grid, std::int64_t num_channels,
                                         const VoxelOptions& options) {
    return plan_anywhere<VoxelGradient>("voxelize_backward", options, points, grid, num_channels);
}

void run(const VoxelPlan& plan, const VoxelOutput& output, Workspace workspace, CudaQueue queue) {
    run_anywhere(plan.state(), output, workspace, queue);
}

void run(const SparseVoxelPlan& plan, const SparseOutput& output, Workspace workspace, CudaQueue queue) {
    run_anywhere(plan.state(), output, workspace, queue);
}

void run(const VoxelBackwardPlan& plan, const VoxelGradient& gradient, Workspace workspace, CudaQueue queue) {
    run_anywhere(plan.state(), gradient, workspace, queue);
}

void check(const VoxelPlan& plan, CudaQueue queue) {
    check_data(plan.state().plan, plan.state().names, queue);
}

void check(const SparseVoxelPlan& plan, CudaQueue queue) {
    check_data(plan.state().plan, plan.state().names, queue);
}

}  // namespace robocache
