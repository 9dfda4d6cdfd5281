// The cache: episodes of streams in safetensors shards with checksums. The format byte by byte: docs/cache.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/tensor.hpp"

namespace robocache {

class FileIo;  // src/cache/files/io.hpp: file operations of the writer, replaced in tests

/// What all episodes of a stream have in common.
struct CacheStream {
    std::string name;
    DType dtype = DType::f32;           ///< of the decoded pictures, if they are encoded
    std::vector<std::int64_t> shape{};  ///< of one row: {7}, {480, 640, 3}; {} for one number
    std::string kind = "vector";        ///< "vector", "image", "points", "depth"
    bool ragged = false;                ///< every message has its own number of rows: point clouds
    std::string details = "{}";         ///< a JSON object: rate_hz, unit, names, meta, statistics
    std::string codec = "";             ///< of encoded pictures or video; empty: rows are values

    [[nodiscard]] bool is_encoded() const { return !codec.empty(); }
    [[nodiscard]] bool has_splits() const { return ragged || is_encoded(); }
    /// Of `values` in a shard: bytes, if the pictures are encoded.
    [[nodiscard]] DType stored_dtype() const { return is_encoded() ? DType::u8 : dtype; }
    [[nodiscard]] std::vector<std::int64_t> stored_shape() const {
        return is_encoded() ? std::vector<std::int64_t>{} : shape;
    }
};

/// The rows of one stream in one episode; or, for a whole shard, in all of its episodes.
struct CacheRows {
    TensorView values;    ///< (rows, ...); encoded pictures: (bytes,) u8
    TensorView times;     ///< (messages,) int64 ns, never decreasing inside an episode; one row a message if not ragged
    TensorView splits{};  ///< ragged or encoded: (messages + 1,) int64; message m has rows [splits[m] - splits[0],
                          ///< splits[m + 1] - splits[0])
    TensorView offsets{};  ///< whole shards: (episodes + 1,) int64; episode e has messages [offsets[e], offsets[e + 1])
    TensorView index{};    ///< encoded: (bytes,) u8, the picture index of the episode (docs/decode.md); may be empty
    TensorView index_splits{};            ///< whole shards: (episodes + 1,) int64; divides `index` among the episodes
    std::shared_ptr<const void> owner{};  ///< of a reader: keeps the mapping that the views point into
};

/// One version of a cache, mapped for reading. Copies share the mapping; views live as long as the `owner` of their
/// rows. Later writes to the folder do not change an open version, unless it has more shards than can stay mapped (half
/// of vm.max_map_count); further shards are mapped when they are read. Thread-safe.
class CacheReader {
public:
    /// Throws FormatError, naming the file, if it does not conform to docs/cache.md. Reads the manifest and the headers
    /// of the shards, no data.
    explicit CacheReader(const std::filesystem::path& folder);

    [[nodiscard]] const std::filesystem::path& folder() const;
    [[nodiscard]] std::uint32_t generation() const;
    [[nodiscard]] const std::string& fingerprint() const;
    [[nodiscard]] std::uint32_t checksum() const;       ///< of all rows, from the manifest; reads no rows
    [[nodiscard]] const std::string& metadata() const;  ///< a JSON object
    [[nodiscard]] const std::vector<CacheStream>& streams() const;
    /// Index of a stream. Throws InvalidArgument if there is no stream of that name.
    [[nodiscard]] std::size_t stream(std::string_view name) const;
    [[nodiscard]] std::int64_t num_episodes() const;
    [[nodiscard]] std::int64_t num_shards() const;
    [[nodiscard]] std::int64_t size_bytes() const;                   ///< of all shards
    [[nodiscard]] std::vector<std::filesystem::path> files() const;  ///< the manifest, shards, and attached files

    /// Read-only views of the mapping. Throws FormatError if the offsets in the file are wrong, or the file was
    /// truncated. If a file is truncated later, reading a view of it raises SIGBUS.
    [[nodiscard]] CacheRows rows(std::int64_t episode, std::size_t stream) const;
    [[nodiscard]] std::int64_t episode_index(std::int64_t episode) const;  ///< its number in the source
    [[nodiscard]] std::string episode_json(std::int64_t episode) const;    ///< as it was given to CacheWriter::add
    [[nodiscard]] std::int64_t first_episode(std::int64_t shard) const;    ///< num_episodes() for num_shards()
    [[nodiscard]] CacheRows shard_rows(std::int64_t shard, std::size_t stream) const;

    /// Copies rows [begin, end) of the values of a stream of a shard with read calls, in several threads. With `check`,
    /// first verifies the checksums of their 1 MiB blocks. Throws FormatError for a wrong checksum, a truncated file or
    /// an I/O error.
    void copy_values(std::int64_t shard, std::size_t stream, std::int64_t begin, std::int64_t end, void* into,
                     bool check) const;
    /// Verifies checksums of mapped data, each block of 1 MiB once. Throws FormatError.
    void check_rows(std::int64_t episode, std::size_t stream) const;  ///< of an episode
    void check_times(std::int64_t shard, std::size_t stream) const;   ///< times, offsets and splits of a shard
    /// Whether a shard is mapped until the reader is destroyed.
    [[nodiscard]] bool stays_mapped(std::int64_t shard) const;
    /// Throws FormatError if reading a page of a shard has failed since the cache was opened.
    void require_readable() const;
    /// Same, and throws if a shard was truncated since the first call. Each call checks 256 of the mapped shards in
    /// turn. For callers that read views repeatedly.
    void require_whole() const;
    void require_whole(std::int64_t episode) const;  ///< of the shard of an episode, by its size on disk

    /// Reads every byte and verifies checksums, offsets and the order of times. Returns one line per problem, with file
    /// and byte range; empty if the cache is intact.
    [[nodiscard]] std::vector<std::string> verify() const;

private:
    friend class CacheWriter;
    struct Impl;
    explicit CacheReader(std::shared_ptr<const Impl> impl);
    std::shared_ptr<const Impl> impl_;
};

/// How a CacheWriter divides episodes into shards, and whether it continues an interrupted ingest.
struct CacheWriterOptions {
    std::int64_t shard_bytes = std::int64_t{64} << 20;  ///< a shard ends with the episode that reaches it
    std::string fingerprint{};                          ///< identifies the source and the options
    bool resume = false;   ///< keep finished shards of an interrupted ingest; needs a fingerprint
    FileIo* io = nullptr;  ///< nullptr: the disk
};

/// Writes the next version of a cache. Until commit() returns, readers see the previous version, or none. Holds the
/// episodes of one shard in memory. Not thread-safe; the folder is locked, so there is one writer per folder.
class CacheWriter {
public:
    /// Creates the folder and removes the files that the journal of an interrupted ingest names; with `resume`, keeps
    /// its finished shards if streams and fingerprint are the same. Throws InvalidArgument if the folder holds other
    /// files and is not a cache; FormatError if the cache is damaged or cannot be written.
    CacheWriter(const std::filesystem::path& folder, std::vector<CacheStream> streams, CacheWriterOptions options = {});
    ~CacheWriter();
    CacheWriter(CacheWriter&&) noexcept;
    CacheWriter& operator=(CacheWriter&&) noexcept;

    [[nodiscard]] std::uint32_t generation() const;
    [[nodiscard]] std::int64_t num_episodes() const;  ///< after construction: those of kept shards
    /// Warnings for the user: leftover files that were not removed, a file system that cannot sync folders.
    [[nodiscard]] std::vector<std::string> notes() const;
    /// The finished shards as a cache; empty before the first shard is finished. After commit(): the cache.
    [[nodiscard]] std::optional<CacheReader> finished() const;

    /// Appends an episode: `rows[s]` for streams[s], C-contiguous on the host; a view without data means no rows.
    /// `json` is an object. Throws InvalidArgument and adds nothing; throws FormatError on an I/O error, after which
    /// the writer can only be destroyed.
    void add(std::int64_t index, std::span<const CacheRows> rows, std::string_view json = "{}");
    /// Adds the file `<stem>-<generation>.<extension>`, which the manifest lists with its checksum.
    void attach(std::string_view stem, std::string_view extension, std::string_view bytes);
    void set_details(std::size_t stream, std::string_view json);
    /// Publishes the new version atomically, then removes the previous one. Nothing can be added afterwards.
    void commit(std::string_view metadata = "{}");

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Removes exactly the files that the journal of an interrupted ingest names, then the journal. Throws FormatError if
/// another writer has locked the folder.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace robocache
