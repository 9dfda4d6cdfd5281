// The CPU kernels of voxelize for x86-64 with AVX2, FMA and F16C; CMake compiles this file with -mavx2 -mfma -mf16c.
#include "ops/voxelize/cpu/kernels_impl.hpp"

namespace robocache::voxelize_detail {

const CpuKernels<std::uint32_t>& kernels_x86_64_v3(std::uint32_t) {
    return kernels<std::uint32_t>;
}

const CpuKernels<std::uint64_t>& kernels_x86_64_v3(std::uint64_t) {
    return kernels<std::uint64_t>;
}

}  // namespace robocache::voxelize_detail
