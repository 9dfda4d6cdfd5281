// Division by a number that the host knows: one multiplication on the device.
#pragma once

#include <cstdint>

namespace robocache {

/// n / divisor for n < 2^31.
struct Divisor {
    std::uint32_t divisor = 1;
    std::uint32_t magic = 0;
    std::uint32_t shift = 0;

    Divisor() = default;
    explicit Divisor(std::uint32_t d) : divisor(d) {
        while ((std::uint64_t{1} << shift) < d) ++shift;
        // ceil(2^(31 + shift) / d) < 2^32, and exact for every n < 2^31 (Granlund and Montgomery).
        magic = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + d - 1) / d);
    }

#ifdef __CUDACC__
    __device__ std::uint32_t divide(std::uint32_t n) const {
        return divisor == 1 ? n : __umulhi(2 * n, magic) >> shift;
    }
#endif
};

}  // namespace robocache
