// Programmatic dependent launch (PDL, compute capability 9.0 on), the kernel's side of it: a kernel is launched while
// the kernel before it on the stream still runs. A launch costs about a microsecond, which is a large part of a small
// call.
#pragma once

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

}  // namespace robocache
