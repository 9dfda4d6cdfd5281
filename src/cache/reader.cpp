// One version of a cache: its manifest and its mapped shards.
#include "cache/reader.hpp"

#include <algorithm>

#include "cache/crc32c.hpp"
#include "cache/json.hpp"
#include "core/interrupt.hpp"

namespace robocache {

using namespace cache_detail;

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

void verify_file(const std::filesystem::path& path, const FileEntry& entry, std::vector<std::string>& problems) {
    try {
        const MappedFile file(path);
        const std::size_t size = file.bytes().size();
        MappedFile::Copy copy(file);
        std::uint32_t crc = 0;
        for (std::size_t at = 0; at < size; at += chunk_bytes) {
            crc = crc32c(copy.read(at, std::min(size, at + chunk_bytes)), crc);
            detail::poll_interrupt();
        }
        if (static_cast<std::int64_t>(size) == entry.size_bytes && crc == entry.crc32c) return;
        problems.push_back(path.string() + ": is damaged: its size or its checksum is wrong");
    } catch (const FormatError& error) {
        problems.emplace_back(error.what());
    }
}

}  // namespace

Manifest cache_detail::read_manifest(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / manifest_name;
    return parse_manifest(read_file(path, max_manifest_bytes), path.string());
}

CacheReader::Impl::Impl(const std::filesystem::path& folder, Manifest given)
    : folder(folder), manifest(std::move(given)) {
    for (const ShardEntry& entry : manifest.shards) {
        shards.emplace_back(folder / entry.name, manifest.streams);
        shards.back().check_header(entry);
        first_episodes.push_back(first_episodes.back() + entry.num_episodes);
        detail::poll_interrupt();
    }
}

std::pair<const Shard*, std::int64_t> CacheReader::Impl::find(std::int64_t episode) const {
    if (episode < 0 || episode >= first_episodes.back()) {
        throw InvalidArgument("CacheReader: episode must be from 0 to " + std::to_string(first_episodes.back() - 1) +
                              ", got " + std::to_string(episode));
    }
    const auto next = std::upper_bound(first_episodes.begin(), first_episodes.end(), episode);
    const auto i = static_cast<std::size_t>(next - first_episodes.begin()) - 1;
    return {&shards[i], episode - first_episodes[i]};
}

CacheReader::CacheReader(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

CacheReader::CacheReader(const std::filesystem::path& folder) {
    // A writer may remove the version whose manifest was just read: then there is a newer one.
    Manifest manifest = read_manifest(folder);
    while (true) {
        const std::uint32_t generation = manifest.generation;
        try {
            impl_ = std::make_shared<const Impl>(folder, std::move(manifest));
            return;
        } catch (const FormatError&) {
            manifest = read_manifest(folder);
            if (manifest.generation <= generation) throw;
        }
    }
}

const std::filesystem::path& CacheReader::folder() const {
    return impl_->folder;
}

std::uint32_t CacheReader::generation() const {
    return impl_->manifest.generation;
}

const std::string& CacheReader::fingerprint() const {
    return impl_->manifest.fingerprint;
}

std::uint32_t CacheReader::checksum() const {
    std::vector<std::uint32_t> all;
    for (const ShardEntry& shard : impl_->manifest.shards) {
        all.push_back(static_cast<std::uint32_t>(shard.num_episodes));
        all.insert(all.end(), shard.blocks.begin(), shard.blocks.end());
    }
    return crc32c({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(std::uint32_t)});
}

const std::string& CacheReader::metadata() const {
    return impl_->manifest.metadata;
}

const std::vector<CacheStream>& CacheReader::streams() const {
    return impl_->manifest.streams;
}

std::size_t CacheReader::stream(std::string_view name) const {
    const std::vector<CacheStream>& streams = impl_->manifest.streams;
    for (std::size_t i = 0; i < streams.size(); ++i) {
        if (streams[i].name == name) return i;
    }
    throw InvalidArgument("CacheReader: " + impl_->folder.string() + " has no stream " + json_text(name));
}

std::int64_t CacheReader::num_episodes() const {
    return impl_->first_episodes.back();
}

std::int64_t CacheReader::num_shards() const {
    return static_cast<std::int64_t>(impl_->shards.size());
}

std::int64_t CacheReader::size_bytes() const {
    std::int64_t total = 0;
    for (const ShardEntry& shard : impl_->manifest.shards) total += shard.size_bytes;
    return total;
}

std::vector<std::filesystem::path> CacheReader::files() const {
    std::vector<std::filesystem::path> paths = {impl_->folder / manifest_name};
    for (const ShardEntry& shard : impl_->manifest.shards) paths.push_back(impl_->folder / shard.name);
    for (const FileEntry& file : impl_->manifest.files) paths.push_back(impl_->folder / file.name);
    return paths;
}

CacheRows CacheReader::rows(std::int64_t episode, std::size_t stream) const {
    if (stream >= streams().size()) throw InvalidArgument("CacheReader::rows: no stream " + std::to_string(stream));
    const auto [shard, local] = impl_->find(episode);
    return shard->rows(local, stream);
}

std::int64_t CacheReader::episode_index(std::int64_t episode) const {
    const auto [shard, local] = impl_->find(episode);
    return shard->index(local);
}

std::string_view CacheReader::episode_json(std::int64_t episode) const {
    const auto [shard, local] = impl_->find(episode);
    return shard->json(local);
}

std::int64_t CacheReader::first_episode(std::int64_t shard) const {
    if (shard < 0 || shard > num_shards()) {
        throw InvalidArgument("CacheReader::first_episode: no shard " + std::to_string(shard));
    }
    return impl_->first_episodes[static_cast<std::size_t>(shard)];
}

CacheRows CacheReader::shard_rows(std::int64_t shard, std::size_t stream) const {
    if (shard < 0 || shard >= num_shards() || stream >= streams().size()) {
        throw InvalidArgument("CacheReader::shard_rows: no shard " + std::to_string(shard) + " or no stream " +
                              std::to_string(stream));
    }
    return impl_->shards[static_cast<std::size_t>(shard)].all_rows(stream);
}

std::vector<std::string> CacheReader::verify() const {
    std::vector<std::string> problems;
    const Manifest& manifest = impl_->manifest;
    for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
        try {
            impl_->shards[i].verify(manifest.shards[i].blocks, problems);
        } catch (const FormatError& error) {
            problems.emplace_back(error.what());
        }
    }
    for (const FileEntry& file : manifest.files) verify_file(impl_->folder / file.name, file, problems);
    return problems;
}

}  // namespace robocache
