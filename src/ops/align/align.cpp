// The public face of align: names, then contract, then dispatch to the device the tensors live on.
#include "robocache/align.hpp"

#include <array>
#include <string>

#include "core/contract.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache {
namespace {

constexpr std::array<std::string_view, 12> method_names = {"automatic", "linear", "previous",   "next",
                                                           "nearest",   "cubic",  "slerp_xyzw", "slerp_wxyz",
                                                           "angle",     "mean",   "min",        "max"};
constexpr std::array<std::string_view, 4> outside_names = {"hold", "nan", "linear", "error"};

template <class Enum, std::size_t count>
Enum from_name(const std::array<std::string_view, count>& names, std::size_t first, const ArgumentName& what,
               std::string_view given, std::string_view op) {
    for (std::size_t i = first; i < count; ++i) {
        if (names[i] == given) return static_cast<Enum>(i);
    }
    std::string choices;
    for (std::size_t i = first; i < count; ++i) {
        if (i > first) choices += i + 1 < count ? ", " : " or ";
        choices += names[i];
    }
    fail(op, what, "be " + choices, "'" + std::string(given) + "'");
}

}  // namespace

Method align_detail::parse_method(std::string_view op, const ArgumentName& argument, std::string_view given) {
    return from_name<Method>(method_names, 1, argument, given, op);
}

Outside align_detail::parse_outside(std::string_view op, const ArgumentName& argument, std::string_view given) {
    return from_name<Outside>(outside_names, 0, argument, given, op);
}

Method method_from_name(std::string_view name) {
    return align_detail::parse_method("align", "method", name);
}

Outside outside_from_name(std::string_view name) {
    return align_detail::parse_outside("align", "outside", name);
}

std::string_view method_name(Method method) noexcept {
    return method_names[static_cast<std::size_t>(method)];
}

void align_detail::run(AlignPlan& plan, std::span<const StreamView> streams, std::span<const AlignOutput> outputs,
                       const Names& names, const AlignOptions& options, CudaQueue stream) {
    bind_outputs(plan, streams, outputs, names);
    check_data_anywhere(plan, names, options.check, stream);
    if (plan.device.type != DeviceType::cuda) return align_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    align_cuda(plan, stream);
#endif
}

void align_detail::check_data_anywhere(const AlignPlan& plan, const Names& names, bool check,
                                       [[maybe_unused]] CudaQueue stream) {
    if (plan.device.type != DeviceType::cuda) return check_data(plan, names, check);
#ifdef ROBOCACHE_HAS_CUDA
    check_data_cuda(plan, names, check, stream);
#else
    throw Unsupported(std::string(names.op) + ": this build contains no CUDA code, got tensors on " +
                      name(plan.device));
#endif
}

void align(std::span<const StreamView> streams, const Query& query, std::span<const AlignOutput> outputs,
           const AlignOptions& options, CudaQueue stream) {
    const align_detail::Names names;
    align_detail::AlignPlan plan = align_detail::make_plan(streams, query, names);
    align_detail::run(plan, streams, outputs, names, options, stream);
}

TensorView align_output(const StreamView& stream, const Query& query) {
    return align_detail::output_view(align_detail::make_plan({&stream, 1}, query, {}), stream);
}

}  // namespace robocache
