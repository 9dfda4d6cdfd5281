// voxelize on the CPU.
#include "ops/voxelize/plan.hpp"
#include "robocache/errors.hpp"

namespace robocache::voxelize_detail {

void voxelize_cpu(const DensePlan&) {
    throw Unsupported("voxelize: not there yet");
}
void voxelize_sparse_cpu(const SparsePlan&) {
    throw Unsupported("voxelize_sparse: not there yet");
}
void voxelize_backward_cpu(const BackwardPlan&) {
    throw Unsupported("voxelize_backward: not there yet");
}

}  // namespace robocache::voxelize_detail
