// Writes the next version of a cache: shards first, the manifest last; then removes the previous version.
#include "cache/writer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "cache/files/journal.hpp"
#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/reader.hpp"

namespace robocache {

using namespace cache_detail;
namespace fs = std::filesystem;

namespace {

constexpr std::string_view manifest_stem = "manifest";

void require_object(std::string_view what, std::string_view json) {
    try {
        if (parse_json(json, what).get_if<Json::Object>() != nullptr) return;
    } catch (const FormatError& error) {
        throw InvalidArgument(error.what());
    }
    throw InvalidArgument(std::string(what) + " must be a JSON object");
}

/// "a, b and 3 more".
std::string some_of(std::vector<std::string> names) {
    constexpr std::size_t shown = 3;
    std::sort(names.begin(), names.end());
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), shown); ++i) text += (i > 0 ? ", " : "") + json_text(names[i]);
    return names.size() <= shown ? text : text + " and " + std::to_string(names.size() - shown) + " more";
}

std::vector<std::string> files_of(const Manifest& version) {
    std::vector<std::string> names;
    names.reserve(version.shards.size() + version.files.size());
    for (const ShardEntry& shard : version.shards) names.push_back(shard.name);
    for (const FileEntry& file : version.files) names.push_back(file.name);
    return names;
}

std::optional<Manifest> manifest_in(const LockedFolder& folder) {
    if (!folder.has(std::string(manifest_name))) return std::nullopt;
    return read_manifest(folder.descriptor(), folder.path());
}

/// Removes the files that the journal of a stopped ingest names: those of the version before where the new one was
/// committed, else its own. `kept` stay, and whatever the manifest lists.
void remove_named(LockedFolder& folder, const JournalEntries& left, const std::optional<Manifest>& committed,
                  const std::vector<std::string>& kept = {}) {
    std::set<std::string> keep(kept.begin(), kept.end());
    if (committed) {
        for (std::string& name : files_of(*committed)) keep.insert(std::move(name));
    }
    std::vector<std::string> names = left.creates;
    if (committed && committed->generation >= left.generation) {
        names.insert(names.end(), left.replaces.begin(), left.replaces.end());
    }
    bool is_changed = false;
    for (const std::string& name : names) {
        if (!keep.contains(name)) is_changed |= folder.remove(name);
    }
    if (is_changed) folder.sync();
}

}  // namespace

struct CacheWriter::Impl {
    Impl(const fs::path& given, std::vector<CacheStream> streams, CacheWriterOptions given_options)
        : options(std::move(given_options)), io(options.io != nullptr ? *options.io : own_io), buffer(streams) {
        check(streams);
        const fs::path path = fs::absolute(given);
        make_folder(path);
        folder.emplace(io, path);
        before = manifest_in(*folder);
        left = Journal::read(*folder);
        if (!before && !left) require_empty();
        manifest.fingerprint = options.fingerprint;
        manifest.streams = std::move(streams);
        journal.emplace(*folder);
        const bool is_open = left && (!before || before->generation < left->generation);
        if (options.resume && is_open && left->fingerprint == options.fingerprint) {
            manifest.generation = left->generation;
            resume();
        } else {
            if (left) remove_named(*folder, *left, before);
            // Without a manifest the journal alone says that this is the folder of a cache: it stays.
            if (left && before) {
                journal->remove();
                left.reset();
            }
            manifest.generation = free_generation();
        }
    }

    void check(const std::vector<CacheStream>& streams) const {
        if (options.shard_bytes < 1) throw InvalidArgument("CacheWriter: shard_bytes must be at least 1");
        if (options.resume && options.fingerprint.empty()) {
            throw InvalidArgument(
                "CacheWriter: resume needs a fingerprint, got none: it identifies the source of the existing episodes; "
                "pass a fingerprint, or resume=False to start over");
        }
        std::set<std::string_view> names;
        for (const CacheStream& stream : streams) {
            if (const std::string problem = problem_of(stream); !problem.empty()) {
                throw InvalidArgument("CacheWriter: stream " + json_text(stream.name) + " " + problem);
            }
            if (!names.insert(stream.name).second) {
                throw InvalidArgument("CacheWriter: stream " + json_text(stream.name) + " must have a unique name");
            }
            require_object("CacheWriter: details of " + stream.name, stream.details);
        }
    }

    void make_folder(const fs::path& path) {
        if (fs::exists(path)) return;
        if (const int result = io.make_folder(path); result < 0) fail_io(path, "make the folder", -result);
        const fs::path parent = path.parent_path();
        (void)sync_names(io, OpenFolder(parent, O_RDONLY).descriptor(), parent);
    }

    void require_empty() const {
        const std::vector<std::string> names = folder->names();
        if (names.empty()) return;
        throw InvalidArgument("CacheWriter: folder must be new, empty or a cache, got " + folder->path().string() +
                              ", which holds " + some_of(names) + " and no manifest.json; choose another folder");
    }

    /// The first generation after the one before whose names nobody has in this folder.
    std::uint32_t free_generation() {
        std::set<std::uint32_t> taken;
        std::vector<std::string> unlisted;
        std::uint32_t generation = before ? before->generation : 0;
        for (const std::string& name : folder->names()) {
            const std::uint32_t number = generation_of(name);
            taken.insert(number);
            if (number > generation && name == shard_name(shard_number(name), number)) unlisted.push_back(name);
        }
        do {
            if (generation == UINT32_MAX) throw FormatError(folder->path().string() + ": no generation is left");
            ++generation;
        } while (taken.contains(generation));
        if (!unlisted.empty()) {
            notes.push_back(
                folder->path().string() + ": " + some_of(unlisted) +
                ": not removed, because no manifest and no journal lists them; if they are left over from an "
                "interrupted ingest by an earlier version, remove them");
        }
        return generation;
    }

    /// Takes over the shards of this generation, from the first one up to the first that is missing or not ours.
    void resume() {
        const std::set<std::string> ours(left->creates.begin(), left->creates.end());
        while (true) {
            const std::string name = shard_name(manifest.shards.size(), manifest.generation);
            std::optional<ShardEntry> entry = ours.contains(name) ? finished_shard(name) : std::nullopt;
            if (!entry) break;
            num_episodes += entry->num_episodes;
            manifest.shards.push_back(std::move(*entry));
        }
        journal->resume(*left);
        remove_named(*folder, *left, before, files_of(manifest));
    }

    [[nodiscard]] std::optional<ShardEntry> finished_shard(const std::string& name) const {
        if (!folder->has(name)) return std::nullopt;
        try {
            const Shard shard(folder->descriptor(), folder->path_of(name), manifest.streams);
            const std::string* blocks = shard.header().find_metadata("blocks");
            const std::string* fingerprint = shard.header().find_metadata("fingerprint");
            if (blocks == nullptr || fingerprint == nullptr || *fingerprint != options.fingerprint) return std::nullopt;
            ShardEntry entry{name,
                             static_cast<std::int64_t>(shard.bytes().size()),
                             shard.header().size_bytes,
                             shard.num_episodes(),
                             shard.header_crc32c(),
                             parse_blocks(*blocks, name)};
            const std::int64_t data = entry.size_bytes - entry.header_bytes;
            const auto expected = static_cast<std::size_t>((data + block_bytes - 1) / block_bytes);
            std::vector<std::string> problems;
            if (entry.blocks.size() != expected || entry.num_episodes == 0) return std::nullopt;
            shard.verify(entry.blocks, problems);
            return problems.empty() ? std::optional(std::move(entry)) : std::nullopt;
        } catch (const FormatError&) {
            return std::nullopt;
        }
    }

    void require_open(const char* call) const {
        if (state == State::open) return;
        throw InvalidArgument(std::string(call) + ": the cache " +
                              (state == State::committed ? "has been committed" : "failed in an earlier call"));
    }

    /// Creates a file of this generation, after the journal names it.
    void write_new(const std::string& name, mode_t mode, std::span<const std::string_view> parts) {
        if (!journal->has_begun()) journal->begin(manifest.generation, manifest.fingerprint, left);
        const auto taken = [&] {
            throw FormatError(folder->path_of(name).string() +
                              ": already exists, and was not written by this ingest; move it away");
        };
        if (folder->has(name)) taken();
        journal->creates(name);
        if (folder->write_new(name, mode, parts)) return;
        journal->leaves(name);
        taken();
    }

    void flush() {
        if (buffer.num_episodes() == 0) return;
        ShardFile shard = buffer.file(manifest.streams, manifest.fingerprint);
        shard.entry.name = shard_name(manifest.shards.size(), manifest.generation);
        write_new(shard.entry.name, shard_mode, shard.pieces);
        manifest.shards.push_back(std::move(shard.entry));
        buffer.clear();
    }

    void commit() {
        flush();
        const std::string text = write_manifest(manifest);
        // Nothing is committed that cannot be read back.
        if (text.size() > max_manifest_bytes) throw InvalidArgument("CacheWriter::commit: the manifest is too large");
        (void)parse_manifest(text, folder->path_of(std::string(manifest_name)).string());
        const std::string next = std::string(manifest_stem) + "-" + hex(manifest.generation) + ".json";
        const std::string_view parts[] = {text};
        write_new(next, file_mode, parts);
        if (before) journal->replaces(files_of(*before));
        folder->sync();  // the names of the shards, before the manifest that lists them
        folder->require_in_place();
        // Opened before the manifest replaces the one before, whose files are then removed, and while the folder is
        // locked: no other ingest replaces it meanwhile.
        CacheReader opened(std::make_shared<const CacheReader::Impl>(folder->path(), folder->descriptor(), manifest));
        const int result = io.rename(folder->descriptor(), next, std::string(manifest_name), before.has_value());
        if (result < 0) fail_io(folder->path_of(std::string(manifest_name)), "rename", -result);
        folder->sync();
        committed = std::move(opened);
    }

    /// After the commit. What cannot be removed now is in the journal, and the next ingest removes it.
    void remove_before() {
        try {
            bool is_changed = false;
            if (before) {
                for (const std::string& name : files_of(*before)) is_changed |= folder->remove(name);
            }
            if (is_changed) folder->sync();
            journal->remove();
        } catch (const FormatError&) {
            // ignored: the new version is complete, and the next ingest finishes this
        }
    }

    /// Runs what writes. A writer whose disk failed is of no further use: what is on the disk is not what it thinks.
    template <class Work>
    void writing(const Work& work) {
        state = State::failed;
        try {
            work();
        } catch (const std::bad_alloc&) {
            throw OutOfMemory("CacheWriter: out of memory for the episodes of a shard of " + folder->path().string());
        }
        state = State::open;
    }

    enum class State { open, failed, committed };

    CacheWriterOptions options;
    FileIo own_io;
    FileIo& io;
    std::optional<LockedFolder> folder;
    std::optional<Manifest> before;
    std::optional<JournalEntries> left;  // by a stopped ingest, in the journal that is still there
    std::optional<Journal> journal;
    Manifest manifest;
    ShardBuffer buffer;
    std::int64_t num_episodes = 0;
    std::vector<std::string> notes;
    std::optional<CacheReader> committed;
    State state = State::open;
};

CacheWriter::CacheWriter(const fs::path& folder, std::vector<CacheStream> streams, CacheWriterOptions options) {
    try {
        impl_ = std::make_unique<Impl>(folder, std::move(streams), std::move(options));
    } catch (const fs::filesystem_error& error) {
        fail_io(folder, "list the folder", error.code().value());
    }
}

CacheWriter::~CacheWriter() = default;
CacheWriter::CacheWriter(CacheWriter&&) noexcept = default;
CacheWriter& CacheWriter::operator=(CacheWriter&&) noexcept = default;

std::uint32_t CacheWriter::generation() const {
    return impl_->manifest.generation;
}

std::int64_t CacheWriter::num_episodes() const {
    return impl_->num_episodes;
}

std::vector<std::string> CacheWriter::notes() const {
    std::vector<std::string> notes = impl_->notes;
    if (impl_->folder) notes.insert(notes.end(), impl_->folder->notes().begin(), impl_->folder->notes().end());
    return notes;
}

std::optional<CacheReader> CacheWriter::finished() const {
    if (impl_->committed || impl_->manifest.shards.empty()) return impl_->committed;
    const LockedFolder& folder = *impl_->folder;
    return CacheReader(std::make_shared<const CacheReader::Impl>(folder.path(), folder.descriptor(), impl_->manifest));
}

void CacheWriter::add(std::int64_t index, std::span<const CacheRows> rows, std::string_view json) {
    Impl& impl = *impl_;
    impl.require_open("CacheWriter::add");
    if (rows.size() != impl.manifest.streams.size()) {
        throw InvalidArgument("CacheWriter::add: rows must have one item for each of " +
                              std::to_string(impl.manifest.streams.size()) + " streams, got " +
                              std::to_string(rows.size()));
    }
    for (std::size_t s = 0; s < rows.size(); ++s) check_rows(impl.manifest.streams[s], rows[s]);
    require_object("CacheWriter::add: json", json);
    impl.writing([&] {
        impl.buffer.add(index, rows, impl.manifest.streams, json, impl.options.shard_bytes);
        ++impl.num_episodes;
        if (impl.buffer.size_bytes() >= impl.options.shard_bytes) impl.flush();
    });
}

void CacheWriter::attach(std::string_view stem, std::string_view extension, std::string_view bytes) {
    Impl& impl = *impl_;
    impl.require_open("CacheWriter::attach");
    FileEntry entry{std::string(stem) + "-" + hex(impl.manifest.generation) + "." + std::string(extension),
                    static_cast<std::int64_t>(bytes.size()), crc32c(bytes)};
    const bool is_ours = stem.starts_with("shard-") || stem == manifest_stem;
    if (generation_of(entry.name) != impl.manifest.generation || is_ours) {
        throw InvalidArgument("CacheWriter::attach: stem and extension must be small letters and digits, got " +
                              json_text(entry.name));
    }
    for (const FileEntry& file : impl.manifest.files) {
        if (file.name == entry.name) throw InvalidArgument("CacheWriter::attach: " + entry.name + " already exists");
    }
    impl.writing([&] {
        const std::string_view parts[] = {bytes};
        impl.write_new(entry.name, shard_mode, parts);
        impl.manifest.files.push_back(std::move(entry));
    });
}

void CacheWriter::set_details(std::size_t stream, std::string_view json) {
    if (stream >= impl_->manifest.streams.size()) {
        throw InvalidArgument("CacheWriter::set_details: no stream " + std::to_string(stream));
    }
    require_object("CacheWriter::set_details: json", json);
    impl_->manifest.streams[stream].details = json;
}

void CacheWriter::commit(std::string_view metadata) {
    Impl& impl = *impl_;
    impl.require_open("CacheWriter::commit");
    require_object("CacheWriter::commit: metadata", metadata);
    impl.manifest.metadata = metadata;
    impl.writing([&] {
        impl.commit();
        impl.remove_before();
    });
    impl.state = Impl::State::committed;
    impl.notes = notes();
    impl.journal.reset();
    impl.folder.reset();
}

void remove_leftovers(const fs::path& path) {
    FileIo io;
    LockedFolder folder(io, fs::absolute(path));
    const std::optional<Manifest> committed = manifest_in(folder);
    const std::optional<JournalEntries> left = Journal::read(folder);
    if (!left) return;
    remove_named(folder, *left, committed);
    Journal(folder).remove();
}

}  // namespace robocache
