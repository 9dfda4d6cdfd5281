// Two tables in turns: the counter of a value that follows itself would wait for its own store.
#include "cache/byte_counts.hpp"

#include <algorithm>
#include <vector>

namespace robocache::cache_detail {
namespace {

using Table = std::vector<std::uint32_t>;

void count_row(const std::uint8_t* row, std::size_t num_channels, Table& table) {
    for (std::size_t c = 0; c < num_channels; ++c) ++table[c * 256 + row[c]];
}

}  // namespace

void count_bytes(std::span<const std::uint8_t> rows, std::int64_t num_channels, std::span<std::int64_t> counts) {
    const auto channels = static_cast<std::size_t>(num_channels);
    const std::size_t num_rows = channels == 0 ? 0 : rows.size() / channels;
    if (num_rows < 1024) {  // not worth tables
        for (std::size_t i = 0; i < num_rows * channels; ++i) ++counts[i % channels * 256 + rows[i]];
        return;
    }
    constexpr std::size_t most_rows = std::size_t{1} << 31;  // no counter overflows
    for (std::size_t begin = 0; begin < num_rows; begin += most_rows) {
        const std::size_t end = std::min(num_rows, begin + most_rows);
        Table even(counts.size());
        Table odd(counts.size());
        std::size_t r = begin;
        for (; r + 2 <= end; r += 2) {
            count_row(rows.data() + r * channels, channels, even);
            count_row(rows.data() + (r + 1) * channels, channels, odd);
        }
        if (r < end) count_row(rows.data() + r * channels, channels, even);
        for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += std::int64_t{even[i]} + odd[i];
    }
}

}  // namespace robocache::cache_detail
