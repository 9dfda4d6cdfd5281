// manifest.json: the files of a cache and their checksums.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache.hpp"

namespace robocache::cache_detail {

constexpr std::string_view manifest_name = "manifest.json";
constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20;
constexpr std::int64_t block_bytes = std::int64_t{1} << 20;

struct ShardEntry {
    std::string name;
    std::int64_t size_bytes = 0;
    std::int64_t header_bytes = 0;
    std::int64_t num_episodes = 0;
    std::uint32_t header_crc32c = 0;
    std::vector<std::uint32_t> blocks;  // CRC32C of each started MiB after the header
};

struct FileEntry {
    std::string name;
    std::int64_t size_bytes = 0;
    std::uint32_t crc32c = 0;
};

struct Manifest {
    std::uint32_t generation = 0;
    std::string fingerprint;
    std::string metadata = "{}";
    std::vector<CacheStream> streams;
    std::vector<ShardEntry> shards;
    std::vector<FileEntry> files;
};

/// Throws FormatError for anything wrong, `path` first. Checks the manifest's own checksum before it parses.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string_view path);
[[nodiscard]] std::string write_manifest(const Manifest& manifest);

/// The version of manifest and shards: 2 where a stream is encoded, else 1.
[[nodiscard]] std::string version_text(std::span<const CacheStream> streams);

/// "shard-00003-0000000a.safetensors".
[[nodiscard]] std::string shard_name(std::size_t i, std::uint32_t generation);
/// The number in the name of a shard; 0 where it is none.
[[nodiscard]] std::size_t shard_number(std::string_view name);
/// The generation in the name of a shard or of an attached file; 0 where it is not such a name.
[[nodiscard]] std::uint32_t generation_of(std::string_view name);

/// CRC32C of each block, as digits, and back. Throws FormatError.
[[nodiscard]] std::string blocks_text(const std::vector<std::uint32_t>& blocks);
[[nodiscard]] std::vector<std::uint32_t> parse_blocks(std::string_view text, std::string_view what);

/// The rules for a stream that readers and the writer share; the message without its beginning, or "".
[[nodiscard]] std::string problem_of(const CacheStream& stream);

}  // namespace robocache::cache_detail
