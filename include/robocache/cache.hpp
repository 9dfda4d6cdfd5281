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

class FileIo;  // src/cache/files/io.hpp: what tests put between the writer and the disk

/// What all episodes of a stream have in common.
struct CacheStream {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;  ///< of one row: {7}, {480, 640, 3}; {} for one number
    std::string kind = "vector";      ///< "vector", "image", "points", "depth"
    bool ragged = false;              ///< every message has its own number of rows: point clouds
    std::string details = "{}";       ///< a JSON object: rate_hz, unit, names, meta, statistics
};

/// The rows of one stream in one episode; or, for a whole shard, in all of its episodes.
struct CacheRows {
    TensorView values;   ///< (rows, ...)
    TensorView times;    ///< (messages,) int64 ns, never decreasing inside an episode; one row a message if not ragged
    TensorView splits;   ///< ragged: (messages + 1,) int64; message m has rows [splits[m] - splits[0], splits[m + 1] -
                         ///< splits[0])
    TensorView offsets;  ///< whole shards: (episodes + 1,) int64; episode e has messages [offsets[e], offsets[e + 1])
    std::shared_ptr<const void> owner;  ///< of a reader: keeps the mapping that the views point into
};

/// One version of a cache, mapped for reading. Copies share it; views live as long as the `owner` of their rows. It
/// stays what it was opened as, whatever is written to the folder later, up to as many shards as can stay mapped (half
/// of vm.max_map_count); the others are mapped where they are read. Safe to use from many threads.
class CacheReader {
public:
    /// Throws FormatError, which names the file, for anything that is not as docs/cache.md says. Reads the manifest and
    /// the headers of the shards, no data.
    explicit CacheReader(const std::filesystem::path& folder);

    [[nodiscard]] const std::filesystem::path& folder() const;
    [[nodiscard]] std::uint32_t generation() const;
    [[nodiscard]] const std::string& fingerprint() const;
    [[nodiscard]] std::uint32_t checksum() const;       ///< of all rows, as the manifest tells it: reads none
    [[nodiscard]] const std::string& metadata() const;  ///< a JSON object
    [[nodiscard]] const std::vector<CacheStream>& streams() const;
    /// Throws InvalidArgument where there is no stream of that name.
    [[nodiscard]] std::size_t stream(std::string_view name) const;
    [[nodiscard]] std::int64_t num_episodes() const;
    [[nodiscard]] std::int64_t num_shards() const;
    [[nodiscard]] std::int64_t size_bytes() const;                   ///< of all shards
    [[nodiscard]] std::vector<std::filesystem::path> files() const;  ///< the manifest, shards, and attached files

    /// Views of the mapping, which must not be written to. Throws FormatError where the offsets in the file are wrong,
    /// or the file is shorter than it was. Reading a view of a file that is cut short later is a SIGBUS.
    [[nodiscard]] CacheRows rows(std::int64_t episode, std::size_t stream) const;
    [[nodiscard]] std::int64_t episode_index(std::int64_t episode) const;  ///< its number in the source
    [[nodiscard]] std::string episode_json(std::int64_t episode) const;    ///< as it was given to CacheWriter::add
    [[nodiscard]] std::int64_t first_episode(std::int64_t shard) const;    ///< num_episodes() for num_shards()
    [[nodiscard]] CacheRows shard_rows(std::int64_t shard, std::size_t stream) const;

    /// Copies rows [begin, end) of the values of a stream of a shard by read calls, in several threads; with `check`,
    /// only after the checksums of the blocks of 1 MiB they lie in were compared. Throws FormatError for a wrong
    /// checksum, a file cut short, a failing disk.
    void copy_values(std::int64_t shard, std::size_t stream, std::int64_t begin, std::int64_t end, void* into,
                     bool check) const;
    /// Compares checksums of what is mapped, each block of 1 MiB once. Throws FormatError.
    void check_rows(std::int64_t episode, std::size_t stream) const;  ///< of an episode
    void check_times(std::int64_t shard, std::size_t stream) const;   ///< times, offsets and splits of a shard
    /// Whether a shard is mapped until the reader is destroyed.
    [[nodiscard]] bool stays_mapped(std::int64_t shard) const;
    /// Throws FormatError where a page of a shard could not be read since it was opened.
    void require_readable() const;
    /// The same, and where a shard was cut short since the first call of this. Looks at 256 of the shards that stay
    /// mapped, in turns: for whoever reads views again and again.
    void require_whole() const;
    void require_whole(std::int64_t episode) const;  ///< of the shard of an episode, by its size on disk

    /// Reads every byte and checks checksums, offsets and the order of times. One line for each problem, with the file
    /// and the bytes; none: the cache is what was written.
    [[nodiscard]] std::vector<std::string> verify() const;

private:
    friend class CacheWriter;
    struct Impl;
    explicit CacheReader(std::shared_ptr<const Impl> impl);
    std::shared_ptr<const Impl> impl_;
};

struct CacheWriterOptions {
    std::int64_t shard_bytes = std::int64_t{64} << 20;  ///< a shard ends with the episode that reaches it
    std::string fingerprint;                            ///< of the source and of everything that decides the bytes
    bool resume = false;   ///< keep the finished shards of a stopped ingest; needs a fingerprint
    FileIo* io = nullptr;  ///< nullptr: the disk
};

/// Writes the next version of a cache. Until commit() returns, readers see the version before, or none. Holds the
/// episodes of one shard in memory. One thread; one writer a folder, which is locked meanwhile.
class CacheWriter {
public:
    /// Makes the folder, removes what stopped ingests left (with `resume`: but for finished shards of the same streams
    /// and fingerprint): exactly the files that their journal names. Throws InvalidArgument where the folder holds
    /// other files and is no cache; FormatError where the cache in it is damaged or it cannot be written.
    CacheWriter(const std::filesystem::path& folder, std::vector<CacheStream> streams, CacheWriterOptions options = {});
    ~CacheWriter();
    CacheWriter(CacheWriter&&) noexcept;
    CacheWriter& operator=(CacheWriter&&) noexcept;

    [[nodiscard]] std::uint32_t generation() const;
    [[nodiscard]] std::int64_t num_episodes() const;  ///< after construction: those a stopped ingest had finished
    /// What the user should know: old leftovers that were not touched, a file system that cannot sync folders.
    [[nodiscard]] std::vector<std::string> notes() const;
    /// The finished shards, as a cache; nothing before the first shard is finished. After commit(): the cache.
    [[nodiscard]] std::optional<CacheReader> finished() const;

    /// Appends an episode: `rows[s]` for streams[s], C-contiguous on the host; a view without data is no rows. `json`
    /// is an object. Throws InvalidArgument, and the episode is not there; FormatError where the disk fails, and only
    /// destruction is left to do.
    void add(std::int64_t index, std::span<const CacheRows> rows, std::string_view json = "{}");
    /// Adds the file `<stem>-<generation>.<extension>`, which the manifest lists with its checksum.
    void attach(std::string_view stem, std::string_view extension, std::string_view bytes);
    void set_details(std::size_t stream, std::string_view json);
    /// Makes everything above the cache, at once, then removes the version before. Nothing can be added afterwards.
    void commit(std::string_view metadata = "{}");

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Removes exactly the files that the journal of a stopped or killed ingest names, then the journal. Throws FormatError
/// where another writer holds the folder.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace robocache
