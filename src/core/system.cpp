// Version, and the CUDA status of a build without CUDA code.
#include "robocache/system.hpp"

#include "core/cuda/memory.hpp"
#include "robocache/errors.hpp"

namespace robocache {

const char* version() noexcept {
    return ROBOCACHE_VERSION;
}

#ifndef ROBOCACHE_HAS_CUDA
CudaStatus cuda_status() {
    CudaStatus status;
    status.reason = "this build contains no CUDA code (nvcc was not found when it was built)";
    return status;
}

void* allocate_cuda(std::size_t, int) {
    throw Unsupported(cuda_status().reason);
}

void free_cuda(void*) noexcept {}

void wait_for_stream(int, CudaQueue) {
    throw Unsupported(cuda_status().reason);
}

int current_device() {
    throw Unsupported(cuda_status().reason);
}

bool is_capturing(Device, CudaQueue) {
    return false;
}
#endif

}  // namespace robocache
