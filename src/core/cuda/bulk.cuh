// Copies between global and shared memory that run while the threads go on. Bulk copies, with the barriers that report
// their arrival, need compute capability 9.0; their sizes and addresses are multiples of 16 bytes.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>

namespace robocache {

/// Starts a copy of 4, 8 or 16 bytes from global to shared memory, on any GPU; wait_for_copies returns when it is done.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    __pipeline_memcpy_async(to, from, bytes);
}

/// Waits for the copies that this thread has started.
__device__ __forceinline__ void wait_for_copies() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
}

/// Shared memory as PTX names it.
__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- barriers, by their shared address ------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialized barriers visible to bulk copies. Called by the thread that initialized them.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and lets the barrier wait for so many bytes too.
__device__ __forceinline__ void arrive_and_expect(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Returns when the phase of this parity is through.
__device__ __forceinline__ void await_barrier(std::uint32_t barrier, std::uint32_t parity) {
    asm volatile(
        "{\n .reg .pred done;\n waiting:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        " @done bra finished;\n bra waiting;\n finished:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---- copies ---------------------------------------------------------------------------------------------------------

/// For what is used once: it leaves the second-level cache before other things do.
__device__ __forceinline__ std::uint64_t used_once_policy() {
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// What this thread wrote to shared memory, or sees there, is seen by the copies that follow.
__device__ __forceinline__ void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Into shared memory; the barrier is told of the bytes.
__device__ __forceinline__ void copy_in(void* to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_in(void* to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                                        std::uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/// From shared memory; done when the thread has waited for it.
__device__ __forceinline__ void copy_out(void* to, const void* from, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

/// By the thread that copied out, before it waits.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until what this thread has copied out is in global memory.
__device__ __forceinline__ void await_written() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// Brings bytes into the second-level cache. Decides nothing, so it may come before earlier work has finished.
__device__ __forceinline__ void prefetch(const void* from, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#endif

}  // namespace robocache
