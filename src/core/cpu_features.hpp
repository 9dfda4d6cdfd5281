// Which instruction set the CPU kernels may use here.
#pragma once

namespace robocache {

/// AVX2, FMA, F16C and BMI2 are there (x86-64-v3), and ROBOCACHE_CPU_BASELINE=1 does not forbid them.
[[nodiscard]] bool has_x86_64_v3() noexcept;

/// AVX-512F is there too.
[[nodiscard]] bool has_avx512() noexcept;

}  // namespace robocache
