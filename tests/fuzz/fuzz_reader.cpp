// Any bytes as the shard of a cache whose manifest vouches for them: everything a reader can be asked for.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "cache/format/crc32c.hpp"
#include "cache/format/manifest.hpp"
#include "cache/shard.hpp"
#include "robocache/cache.hpp"

using namespace robocache;
using namespace robocache::cache_detail;
namespace fs = std::filesystem;

namespace {

const fs::path& folder() {
    static const fs::path path = [] {
        const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
        const fs::path made = base / ("robocache_fuzz_" + std::to_string(::getpid()));
        fs::create_directories(made);
        std::atexit([] { fs::remove_all(folder()); });
        return made;
    }();
    return path;
}

void write(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The streams of the seeds (make_seeds.cpp).
Manifest manifest_of(std::string_view file) {
    Manifest manifest;
    manifest.generation = 1;
    manifest.streams = {{"arm", DType::f32, {7}, "vector", false, "{}"},
                        {"cloud", DType::f32, {4}, "points", true, "{}"},
                        {"gripper", DType::u8, {}, "vector", false, "{}"}};
    ShardEntry entry;
    entry.name = shard_name(0, 1);
    entry.size_bytes = static_cast<std::int64_t>(file.size());
    std::uint64_t length = 0;
    if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
    const std::size_t header = std::min<std::uint64_t>(length, file.size() < 8 ? 0 : file.size() - 8) + 8;
    const std::size_t cut = std::min(header, file.size());
    entry.header_bytes = static_cast<std::int64_t>(cut);
    entry.header_crc32c = crc32c(file.substr(0, cut));
    BlockSums sums;
    sums.add(file.substr(cut));
    entry.blocks = sums.finish();
    try {
        entry.num_episodes = Shard(folder() / entry.name, manifest.streams).num_episodes();
    } catch (const FormatError&) {
    }
    manifest.shards.push_back(entry);
    return manifest;
}

/// Touches every byte that a view promises.
std::uint32_t touch(const TensorView& view) {
    if (view.rank == 0) return 0;
    const auto bytes = static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype));
    return crc32c({static_cast<const char*>(view.data), bytes});
}

std::uint32_t sink = 0;  // what keeps the reads from being left out

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    write(folder() / shard_name(0, 1), file);
    write(folder() / manifest_name, write_manifest(manifest_of(file)));
    try {
        const CacheReader reader(folder());
        sink ^= static_cast<std::uint32_t>(reader.verify().size());
        const std::int64_t num_episodes = std::min<std::int64_t>(reader.num_episodes(), 1000);
        for (std::int64_t e = 0; e < num_episodes; ++e) {
            try {
                sink ^= crc32c(reader.episode_json(e));
                for (std::size_t s = 0; s < reader.streams().size(); ++s) {
                    const CacheRows rows = reader.rows(e, s);
                    sink ^= touch(rows.values) ^ touch(rows.times) ^ touch(rows.splits);
                }
            } catch (const FormatError&) {
            }
        }
    } catch (const FormatError&) {
    }
    return 0;
}
