// Shuffles of whole structures, for the emulated GPU.
#pragma once

#include "cuda_runtime.h"

namespace cub {

template <int lanes, class T>
T ShuffleIndex(T value, int from, unsigned mask) {
    static_assert(lanes == 32);
    T result;
    constexpr std::size_t step = 16;
    for (std::size_t at = 0; at < sizeof(T); at += step) {
        struct Part {
            unsigned char bytes[step];
        } part{};
        const std::size_t bytes = sizeof(T) - at < step ? sizeof(T) - at : step;
        std::memcpy(&part, reinterpret_cast<const char*>(&value) + at, bytes);
        part = __shfl_sync(mask, part, from);
        std::memcpy(reinterpret_cast<char*>(&result) + at, &part, bytes);
    }
    return result;
}

}  // namespace cub
