// Error messages of the contract: each names the operation, the argument, the rule and the given value.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "robocache/errors.hpp"
#include "robocache/tensor.hpp"

namespace robocache {

/// The shortest text that reads back as the same number: 1e-09, where std::to_string has 0.000000.
template <std::floating_point Number>
[[nodiscard]] std::string number_text(Number x) {
    char buffer[40];
    return {buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr};
}

/// Throws InvalidArgument "op: argument must <rule>, got <given>".
[[noreturn]] inline void fail(std::string_view op, const ArgumentName& argument, std::string_view rule,
                              std::string_view given) {
    std::string text;
    text.append(op).append(": ").append(argument.text()).append(" must ").append(rule).append(", got ").append(given);
    throw InvalidArgument(text);
}

inline void require_rank(std::string_view op, const ArgumentName& argument, const TensorView& tensor, int rank) {
    if (tensor.rank == rank) return;
    fail(op, argument, "have " + std::to_string(rank) + (rank == 1 ? " dimension" : " dimensions"),
         "shape " + shape_text(tensor));
}

inline void require_dtype(std::string_view op, const ArgumentName& argument, const TensorView& tensor, DType dtype) {
    if (tensor.dtype != dtype) fail(op, argument, std::string("have dtype ") + name(dtype), name(tensor.dtype));
}

inline void require_device(std::string_view op, const ArgumentName& argument, const TensorView& tensor, Device device) {
    // Pinned host memory is read like any other host memory.
    const auto on_host = [](Device d) { return d.type == DeviceType::cpu || d.type == DeviceType::cuda_host; };
    if (tensor.device == device || (on_host(tensor.device) && on_host(device))) return;
    fail(op, argument, "be on " + name(device), name(tensor.device));
}

/// For a run: the outputs of a plan have no memory until the caller sets it.
inline void require_not_null(std::string_view op, const ArgumentName& argument, const TensorView& tensor) {
    if (tensor.data == nullptr && tensor.num_elements() > 0) fail(op, argument, "have memory", "null data");
}

}  // namespace robocache
