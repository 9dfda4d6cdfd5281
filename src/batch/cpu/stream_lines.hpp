// Copies with non-temporal stores of a whole line, where the CPU has AVX-512.
#pragma once

#include <cstdint>

#include "core/cpu_features.hpp"

#ifdef ROBOCACHE_X86_64_V3
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#endif

namespace robocache::loader_detail {

/// align_detail::CpuKernels::stream_out, after whose last call comes stream_fence().
using StreamOut = void (*)(const char* from, std::int64_t bytes, char* to);

#ifdef ROBOCACHE_X86_64_V3
/// Two stores of half a line meet in a buffer first; under 16 threads that is 7 % slower (docs/decisions/0008).
__attribute__((target("avx512f"))) inline void stream_lines(const char* from, std::int64_t bytes, char* to) {
    constexpr std::int64_t line = 64;
    const auto odd = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % line);
    std::int64_t done = std::min(odd, bytes);
    std::memcpy(to, from, static_cast<std::size_t>(done));
    for (; done + line <= bytes; done += line) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + done), _mm512_loadu_si512(from + done));
    }
    std::memcpy(to + done, from + done, static_cast<std::size_t>(bytes - done));
}
#endif

/// The fastest one here.
[[nodiscard]] inline StreamOut best_stream_out([[maybe_unused]] StreamOut otherwise) {
#ifdef ROBOCACHE_X86_64_V3
    if (has_avx512()) return stream_lines;
#endif
    return otherwise;
}

}  // namespace robocache::loader_detail
