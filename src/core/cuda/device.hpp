// What the current device is, asked of CUDA once for each device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/cuda/check.hpp"

namespace robocache {

template <cudaDeviceAttr attribute>
int ask_device(int device) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
    return value;
}

/// What `ask` says of the current device; never 0.
template <int (*ask)(int device)>
int of_device() {
    static std::array<std::atomic<int>, 64> known{};
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const auto slot = static_cast<std::size_t>(device);
    if (slot >= known.size()) return ask(device);
    int value = known[slot].load(std::memory_order_relaxed);
    if (value == 0) {
        value = ask(device);
        known[slot].store(value, std::memory_order_relaxed);
    }
    return value;
}

inline int ask_compute_capability(int device) {
    return 10 * ask_device<cudaDevAttrComputeCapabilityMajor>(device) +
           ask_device<cudaDevAttrComputeCapabilityMinor>(device);
}

/// 90 for 9.0.
inline int compute_capability() {
    return of_device<ask_compute_capability>();
}

inline std::int64_t num_sms() {
    return of_device<ask_device<cudaDevAttrMultiProcessorCount>>();
}

/// Bytes of shared memory that a block may have.
inline std::int64_t shared_of_block() {
    return of_device<ask_device<cudaDevAttrMaxSharedMemoryPerBlockOptin>>();
}

}  // namespace robocache
