// CUDA C++ for the emulated GPU: qualifiers, vector types, built-in functions and launches. What is not here, no kernel
// of RoboCache uses.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "vector_types.h"

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__

// ---- numbers --------------------------------------------------------------------------------------------------------

template <class T, class U>
constexpr auto min(T a, U b) {
    using C = std::common_type_t<T, U>;
    return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class T, class U>
constexpr auto max(T a, U b) {
    using C = std::common_type_t<T, U>;
    return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}

inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
    return std::popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
    return std::countl_zero(static_cast<unsigned long long>(x));
}
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1U) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((std::uint64_t{high} << 32 | low) << (by & 31) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned from = selector >> (4 * i);
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (from & 7))) & 0xffU;
        if (from & 8) byte = byte & 0x80U ? 0xffU : 0;
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline double __longlong_as_double(long long x) {
    return std::bit_cast<double>(x);
}
inline long long __double_as_longlong(double x) {
    return std::bit_cast<long long>(x);
}
inline int __double2loint(double x) {
    return static_cast<int>(std::bit_cast<std::uint64_t>(x));
}
inline int __double2hiint(double x) {
    return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 32);
}
inline long long __double2ll_rn(double x) {
    return std::llrint(x);
}
inline int __float2int_rn(float x) {
    return static_cast<int>(std::lrintf(x));
}
inline float __saturatef(float x) {
    return x > 0 ? (x < 1 ? x : 1.0F) : 0.0F;
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
namespace emulation {
float rounded_fma(float a, float b, float c, int mode);
double rounded_add(double a, double b, int mode);
}  // namespace emulation
inline float __fmaf_rd(float a, float b, float c) {
    return emulation::rounded_fma(a, b, c, FE_DOWNWARD);
}
inline float __fmaf_ru(float a, float b, float c) {
    return emulation::rounded_fma(a, b, c, FE_UPWARD);
}
inline double __dadd_rd(double a, double b) {
    return emulation::rounded_add(a, b, FE_DOWNWARD);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
void __stcs(T* p, const std::type_identity_t<T>& value) {
    *p = value;
}
inline std::uintptr_t __cvta_generic_to_shared(const void* p) {
    return emulation::shared_address(p);
}

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    *p = static_cast<T>(old + x);
    return old;
}
inline float4 atomicAdd(float4* p, float4 x) {
    const float4 old = *p;
    *p = {old.x + x.x, old.y + x.y, old.z + x.z, old.w + x.w};
    return old;
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    *p = old | x;
    return old;
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    *p = old & x;
    return old;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    if (x > old) *p = x;
    return old;
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    if (x < old) *p = x;
    return old;
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> x) {
    const T old = *p;
    *p = x;
    return old;
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> x) {
    const T old = *p;
    if (old == expected) *p = x;
    return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- threads that work together -------------------------------------------------------------------------------------

inline void __syncthreads() {
    emulation::synchronize_block();
}
inline int __syncthreads_or(int vote) {
    return emulation::synchronize_block(vote != 0) > 0;
}
inline int __syncthreads_count(int vote) {
    return static_cast<int>(emulation::synchronize_block(vote != 0));
}
inline int __syncthreads_and(int vote) {
    return emulation::synchronize_block(vote == 0) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
    emulation::exchange(mask, nullptr, 0, "__syncwarp");
}

namespace emulation {

template <class T>
T value_of(const LaneValues& values, unsigned lane) {
    T value;
    std::memcpy(&value, values.bytes[lane], sizeof(T));
    return value;
}

/// What a lane that takes no part would give is undefined: all bits set.
template <class T>
T shuffled(unsigned mask, T value, unsigned from, const char* operation) {
    const LaneValues& values = exchange(mask, &value, sizeof(T), operation);
    if (mask >> from & 1U) return value_of<T>(values, from);
    std::memset(&value, 0xff, sizeof(T));
    return value;
}

inline unsigned votes(unsigned mask, bool vote, const char* operation) {
    const LaneValues& values = exchange(mask, &vote, sizeof vote, operation);
    unsigned all = 0;
    for (unsigned l = 0; l < warp_size; ++l) {
        if ((mask >> l & 1U) && value_of<bool>(values, l)) all |= 1U << l;
    }
    return all;
}

template <class T, class Combine>
T reduced(unsigned mask, T value, Combine combine, const char* operation) {
    const LaneValues& values = exchange(mask, &value, sizeof(T), operation);
    bool first = true;
    for (unsigned l = 0; l < warp_size; ++l) {
        if ((mask >> l & 1U) == 0) continue;
        value = first ? value_of<T>(values, l) : combine(value, value_of<T>(values, l));
        first = false;
    }
    return value;
}

}  // namespace emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const auto base = emulation::lane() & ~static_cast<unsigned>(width - 1);
    return emulation::shuffled(mask, value, base + (static_cast<unsigned>(from) & static_cast<unsigned>(width - 1)),
                               "__shfl_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulation::lane();
    const bool inside = (lane & static_cast<unsigned>(width - 1)) >= by;
    return emulation::shuffled(mask, value, inside ? lane - by : lane, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulation::lane();
    const bool inside = (lane & static_cast<unsigned>(width - 1)) + by < static_cast<unsigned>(width);
    return emulation::shuffled(mask, value, inside ? lane + by : lane, "__shfl_down_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32) {
    return emulation::shuffled(mask, value, emulation::lane() ^ static_cast<unsigned>(with), "__shfl_xor_sync");
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
    return emulation::votes(mask, vote != 0, "__ballot_sync");
}
inline int __any_sync(unsigned mask, int vote) {
    return emulation::votes(mask, vote != 0, "__any_sync") != 0;
}
inline int __all_sync(unsigned mask, int vote) {
    return emulation::votes(mask, vote != 0, "__all_sync") == mask;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
    return emulation::reduced(mask, value, [](T a, T b) { return a + b; }, "__reduce_add_sync");
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
    return emulation::reduced(mask, value, [](T a, T b) { return a < b ? b : a; }, "__reduce_max_sync");
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
    return emulation::reduced(mask, value, [](T a, T b) { return b < a ? b : a; }, "__reduce_min_sync");
}

// ---- launches -------------------------------------------------------------------------------------------------------

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    std::size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
    return cudaSuccess;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
    emulation::launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, [&] { kernel(arguments...); });
    return cudaSuccess;
}

namespace emulation {

template <class Thread>
void launch_on(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t, const Thread& thread) {
    launch(grid, block, shared_bytes, thread);
}

// ---- instructions of PTX, by name -----------------------------------------------------------------------------------

namespace ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void mbarrier_init_shared_cta_b64(std::uint32_t barrier, std::uint32_t arrivals) {
    init_barrier(barrier, arrivals);
}
inline void fence_mbarrier_init_release_cluster() {}
inline void mbarrier_arrive_shared_cta_b64(std::uint32_t barrier) {
    arrive(barrier, 0);
}
inline void mbarrier_arrive_expect_tx_shared_cta_b64(std::uint32_t barrier, std::uint32_t bytes) {
    arrive(barrier, bytes);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(std::uint32_t barrier, std::uint32_t parity) {
    await_barrier(barrier, parity);
}
inline void createpolicy_fractional_L2_evict_first_b64(std::uint64_t& policy) {
    policy = 0;
}
inline void fence_proxy_async_shared_cta() {}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(std::uint32_t to, const void* from,
                                                                           std::uint32_t bytes, std::uint32_t barrier) {
    start_bulk_copy(at_shared_address(to), from, bytes, barrier);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier, std::uint64_t) {
    start_bulk_copy(at_shared_address(to), from, bytes, barrier);
}
inline void cp_async_bulk_global_shared_cta_bulk_group(void* to, std::uint32_t from, std::uint32_t bytes) {
    start_bulk_write(to, at_shared_address(from), bytes);
}
inline void cp_async_bulk_commit_group() {}
inline void cp_async_bulk_wait_group() {
    finish_copies();
}
inline void cp_async_bulk_prefetch_L2_global(const void*, std::uint32_t) {}

template <class T>
void load(T& value, const void* from) {
    std::memcpy(&value, from, sizeof(T));
}
inline void ld_shared_f32(float& x, std::uint32_t from) {
    load(x, at_shared_address(from));
}
inline void ld_shared_f64(double& x, std::uint32_t from) {
    load(x, at_shared_address(from));
}
template <class T>
void ld_shared_u32(T& x, std::uint32_t from) {
    static_assert(sizeof(T) == 4);
    load(x, at_shared_address(from));
}
template <class T>
void ld_shared_s64(T& x, std::uint32_t from) {
    static_assert(sizeof(T) == 8);
    load(x, at_shared_address(from));
}
inline void red_shared_or_b32(std::uint32_t to, std::uint32_t slot, std::uint32_t bit) {
    if (slot < 0x8000) atomicOr(static_cast<std::uint32_t*>(at_shared_address(to)), bit);
}
inline void red_shared_add_u32(std::uint32_t to, std::uint32_t slot) {
    if (slot < 0x8000) atomicAdd(static_cast<std::uint32_t*>(at_shared_address(to)), 1U);
}
inline void st_shared_u32(std::uint32_t to, std::uint32_t x) {
    std::memcpy(at_shared_address(to), &x, 4);
}
inline void ld_global_u32(std::uint32_t& x, const void* from) {
    load(x, from);
}
inline void ld_global_v2_u32(std::uint32_t& x, std::uint32_t& y, const void* from) {
    uint2 v;
    load(v, from);
    x = v.x;
    y = v.y;
}
inline void ld_global_v4_u32(std::uint32_t& x, std::uint32_t& y, std::uint32_t& z, std::uint32_t& w, const void* from) {
    uint4 v;
    load(v, from);
    x = v.x;
    y = v.y;
    z = v.z;
    w = v.w;
}

}  // namespace ptx
}  // namespace emulation
