// The CPU kernels for the compiler's own target: any x86-64, aarch64, …
#include "ops/align/cpu/kernels_impl.hpp"

namespace robocache::align_detail {

const CpuKernels& kernels_baseline() {
    return kernels;
}

}  // namespace robocache::align_detail
