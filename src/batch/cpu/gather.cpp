// gather_bytes: ranges of several arrays, one after the other.
#include <cstring>
#include <string>
#include <vector>

#include "batch/contract.hpp"
#include "core/thread_pool.hpp"
#include "robocache/loader.hpp"

namespace robocache {

void gather_bytes(std::span<const std::span<const std::uint8_t>> parts, std::span<const ByteRange> ranges,
                  std::span<std::uint8_t> out) {
    constexpr const char* op = "gather_bytes";
    std::vector<std::size_t> begins;
    begins.reserve(ranges.size());
    std::size_t total = 0;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const ByteRange& range = ranges[i];
        const bool has_part = range.part >= 0 && range.part < static_cast<std::int64_t>(parts.size());
        const std::int64_t size =
            has_part ? static_cast<std::int64_t>(parts[static_cast<std::size_t>(range.part)].size()) : 0;
        if (!has_part || range.begin < 0 || range.begin > range.end || range.end > size) {
            fail(op, {"ranges", i, ""}, "lie in one of " + std::to_string(parts.size()) + " parts",
                 std::to_string(range.begin) + " to " + std::to_string(range.end) + " of part " +
                     std::to_string(range.part));
        }
        begins.push_back(total);
        total += static_cast<std::size_t>(range.end - range.begin);
    }
    if (total != out.size()) fail(op, "out", "have " + std::to_string(total) + " bytes", std::to_string(out.size()));
    constexpr std::int64_t grain = 8;  // pictures, of some 10 to 100 KB
    parallel_for(static_cast<std::int64_t>(ranges.size()), grain, [&](std::int64_t first, std::int64_t last) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
            const ByteRange& range = ranges[i];
            const auto size = static_cast<std::size_t>(range.end - range.begin);
            if (size == 0) continue;
            std::memcpy(out.data() + begins[i], parts[static_cast<std::size_t>(range.part)].data() + range.begin, size);
        }
    });
}

}  // namespace robocache
