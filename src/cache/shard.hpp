// One shard: a safetensors file whose tensors are the streams of some episodes.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/files/mapped_file.hpp"
#include "cache/format/manifest.hpp"
#include "cache/format/safetensors.hpp"
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

/// A mapped shard whose header fits the streams of its cache. Data is read on request.
class Shard {
public:
    /// Throws FormatError, also where the tensors are not those of `streams`.
    Shard(const std::filesystem::path& path, std::span<const CacheStream> streams);
    /// The same for the file of that name in an open folder.
    Shard(int folder, const std::filesystem::path& path, std::span<const CacheStream> streams);

    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    [[nodiscard]] const ShardHeader& header() const { return header_; }
    [[nodiscard]] std::int64_t num_episodes() const { return index_.shape[0]; }
    [[nodiscard]] std::string_view bytes() const { return file_.bytes(); }
    [[nodiscard]] std::uint32_t header_crc32c() const { return header_crc32c_; }

    /// Views, which live as long as the shard. What is read to find them is guarded: Note [SIGBUS].
    [[nodiscard]] const CacheRows& all_rows(std::size_t stream) const { return streams_[stream]; }
    [[nodiscard]] CacheRows rows(std::int64_t episode, std::size_t stream) const;
    [[nodiscard]] std::int64_t index(std::int64_t episode) const;
    [[nodiscard]] std::string json(std::int64_t episode) const;
    void require_readable() const { file_.require_readable(); }
    void require_whole() const { file_.require_whole(); }
    /// The last byte that is not zero; nullptr where the last MiB is all zeros.
    [[nodiscard]] const char* witness() const;

    /// Throws FormatError where the size or the header is not the one of the manifest.
    void check_header(const ShardEntry& entry) const;
    /// Throws FormatError where a block that holds a byte of the view has not the checksum that `blocks` tells. Reads
    /// each block once.
    void check(const TensorView& view, const std::vector<std::uint32_t>& blocks) const;
    /// Copies the bytes of a view by read calls, in several threads. `blocks`: check them too; nullptr: do not.
    void copy(const TensorView& view, char* into, const std::vector<std::uint32_t>* blocks) const;
    /// Appends one line for each problem in the data.
    void verify(const std::vector<std::uint32_t>& blocks, std::vector<std::string>& problems) const;

private:
    [[nodiscard]] TensorView tensor(std::string_view stream, std::string_view part, DType dtype,
                                    const std::vector<std::int64_t>& row) const;
    void read_streams(std::span<const CacheStream> streams);
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> cut(const TensorView& offsets, std::int64_t begin,
                                                            std::int64_t end, std::int64_t limit) const;
    [[noreturn]] void fail(const std::string& problem) const;
    [[noreturn]] void fail_block(std::size_t begin, std::size_t end) const;
    [[nodiscard]] std::pair<std::size_t, std::size_t> place(const TensorView& view) const;
    [[nodiscard]] std::atomic<bool>* good_blocks(std::size_t count) const;

    MappedFile file_;
    mutable std::atomic<std::atomic<bool>*> good_blocks_{nullptr};  // which were checked
    ShardHeader header_;
    std::uint32_t header_crc32c_ = 0;
    std::vector<CacheRows> streams_;
    TensorView index_;
    TensorView json_;
    TensorView json_offsets_;
};

}  // namespace robocache::cache_detail
