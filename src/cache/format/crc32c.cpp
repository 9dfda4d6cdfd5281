// Uses SSE4.2 if the CPU supports it, otherwise eight lookup tables.
#include "cache/format/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace robocache::cache_detail {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
        tables[0][i] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t i = 0; i < 256; ++i) {
            tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xffU];
        }
    }
    return tables;
}

constexpr Tables tables = make_tables();

std::uint64_t load(const char* data) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::string_view bytes, std::uint32_t crc) noexcept {
    std::uint64_t state = ~crc;
    const char* data = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= 8; data += 8, left -= 8) state = _mm_crc32_u64(state, load(data));
    auto narrow = static_cast<std::uint32_t>(state);
    for (; left > 0; ++data, --left) narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(*data));
    return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_table(std::string_view bytes, std::uint32_t crc) noexcept {
    std::uint32_t state = ~crc;
    const char* data = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= 8; data += 8, left -= 8) {
        const std::uint64_t word = load(data) ^ state;
        state = 0;
        for (std::size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xffU];
    }
    for (; left > 0; ++data, --left)
        state = (state >> 8) ^ tables[0][(state ^ static_cast<unsigned char>(*data)) & 0xffU];
    return ~state;
}

std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc) noexcept {
#if defined(__x86_64__)
    static const bool fast = __builtin_cpu_supports("sse4.2") != 0;
    if (fast) return crc32c_sse42(bytes, crc);
#endif
    return crc32c_table(bytes, crc);
}

std::string hex(std::uint32_t number) {
    std::string text(8, '0');
    for (std::size_t i = 0; i < 8; ++i) text[7 - i] = "0123456789abcdef"[(number >> (4 * i)) & 0xfU];
    return text;
}

}  // namespace robocache::cache_detail
