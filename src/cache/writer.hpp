// Buffer of a CacheWriter: the episodes of the current shard.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/format/manifest.hpp"
#include "cache/shard.hpp"
#include "robocache/cache.hpp"

namespace robocache::cache_detail {

/// The rows of one stream that are not on disk yet.
struct StreamBuffer {
    std::string values;
    std::string_view last_values;  // of the last episode, behind `values`: memory of the caller
    std::vector<std::int64_t> times;
    std::vector<std::int64_t> offsets = {0};
    std::vector<std::int64_t> splits = {0};
    std::string index;
    std::vector<std::int64_t> index_splits = {0};
};

/// The bytes of a shard, which the ShardBuffer owns but for its header, and what the manifest must say of it.
struct ShardFile {
    ShardEntry entry;
    std::string header;
    std::vector<std::string_view> pieces;  // `header` first
};

/// Episodes in memory, and how they become a shard.
class ShardBuffer {
public:
    explicit ShardBuffer(const std::vector<CacheStream>& streams) : streams_(streams.size()) {}

    /// The rows have been checked. An episode that reaches `shard_bytes` is the last: its values are not copied, and
    /// must live until the buffer is cleared.
    void add(std::int64_t index, std::span<const CacheRows> rows, std::span<const CacheStream> streams,
             std::string_view json, std::int64_t shard_bytes);
    /// No episodes; the memory stays, since the next shard is about as large.
    void clear();
    [[nodiscard]] std::int64_t num_episodes() const { return static_cast<std::int64_t>(index_.size()); }
    [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }
    /// The shard without its name; the pieces live until the buffer changes.
    [[nodiscard]] ShardFile file(std::span<const CacheStream> streams, std::string_view fingerprint) const;

private:
    struct Part {
        TensorEntry entry;
        std::string_view bytes;
        std::string_view last_bytes;  // behind them
    };
    [[nodiscard]] std::vector<Part> parts(std::span<const CacheStream> streams) const;

    std::vector<StreamBuffer> streams_;
    std::vector<std::int64_t> index_;
    std::string json_;
    std::vector<std::int64_t> json_offsets_ = {0};
    std::int64_t size_bytes_ = 0;
};

/// Throws InvalidArgument "CacheWriter::add: ..." unless the rows fit the stream.
void check_rows(const CacheStream& stream, const CacheRows& rows);

}  // namespace robocache::cache_detail
