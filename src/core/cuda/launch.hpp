// Launches of kernels that overlap with the work before them: overlap.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "core/cuda/check.hpp"
#include "core/cuda/device.hpp"

namespace robocache {

/// Blocks and threads of a launch, and the dynamic shared memory of a block, which may be more than 48 KiB.
struct Launch {
    std::int64_t blocks;
    std::int64_t threads;
    std::int64_t shared_bytes = 0;
};

/// Launches a kernel that calls wait_for_earlier_work. `what` names it in errors.
template <class Argument>
void launch_overlapped(void (*kernel)(Argument), const Launch& launch, cudaStream_t stream, const Argument& argument,
                       const char* what) {
    if (launch.blocks > INT32_MAX) throw Unsupported(std::string(what) + ": more work than a CUDA grid has blocks");
    if (launch.shared_bytes > 48 * 1024) {
        check_cuda(
            cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(launch.shared_bytes)),
            what);
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
    config.blockDim = dim3(static_cast<unsigned>(launch.threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = compute_capability() >= 90 ? 1U : 0U;
    check_cuda(cudaLaunchKernelEx(&config, kernel, argument), what);
}

}  // namespace robocache
