// CRC32C (Castagnoli, reflected polynomial 0x82F63B78): the checksum of every byte of a cache.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace robocache::cache_detail {

/// crc32c("123456789") == 0xE3069283. Continues from `crc`, the value for the bytes before.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0) noexcept;
/// The same without special instructions.
[[nodiscard]] std::uint32_t crc32c_table(std::string_view bytes, std::uint32_t crc = 0) noexcept;

/// Eight lower-case hexadecimal digits.
[[nodiscard]] std::string hex(std::uint32_t number);

}  // namespace robocache::cache_detail
