// The public API of decode: the plan, and dispatch to the device of the pictures.
#include "robocache/decode.hpp"

#include <string>
#include <utility>

#include "ops/decode/contract/plan.hpp"
#include "robocache/errors.hpp"

namespace robocache {

using namespace decode_detail;

DecodePlan::DecodePlan(std::unique_ptr<const State> state) noexcept : state_(std::move(state)) {}
DecodePlan::~DecodePlan() = default;
DecodePlan::DecodePlan(DecodePlan&&) noexcept = default;
DecodePlan& DecodePlan::operator=(DecodePlan&&) noexcept = default;

Device DecodePlan::device() const noexcept {
    return state_->plan.device;
}

const TensorView& DecodePlan::output() const noexcept {
    return state_->output;
}

std::int64_t DecodePlan::workspace_bytes() const noexcept {
    return state_->workspace_bytes;
}

DecodePlan plan_decode(const PicturesView& pictures, const DecodeOptions& options) {
    auto state = std::make_unique<DecodePlan::State>();
    make_plan(*state, pictures, options);
    if (state->plan.device.type == DeviceType::cuda) {
#ifdef ROBOCACHE_HAS_CUDA
        state->workspace_bytes = plan_decode_cuda(state->plan);
#else
        throw Unsupported(std::string(options.op) + ": this build contains no CUDA code, got tensors on " +
                          name(state->plan.device));
#endif
    }
    return DecodePlan(std::move(state));
}

void run(const DecodePlan& plan, const TensorView& output, Workspace workspace, [[maybe_unused]] CudaQueue queue) {
    const DecodePlan::State& state = plan.state();
    const Target target = bind(state, output, workspace);
    if (state.plan.jobs.empty()) return;
    if (state.plan.device.type != DeviceType::cuda) return decode_cpu(state.plan, target, state.op);
#ifdef ROBOCACHE_HAS_CUDA
    decode_cuda(state.plan, target, queue);
#endif
}

}  // namespace robocache
