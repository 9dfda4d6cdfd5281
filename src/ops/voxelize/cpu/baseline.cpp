// The CPU kernels of voxelize for the compiler's own target: any x86-64, aarch64, …
#include "ops/voxelize/cpu/kernels_impl.hpp"

namespace robocache::voxelize_detail {

const CpuKernels<std::uint32_t>& kernels_baseline(std::uint32_t) {
    return kernels<std::uint32_t>;
}

const CpuKernels<std::uint64_t>& kernels_baseline(std::uint64_t) {
    return kernels<std::uint64_t>;
}

}  // namespace robocache::voxelize_detail
