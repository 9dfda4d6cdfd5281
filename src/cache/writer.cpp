// The next version of a cache: shards first, the manifest last, then the version before goes.
#include "cache/writer.hpp"

#include <algorithm>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "cache/crc32c.hpp"
#include "cache/json.hpp"
#include "cache/reader.hpp"

namespace robocache {

using namespace cache_detail;
namespace fs = std::filesystem;

namespace {

constexpr std::string_view temporary_ending = ".tmp";

void require_object(std::string_view what, std::string_view json) {
    try {
        if (parse_json(json, what).get_if<Json::Object>() != nullptr) return;
    } catch (const FormatError& error) {
        throw InvalidArgument(error.what());
    }
    throw InvalidArgument(std::string(what) + " must be a JSON object");
}

/// The names of our own files in a folder: shards, attached files, and temporary ones.
std::vector<std::string> our_files(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        std::string_view final_name = name;
        if (final_name.ends_with(temporary_ending)) final_name.remove_suffix(temporary_ending.size());
        const bool manifest = final_name == manifest_name && final_name != name;
        if (manifest || generation_of(final_name) != 0) names.push_back(name);
    }
    if (error) fail_io(folder, "list", error.value());
    return names;
}

}  // namespace

struct CacheWriter::Impl {
    Impl(const fs::path& given, std::vector<CacheStream> streams, CacheWriterOptions given_options)
        : folder(given),
          options(std::move(given_options)),
          io(options.io != nullptr ? *options.io : own_io),
          buffer(streams) {
        check(streams);
        make_folder();
        lock.emplace(folder);
        if (fs::symlink_status(folder / manifest_name).type() != fs::file_type::not_found) {
            before = read_manifest(folder);
            if (before->generation == UINT32_MAX) throw FormatError(folder.string() + ": no generation is left");
        }
        manifest.generation = before ? before->generation + 1 : 1;
        manifest.fingerprint = options.fingerprint;
        manifest.streams = std::move(streams);
        if (options.resume) resume();
        remove_others(true);
    }

    void check(const std::vector<CacheStream>& streams) const {
        if (options.shard_bytes < 1) throw InvalidArgument("CacheWriter: shard_bytes must be at least 1");
        std::set<std::string_view> names;
        for (const CacheStream& stream : streams) {
            if (const std::string problem = problem_of(stream); !problem.empty()) {
                throw InvalidArgument("CacheWriter: stream " + json_text(stream.name) + " " + problem);
            }
            if (!names.insert(stream.name).second) {
                throw InvalidArgument("CacheWriter: stream " + json_text(stream.name) + " is there twice");
            }
            require_object("CacheWriter: details of " + stream.name, stream.details);
        }
    }

    void make_folder() {
        if (fs::exists(folder)) return;
        const fs::path parent = fs::absolute(folder).parent_path();
        if (const int result = io.make_folder(folder); result < 0) fail_io(folder, "make the folder", -result);
        if (const int result = io.sync_folder(parent); result < 0) fail_io(parent, "sync", -result);
    }

    /// Takes over the shards of this generation, from the first one up to the first that is missing or not ours.
    void resume() {
        while (true) {
            const fs::path path = folder / shard_name(manifest.shards.size(), manifest.generation);
            if (fs::symlink_status(path).type() == fs::file_type::not_found) return;
            try {
                const Shard shard(path, manifest.streams);
                const std::string* blocks = shard.header().find_metadata("blocks");
                const std::string* fingerprint = shard.header().find_metadata("fingerprint");
                if (blocks == nullptr || fingerprint == nullptr || *fingerprint != options.fingerprint) return;
                ShardEntry entry{path.filename().string(),  static_cast<std::int64_t>(shard.bytes().size()),
                                 shard.header().size_bytes, shard.num_episodes(),
                                 shard.header_crc32c(),     parse_blocks(*blocks, path.string())};
                const std::int64_t data = entry.size_bytes - entry.header_bytes;
                const auto expected = static_cast<std::size_t>((data + block_bytes - 1) / block_bytes);
                std::vector<std::string> problems;
                if (entry.blocks.size() != expected || entry.num_episodes == 0) return;
                shard.verify(entry.blocks, problems);
                if (!problems.empty()) return;
                num_episodes += entry.num_episodes;
                manifest.shards.push_back(std::move(entry));
            } catch (const FormatError&) {
                return;
            }
        }
    }

    /// Removes our files that belong neither to `manifest` nor, if asked, to the version before.
    void remove_others(bool keep_before) {
        std::set<std::string_view> keep;
        const auto keep_files = [&](const Manifest& version) {
            for (const ShardEntry& shard : version.shards) keep.insert(shard.name);
            for (const FileEntry& file : version.files) keep.insert(file.name);
        };
        keep_files(manifest);
        if (keep_before && before) keep_files(*before);
        bool removed = false;
        for (const std::string& name : our_files(folder)) {
            if (keep.contains(name)) continue;
            const int result = io.unlink(folder / name);
            removed = true;
            // Of a version that was replaced: the next ingest tries again.
            if (result < 0 && keep_before) fail_io(folder / name, "remove", -result);
        }
        if (removed) (void)io.sync_folder(folder);
    }

    void require_open(const char* call) const {
        if (state == State::open) return;
        throw InvalidArgument(std::string(call) + ": the cache " +
                              (state == State::committed ? "has been committed" : "could not be written before"));
    }

    void flush() {
        if (buffer.num_episodes() == 0) return;
        const fs::path path = folder / shard_name(manifest.shards.size(), manifest.generation);
        manifest.shards.push_back(buffer.write(io, path, manifest.streams, options.fingerprint));
        buffer.clear();
    }

    /// Runs what writes. A writer whose disk failed is of no further use: what is on the disk is not what it thinks.
    template <class Work>
    void writing(const Work& work) {
        state = State::failed;
        try {
            work();
        } catch (const std::bad_alloc&) {
            throw OutOfMemory("CacheWriter: no memory for the episodes of a shard of " + folder.string());
        }
        state = State::open;
    }

    enum class State { open, failed, committed };

    fs::path folder;
    CacheWriterOptions options;
    FileIo own_io;
    FileIo& io;
    std::optional<FolderLock> lock;
    std::optional<Manifest> before;
    Manifest manifest;
    ShardBuffer buffer;
    std::int64_t num_episodes = 0;
    State state = State::open;
};

CacheWriter::CacheWriter(const fs::path& folder, std::vector<CacheStream> streams, CacheWriterOptions options) {
    try {
        impl_ = std::make_unique<Impl>(folder, std::move(streams), std::move(options));
    } catch (const fs::filesystem_error& error) {
        fail_io(folder, "look into the folder", error.code().value());
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

std::optional<CacheReader> CacheWriter::finished() const {
    if (impl_->manifest.shards.empty()) return std::nullopt;
    return CacheReader(std::make_shared<const CacheReader::Impl>(impl_->folder, impl_->manifest));
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
        impl.buffer.add(index, rows, impl.manifest.streams, json);
        ++impl.num_episodes;
        if (impl.buffer.size_bytes() >= impl.options.shard_bytes) impl.flush();
    });
}

void CacheWriter::attach(std::string_view stem, std::string_view extension, std::string_view bytes) {
    Impl& impl = *impl_;
    impl.require_open("CacheWriter::attach");
    FileEntry entry{std::string(stem) + "-" + hex(impl.manifest.generation) + "." + std::string(extension),
                    static_cast<std::int64_t>(bytes.size()), crc32c(bytes)};
    if (generation_of(entry.name) != impl.manifest.generation || stem.starts_with("shard-")) {
        throw InvalidArgument("CacheWriter::attach: stem and extension must be small letters and digits, got " +
                              json_text(entry.name));
    }
    for (const FileEntry& file : impl.manifest.files) {
        if (file.name == entry.name) throw InvalidArgument("CacheWriter::attach: " + entry.name + " is there already");
    }
    impl.writing([&] {
        const std::string_view parts[] = {bytes};
        write_file(impl.io, impl.folder / entry.name, parts);
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
        impl.flush();
        const std::string text = write_manifest(impl.manifest);
        const fs::path path = impl.folder / manifest_name;
        // Nothing is committed that cannot be read back.
        if (text.size() > max_manifest_bytes) throw InvalidArgument("CacheWriter::commit: the manifest is too large");
        (void)parse_manifest(text, path.string());
        const std::string_view parts[] = {text};
        write_file(impl.io, path, parts);
        impl.remove_others(false);
    });
    impl.state = Impl::State::committed;
    impl.lock.reset();
}

}  // namespace robocache
