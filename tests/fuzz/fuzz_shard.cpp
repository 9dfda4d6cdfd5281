// Any bytes as a shard: what the header promises lies inside the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cache/format/safetensors.hpp"
#include "robocache/errors.hpp"

using namespace robocache;
using namespace robocache::cache_detail;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        ShardHeader header = parse_safetensors({reinterpret_cast<const char*>(data), size}, "fuzz");
        std::int64_t total = header.size_bytes;
        for (const TensorEntry& entry : header.tensors) {
            const std::int64_t end = header.size_bytes + entry.end;
            if (entry.begin < 0 || entry.begin > entry.end || end > static_cast<std::int64_t>(size)) std::abort();
            total += entry.end - entry.begin;
        }
        if (total != static_cast<std::int64_t>(size)) std::abort();
    } catch (const FormatError&) {
    }
    return 0;
}
