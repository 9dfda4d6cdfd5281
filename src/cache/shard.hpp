// One shard: a safetensors file whose tensors are the streams of some episodes.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/io.hpp"
#include "cache/manifest.hpp"
#include "cache/safetensors.hpp"
#include "robocache/cache.hpp"

namespace robocache::cache_detail {

constexpr std::string_view episodes_name = "__episodes__";  // its tensors: index, json, offsets

/// Sums blocks of `block_bytes` over parts of any size.
class BlockSums {
public:
    void add(std::string_view bytes);
    [[nodiscard]] std::vector<std::uint32_t> finish();

private:
    std::vector<std::uint32_t> blocks_;
    std::uint32_t crc_ = 0;
    std::int64_t filled_ = 0;
};

/// A mapped shard whose header fits the streams of its cache. The data is looked at where it is asked for.
class Shard {
public:
    /// Throws FormatError, also where the tensors are not those of `streams`.
    Shard(const std::filesystem::path& path, std::span<const CacheStream> streams);

    [[nodiscard]] const ShardHeader& header() const { return header_; }
    [[nodiscard]] std::int64_t num_episodes() const { return index_.shape[0]; }
    [[nodiscard]] std::string_view bytes() const { return file_.bytes(); }
    [[nodiscard]] std::uint32_t header_crc32c() const { return header_crc32c_; }

    [[nodiscard]] const CacheRows& all_rows(std::size_t stream) const { return streams_[stream]; }
    [[nodiscard]] CacheRows rows(std::int64_t episode, std::size_t stream) const;
    [[nodiscard]] std::int64_t index(std::int64_t episode) const;
    [[nodiscard]] std::string_view json(std::int64_t episode) const;

    /// Throws FormatError where the size or the header is not the one of the manifest.
    void check_header(const ShardEntry& entry) const;
    /// Appends one line for each problem in the data.
    void verify(const std::vector<std::uint32_t>& blocks, std::vector<std::string>& problems) const;

private:
    [[nodiscard]] TensorView tensor(std::string_view stream, std::string_view part, DType dtype,
                                    const std::vector<std::int64_t>& row) const;
    void read_streams(std::span<const CacheStream> streams);
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> cut(const TensorView& offsets, std::int64_t begin,
                                                            std::int64_t end, std::int64_t limit) const;
    [[noreturn]] void fail(const std::string& problem) const;

    MappedFile file_;
    ShardHeader header_;
    std::uint32_t header_crc32c_ = 0;
    std::vector<CacheRows> streams_;
    TensorView index_;
    TensorView json_;
    TensorView json_offsets_;
};

}  // namespace robocache::cache_detail
