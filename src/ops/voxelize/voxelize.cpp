// The public face of voxelize: names, then contract, then dispatch to the device the tensors live on.
#include "robocache/voxelize.hpp"

#include <array>
#include <string>

#include "core/contract.hpp"
#include "ops/voxelize/contract/plan.hpp"

namespace robocache {
namespace voxelize_detail {
namespace {

constexpr std::array<std::string_view, 6> reduction_names = {"occupancy", "count", "sum", "mean", "min", "max"};

#ifdef ROBOCACHE_HAS_CUDA
std::int64_t cuda_workspace(const DensePlan& plan) {
    return voxelize_cuda_workspace(plan);
}
std::int64_t cuda_workspace(const SparsePlan& plan) {
    return voxelize_sparse_cuda_workspace(plan);
}
std::int64_t cuda_workspace(const BackwardPlan& plan) {
    return voxelize_backward_cuda_workspace(plan);
}
void run_cuda(const DensePlan& plan, CudaQueue stream) {
    voxelize_cuda(plan, stream);
}
void run_cuda(const SparsePlan& plan, CudaQueue stream) {
    voxelize_sparse_cuda(plan, stream);
}
void run_cuda(const BackwardPlan& plan, CudaQueue stream) {
    voxelize_backward_cuda(plan, stream);
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

template <class Plan>
std::int64_t bytes_needed(const Plan& plan, [[maybe_unused]] const Names& names) {
    if (plan.device.type != DeviceType::cuda) return 0;
#ifdef ROBOCACHE_HAS_CUDA
    return cuda_workspace(plan);
#else
    throw Unsupported(std::string(names.op) + ": this build contains no CUDA code, got tensors on " +
                      name(plan.device));
#endif
}

template <class Plan>
void run_anywhere(Plan& plan, const TensorView& workspace, [[maybe_unused]] CudaQueue stream, const Names& names) {
    plan.workspace = bind_workspace(workspace, plan.device, bytes_needed(plan, names), names);
    const bool on_cuda = plan.device.type == DeviceType::cuda;
    if (plan.check && plan.points.offsets != nullptr && !on_cuda) {
        check_offsets(plan.points.offsets, plan.points.offsets_stride, plan.num_clouds, plan.num_points, names);
    }
    if (!on_cuda) return run_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    if (plan.check && plan.points.offsets != nullptr) {
        const std::vector<std::int64_t> offsets = read_offsets_cuda(plan.points, plan.num_clouds, plan.device, stream);
        check_offsets(offsets.data(), 1, plan.num_clouds, plan.num_points, names);
    }
    run_cuda(plan, stream);
#endif
}

Names names_of(std::string_view op) {
    Names names;
    names.op = op;
    return names;
}

}  // namespace

Reduction parse_reduction(const Names& names, std::string_view given) {
    for (std::size_t i = 0; i < reduction_names.size(); ++i) {
        if (reduction_names[i] == given) return static_cast<Reduction>(i);
    }
    fail(names.op, names.reduction, "be occupancy, count, sum, mean, min or max", "'" + std::string(given) + "'");
}

std::int64_t workspace_bytes(const DensePlan& plan, const Names& names) {
    return bytes_needed(plan, names);
}
std::int64_t workspace_bytes(const SparsePlan& plan, const Names& names) {
    return bytes_needed(plan, names);
}
std::int64_t workspace_bytes(const BackwardPlan& plan, const Names& names) {
    return bytes_needed(plan, names);
}

void run(DensePlan& plan, const TensorView& workspace, CudaQueue stream, const Names& names) {
    run_anywhere(plan, workspace, stream, names);
}
void run(SparsePlan& plan, const TensorView& workspace, CudaQueue stream, const Names& names) {
    run_anywhere(plan, workspace, stream, names);
}
void run(BackwardPlan& plan, const TensorView& workspace, CudaQueue stream, const Names& names) {
    run_anywhere(plan, workspace, stream, names);
}

}  // namespace voxelize_detail

using namespace voxelize_detail;

Reduction reduction_from_name(std::string_view name) {
    return parse_reduction({}, name);
}

std::string_view reduction_name(Reduction reduction) noexcept {
    return reduction_names[static_cast<std::size_t>(reduction)];
}

void voxelize(const PointsView& points, const VoxelGrid& grid, const VoxelOutput& output, const VoxelOptions& options,
              const TensorView& workspace, CudaQueue stream) {
    const Names names;
    DensePlan plan = make_plan(points, grid, output, options, names);
    run(plan, workspace, stream, names);
}

std::int64_t voxelize_workspace(const PointsView& points, const VoxelGrid& grid, const VoxelOutput& output,
                                const VoxelOptions& options) {
    const Names names;
    return workspace_bytes(make_plan(points, grid, output, options, names), names);
}

void voxelize_depth(const DepthView& images, const VoxelGrid& grid, const VoxelOutput& output,
                    const VoxelOptions& options, const TensorView& workspace, CudaQueue stream) {
    const Names names = names_of("voxelize_depth");
    DensePlan plan = make_plan(images, grid, output, options, names);
    run(plan, workspace, stream, names);
}

std::int64_t voxelize_depth_workspace(const DepthView& images, const VoxelGrid& grid, const VoxelOutput& output,
                                      const VoxelOptions& options) {
    const Names names = names_of("voxelize_depth");
    return workspace_bytes(make_plan(images, grid, output, options, names), names);
}

void voxelize_sparse(const PointsView& points, const VoxelGrid& grid, const SparseOutput& output,
                     const VoxelOptions& options, const TensorView& workspace, CudaQueue stream) {
    const Names names = names_of("voxelize_sparse");
    SparsePlan plan = make_plan(points, grid, output, options, names);
    run(plan, workspace, stream, names);
}

std::int64_t voxelize_sparse_workspace(const PointsView& points, const VoxelGrid& grid, const SparseOutput& output,
                                       const VoxelOptions& options) {
    const Names names = names_of("voxelize_sparse");
    return workspace_bytes(make_plan(points, grid, output, options, names), names);
}

void voxelize_backward(const PointsView& points, const VoxelGrid& grid, const VoxelGradient& gradient,
                       const VoxelOptions& options, const TensorView& workspace, CudaQueue stream) {
    const Names names = names_of("voxelize_backward");
    BackwardPlan plan = make_plan(points, grid, gradient, options, names);
    run(plan, workspace, stream, names);
}

std::int64_t voxelize_backward_workspace(const PointsView& points, const VoxelGrid& grid, const VoxelGradient& gradient,
                                         const VoxelOptions& options) {
    const Names names = names_of("voxelize_backward");
    return workspace_bytes(make_plan(points, grid, gradient, options, names), names);
}

}  // namespace robocache
