// The CPU kernels of decode for the compiler's own target, and the choice between instruction sets.
#include "core/cpu_features.hpp"
#include "ops/decode/cpu/kernels_impl.hpp"

namespace robocache::decode_detail {

const CpuKernels& kernels_baseline() {
    return kernels;
}

const CpuKernels& cpu_kernels() {
#ifdef ROBOCACHE_X86_64_V3
    if (has_x86_64_v3()) return kernels_x86_64_v3();
#endif
    return kernels_baseline();
}

}  // namespace robocache::decode_detail
