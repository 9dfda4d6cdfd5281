// Every CUDA call goes through here: an error becomes an exception that says which call failed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "robocache/errors.hpp"

namespace robocache {

inline void check_cuda(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // the next call must not see it again
    const std::string text = std::string(call) + ": " + cudaGetErrorString(error);
    if (error == cudaErrorMemoryAllocation) throw OutOfMemory(text);
    throw CudaError(text);
}

/// Makes a device current, and the one before it again.
class DeviceGuard {
public:
    explicit DeviceGuard(int device) {
        check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
        if (device == previous_) {
            previous_ = -1;
        } else {
            check_cuda(cudaSetDevice(device), "cudaSetDevice");
        }
    }
    ~DeviceGuard() {
        if (previous_ >= 0) (void)cudaSetDevice(previous_);
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

private:
    int previous_ = -1;
};

}  // namespace robocache
