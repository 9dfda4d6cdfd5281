// Histograms of bytes, for statistics of pictures.
#pragma once

#include <cstdint>
#include <span>

namespace robocache::cache_detail {

/// Adds to counts[channel * 256 + value] for rows of num_channels bytes; counts.size() is num_channels * 256.
void count_bytes(std::span<const std::uint8_t> rows, std::int64_t num_channels, std::span<std::int64_t> counts);

}  // namespace robocache::cache_detail
