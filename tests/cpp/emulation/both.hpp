// Random calls on the CPU and on the emulated GPU, which read the same memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device.hpp"
#include "robocache/tensor.hpp"

namespace robocache::emulated {

constexpr Device cpu{};
constexpr Device gpu{DeviceType::cuda, 0};

/// Numbers for one case, the same for the same seed.
class Random {
public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}

    /// In [low, high].
    std::int64_t integer(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
    }
    double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
    bool chance(double probability) { return real(0, 1) < probability; }
    template <class T>
    T one_of(std::initializer_list<T> choices) {
        return *(choices.begin() + integer(0, static_cast<std::int64_t>(choices.size()) - 1));
    }

private:
    std::mt19937_64 engine_;
};

/// Memory of a tensor, aligned like that of an allocator of GPU memory.
class Memory {
public:
    Memory() = default;
    explicit Memory(std::int64_t bytes, std::uint8_t fill = 0x5a)
        : storage_(static_cast<std::size_t>(bytes) + alignment, fill), bytes_(bytes) {}

    [[nodiscard]] void* data() const {
        const auto at = reinterpret_cast<std::uintptr_t>(storage_.data());
        return reinterpret_cast<void*>((at + alignment - 1) / alignment * alignment);
    }
    [[nodiscard]] std::int64_t size() const { return bytes_; }

    DType dtype = DType::u8;  // of the elements

private:
    static constexpr std::size_t alignment = 256;
    std::vector<std::uint8_t> storage_;
    std::int64_t bytes_ = 0;
};

inline TensorView on(TensorView view, Device device) {
    view.device = device;
    return view;
}

inline std::optional<TensorView> on(const std::optional<TensorView>& view, Device device) {
    return view ? std::optional(on(*view, device)) : std::nullopt;
}

/// A random number of a dtype, some of them not finite.
inline void put_random(Random& random, DType dtype, void* at, bool specials) {
    double x = random.real(-3, 3);
    if (specials && random.chance(0.02)) {
        x = random.one_of({std::nan(""), HUGE_VAL, -HUGE_VAL, -0.0, 1e300});
    }
    const auto f = static_cast<float>(x);
    const auto bits = std::bit_cast<std::uint32_t>(f);
    switch (dtype) {
        case DType::f64: std::memcpy(at, &x, 8); break;
        case DType::f32: std::memcpy(at, &f, 4); break;
        case DType::bf16: {
            const auto upper = static_cast<std::uint16_t>(bits >> 16);
            std::memcpy(at, &upper, 2);
            break;
        }
        case DType::f16: {
            const auto any = static_cast<std::uint16_t>(random.integer(0, 0xffff));
            const auto finite = static_cast<std::uint16_t>((any & 0x7c00U) == 0x7c00U ? any & 0x83ffU : any);
            std::memcpy(at, specials ? &any : &finite, 2);
            break;
        }
        case DType::boolean: *static_cast<std::uint8_t*>(at) = random.chance(0.5) ? 1 : 0; break;
        default: {
            const std::int64_t any = random.integer(INT64_MIN, INT64_MAX);
            std::memcpy(at, &any, static_cast<std::size_t>(size_bytes(dtype)));
        }
    }
}

/// The bits of an element; every NaN has the same ones, since the contracts leave them open.
inline std::uint64_t bits_of(const Memory& memory, std::int64_t i) {
    const std::int64_t bytes = size_bytes(memory.dtype);
    std::uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(memory.data()) + i * bytes, static_cast<std::size_t>(bytes));
    std::uint64_t infinity = ~std::uint64_t{0};
    if (memory.dtype == DType::f64) infinity = 0x7ff0000000000000;
    if (memory.dtype == DType::f32) infinity = 0x7f800000;
    if (memory.dtype == DType::bf16) infinity = 0x7f80;
    if (memory.dtype == DType::f16) infinity = 0x7c00;
    const std::uint64_t sign = is_floating(memory.dtype) ? std::uint64_t{1} << (8 * bytes - 1) : 0;
    return (bits & ~sign) > infinity ? infinity + 1 : bits;
}

/// The first element that differs, or "".
inline std::string difference(const Memory& a, const Memory& b) {
    const std::int64_t count = a.size() / size_bytes(a.dtype);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint64_t x = bits_of(a, i);
        const std::uint64_t y = bits_of(b, i);
        char text[100];
        std::snprintf(text, sizeof text, "%s %lld of %lld: %llx, %llx", name(a.dtype), static_cast<long long>(i),
                      static_cast<long long>(count), static_cast<unsigned long long>(x),
                      static_cast<unsigned long long>(y));
        if (x != y) return text;
    }
    return {};
}

/// Memory for a tensor of a plan.
inline Memory memory_of(const TensorView& view) {
    Memory memory(view.num_elements() * size_bytes(view.dtype));
    memory.dtype = view.dtype;
    return memory;
}

/// The seeds of part `part` of a test that makes `count` calls; ROBOCACHE_EMULATED_CASES multiplies that.
inline std::vector<std::uint64_t> seeds(int part, int count) {
    const char* factor = std::getenv("ROBOCACHE_EMULATED_CASES");
    std::vector<std::uint64_t> all(
        static_cast<std::size_t>(count * (factor == nullptr ? 1 : std::max(1, std::atoi(factor)))));
    std::iota(all.begin(), all.end(), static_cast<std::uint64_t>(part) * 1'000'000);
    return all;
}

/// The order of threads and the size of the GPU for one case.
inline void choose_gpu(Random& random) {
    emulation::order_seed = static_cast<std::uint64_t>(random.integer(0, 5));
    emulation::properties.compute_capability = random.one_of({80, 86, 90, 100, 120});
    const bool is_small =
        emulation::properties.compute_capability == 86 || emulation::properties.compute_capability == 120;
    emulation::properties.num_sms = random.one_of({1, 8, 108, 132});
    emulation::properties.shared_of_block = (is_small                                         ? 99
                                             : emulation::properties.compute_capability == 80 ? 163
                                                                                              : 227)
                                            << 10;
}

}  // namespace robocache::emulated
