// The public API of align: names, the plan, and dispatch to the device of the tensors.
#include "robocache/align.hpp"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/contract.hpp"
#include "ops/align/contract/methods.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache {
namespace {

constexpr std::array<std::string_view, 4> outside_names = {"hold", "nan", "linear", "error"};

}  // namespace

Method method_from_name(std::string_view name, std::string_view op, const ArgumentName& argument) {
    for (const MethodTraits& traits : method_traits()) {
        if (traits.name == name) return traits.method;
    }
    fail(op, argument, "be " + align_detail::method_choices([](Method) { return true; }),
         "'" + std::string(name) + "'");
}

Outside outside_from_name(std::string_view name, std::string_view op, const ArgumentName& argument) {
    for (std::size_t i = 0; i < outside_names.size(); ++i) {
        if (outside_names[i] == name) return static_cast<Outside>(i);
    }
    fail(op, argument, "be hold, nan, linear or error", "'" + std::string(name) + "'");
}

std::string_view method_name(Method method) noexcept {
    return align_detail::methods[static_cast<std::size_t>(method)].name;
}

std::span<const MethodTraits> method_traits() noexcept {
    return std::span<const MethodTraits>(align_detail::methods).subspan(1);
}

AlignPlan plan_align(std::span<const StreamView> streams, const Query& query, const AlignOptions& options) {
    auto state = std::make_unique<AlignPlan::State>();
    state->call = align_detail::make_plan(streams, query, options.names);
    state->streams.assign(streams.begin(), streams.end());
    for (StreamView& stream : state->streams) stream.ranges = {};  // the caller's; the call has its own
    state->options = options;
    return AlignPlan(std::move(state));
}

AlignPlan::AlignPlan(std::unique_ptr<const State> state) noexcept : state_(std::move(state)) {}
AlignPlan::~AlignPlan() = default;
AlignPlan::AlignPlan(AlignPlan&&) noexcept = default;
AlignPlan& AlignPlan::operator=(AlignPlan&&) noexcept = default;

std::size_t AlignPlan::num_streams() const noexcept {
    return state_->streams.size();
}

Device AlignPlan::device() const noexcept {
    return state_->call.device;
}

AlignOutput AlignPlan::output(std::size_t stream) const {
    AlignOutput output{align_detail::output_view(state_->call, state_->streams.at(stream)), {}, {}};
    const auto plane = [&](DType dtype) {
        return TensorView(static_cast<void*>(nullptr), dtype, {state_->call.num_rows, state_->call.num_targets},
                          output.values.device);
    };
    output.valid = plane(DType::boolean);
    output.index = plane(DType::i64);
    return output;
}

std::int64_t AlignPlan::workspace_bytes() const noexcept {
    return 0;
}

namespace align_detail {

std::string method_choices(bool (*is_included)(Method)) {
    std::string choices;
    std::string_view last;
    for (const MethodTraits& traits : method_traits()) {
        if (!is_included(traits.method)) continue;
        if (!last.empty()) choices += (choices.empty() ? "" : ", ") + std::string(last);
        last = traits.name;
    }
    return (choices.empty() ? "" : choices + " or ") + std::string(last);
}

CallPlan bind(const AlignPlan& plan, std::span<const AlignOutput> outputs) {
    const AlignPlan::State& state = plan.state();
    CallPlan call = state.call;
    bind_outputs(call, state.streams, outputs, state.options.names);
    return call;
}

namespace {

void check_data_anywhere(const CallPlan& call, const AlignOptions& options, [[maybe_unused]] CudaQueue queue) {
    if (call.device.type != DeviceType::cuda) return check_data(call, options.names, options.check);
#ifdef ROBOCACHE_HAS_CUDA
    check_data_cuda(call, options.names, options.check, queue);
#else
    throw Unsupported(std::string(options.names.op) + ": this build contains no CUDA code, got tensors on " +
                      name(call.device));
#endif
}

void require_memory_of(const AlignPlan& plan, std::span<const AlignOutput> outputs) {
    const AlignPlan::State& state = plan.state();
    const Names& names = state.options.names;
    const auto require = [&](const std::optional<TensorView>& tensor, const ArgumentName& argument) {
        if (tensor) require_not_null(names.op, argument, *tensor);
    };
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        require(state.streams[i].values, names.values(i));
        require(state.streams[i].times, names.times(i));
        require(state.streams[i].offsets, names.field(i, "offsets"));
        require(outputs[i].values, {"out", i, ""});
        require(outputs[i].valid, {"out", i, "valid"});
        require(outputs[i].index, {"out", i, "index"});
    }
}

}  // namespace
}  // namespace align_detail

void check(const AlignPlan& plan, std::span<const AlignOutput> outputs, CudaQueue queue) {
    align_detail::check_data_anywhere(align_detail::bind(plan, outputs), plan.state().options, queue);
}

void run(const AlignPlan& plan, std::span<const AlignOutput> outputs, Workspace, CudaQueue queue) {
    const align_detail::CallPlan call = align_detail::bind(plan, outputs);
    align_detail::require_memory_of(plan, outputs);
    align_detail::check_data_anywhere(call, plan.state().options, queue);
    if (call.device.type != DeviceType::cuda) return align_detail::align_cpu(call);
#ifdef ROBOCACHE_HAS_CUDA
    align_detail::align_cuda(call, queue);
#endif
}

}  // namespace robocache
