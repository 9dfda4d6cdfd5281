// Version, and the CUDA status of a build without CUDA code.
#include "robocache/system.hpp"

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
#endif

}  // namespace robocache
