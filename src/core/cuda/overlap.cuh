// Programmatic dependent launch (PDL, compute capability 9.0 on): a kernel is launched while the kernel before it on
// the stream still runs. A launch costs about a microsecond, which is a large part of a small call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/cuda/check.hpp"
#include "core/cuda/device.hpp"

namespace robocache {

/// Allows the next kernel of the stream to launch.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// To be called by every thread of such a kernel before it writes global memory, or reads what work before it may have
/// written (what is read too early must decide nothing): returns when all of that is done and visible. Allows the next
/// kernel, which waits in the same way.
__device__ __forceinline__ void wait_for_earlier_work() {
    allow_next_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Launches a kernel that calls wait_for_earlier_work. `what` names it in errors.
template <class Argument>
void launch_overlapped(void (*kernel)(Argument), unsigned blocks, unsigned threads, std::size_t shared_bytes,
                       cudaStream_t stream, const Argument& argument, const char* what) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = compute_capability() >= 90 ? 1U : 0U;
    check_cuda(cudaLaunchKernelEx(&config, kernel, argument), what);
}

/// Blocks and threads of a launch, and the dynamic shared memory of a block, which may be more than 48 KiB.
struct Launch {
    std::int64_t blocks;
    int threads;
    std::int64_t shared_bytes = 0;
};

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
    launch_overlapped(kernel, static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.threads),
                      static_cast<std::size_t>(launch.shared_bytes), stream, argument, what);
}

}  // namespace robocache
