// Detects the CPU features once.
#include "core/cpu_features.hpp"

#include <cstdlib>
#include <cstring>

#include "robocache/system.hpp"

namespace robocache {
namespace {

bool detect() noexcept {
    if (const char* text = std::getenv("ROBOCACHE_CPU_BASELINE"); text != nullptr && std::strcmp(text, "1") == 0) {
        return false;
    }
#ifdef ROBOCACHE_X86_64_V3
#ifndef __clang__  // clang 14 does not know the name; every CPU with AVX2 has F16C
    if (__builtin_cpu_supports("f16c") == 0) return false;
#endif
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
           __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
#else
    return false;
#endif
}

}  // namespace

bool has_x86_64_v3() noexcept {
    static const bool supported = detect();
    return supported;
}

bool has_avx512() noexcept {
#ifdef ROBOCACHE_X86_64_V3
    static const bool supported = has_x86_64_v3() && __builtin_cpu_supports("avx512f") != 0;
    return supported;
#else
    return false;
#endif
}

const char* cpu_instruction_set() noexcept {
    return has_x86_64_v3() ? "x86-64-v3" : "baseline";
}

}  // namespace robocache
