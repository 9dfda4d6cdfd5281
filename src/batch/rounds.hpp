// permute with everything that depends on the key alone worked out ahead: half the instructions, for the GPU.
#pragma once

#include <cstdint>

#include "batch/order.hpp"

namespace robocache::loader_detail {

/// One half round of permute for halves of at most 30 bits. x = half ^ key has key's own bits from bit 30 on, so that
/// the first steps of mix, (x ^ x >> 30) * mix_first, are (half ^ low) * mix_first + sum.
struct HalfRound {
    std::uint64_t sum;
    std::uint32_t low;
};

struct Rounds {
    static constexpr int most_bits = 60;
    HalfRound halves[8];

    explicit Rounds(std::uint64_t key) {
        constexpr std::uint64_t low_mask = (std::uint64_t{1} << 30) - 1;
        for (HalfRound& half : halves) {
            key += golden;
            const std::uint64_t mixed = key ^ (key >> 30);
            half.sum = (mixed & ~low_mask) * mix_first;
            half.low = static_cast<std::uint32_t>(mixed & low_mask);
        }
    }
    Rounds() = default;
};

/// The lowest 32 bits of mix(half ^ key).
ROBOCACHE_HD std::uint32_t mix_half(std::uint32_t half, const HalfRound& round) {
    std::uint64_t x = (half ^ round.low) * mix_first + round.sum;
    x = (x ^ (x >> 27)) * mix_second;
    return static_cast<std::uint32_t>(x ^ (x >> 31));
}

/// permute(x, count, bits, key) for bits <= Rounds::most_bits.
ROBOCACHE_HD std::uint64_t permute(std::uint64_t x, std::uint64_t count, int bits, const Rounds& rounds) {
    const int low_bits = bits / 2;
    const std::uint32_t low_mask = (1U << low_bits) - 1;
    const std::uint32_t high_mask = (1U << (bits - low_bits)) - 1;
    do {
        std::uint32_t low = static_cast<std::uint32_t>(x) & low_mask;
        auto high = static_cast<std::uint32_t>(x >> low_bits);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int i = 0; i < 8; i += 2) {
            high ^= mix_half(low, rounds.halves[i]) & high_mask;
            low ^= mix_half(high, rounds.halves[i + 1]) & low_mask;
        }
        x = static_cast<std::uint64_t>(high) << low_bits | low;
    } while (x >= count);
    return x;
}

}  // namespace robocache::loader_detail
