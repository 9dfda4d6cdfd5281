// One version of a cache: its manifest and its mapped shards.
#include "cache/reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>

#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "core/interrupt.hpp"

namespace robocache {

using namespace cache_detail;

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t num_recent = 64;

/// Half of what the system allows: the other half is for everybody else in the process.
std::atomic<std::size_t>& max_mapped_shards() {
    static std::atomic<std::size_t> limit = max_map_count() / 2;
    return limit;
}

std::atomic<std::size_t> num_mapped_shards{0};

TensorView checked_part(const TensorView& values, const char* call, std::int64_t begin, std::int64_t end) {
    if (0 <= begin && begin <= end && end <= values.shape[0]) return values.slice(0, begin, end);
    throw InvalidArgument(std::string("CacheReader::") + call + ": rows must be in [0, " +
                          std::to_string(values.shape[0]) + "], got [" + std::to_string(begin) + ", " +
                          std::to_string(end) + ")");
}

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
        problems.push_back(path.string() + ": is damaged: wrong size or checksum");
    } catch (const FormatError& error) {
        problems.emplace_back(error.what());
    }
}

}  // namespace

Manifest cache_detail::read_manifest(int folder, const std::filesystem::path& path) {
    const std::filesystem::path file = path / manifest_name;
    return parse_manifest(read_file(folder, file, max_manifest_bytes), file.string());
}

std::size_t cache_detail::set_max_mapped_shards(std::size_t limit) {
    return max_mapped_shards().exchange(limit);
}

CacheReader::Impl::Impl(const std::filesystem::path& path, int descriptor, Manifest given)
    : folder(path), manifest(std::move(given)) {
    const std::size_t limit = max_mapped_shards().load();
    for (const ShardEntry& entry : manifest.shards) {
        auto shard = std::make_shared<const Shard>(descriptor, folder / entry.name, manifest.streams);
        shard->check_header(entry);
        first_episodes.push_back(first_episodes.back() + entry.num_episodes);
        detail::poll_interrupt();
        // The first ones stay mapped. The others are unmapped here, and mapped again where they are read.
        if (first_episodes.size() - 2 > mapped_.size() || num_mapped_shards.load() + mapped_.size() >= limit) continue;
        mapped_.push_back(std::move(shard));
    }
    if (mapped_.size() < manifest.shards.size()) {
        others_.resize(manifest.shards.size() - mapped_.size());
        folder_.emplace(folder, O_PATH);
    }
    num_mapped_shards.fetch_add(mapped_.size());
}

CacheReader::Impl::~Impl() {
    num_mapped_shards.fetch_sub(mapped_.size());
}

CacheReader::Impl::SharedShard CacheReader::Impl::open(std::size_t i) const {
    const ShardEntry& entry = manifest.shards[i];
    try {
        auto shard = std::make_shared<const Shard>(folder_->descriptor(), folder / entry.name, manifest.streams);
        shard->check_header(entry);
        return shard;
    } catch (const FormatError&) {
        std::uint32_t now = manifest.generation;
        try {
            now = read_manifest(folder_->descriptor(), folder).generation;
        } catch (const FormatError&) {
            // ignored: the first error is the one to report
        }
        if (now == manifest.generation) throw;
        throw FormatError(
            folder.string() + ": generation " + std::to_string(manifest.generation) +
            " was replaced since it was opened, and has more shards than can stay mapped; open generation " +
            std::to_string(now));
    }
}

CacheReader::Impl::SharedShard CacheReader::Impl::shard(std::size_t i) const {
    if (i < mapped_.size()) return mapped_[i];
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const Shard>& other = others_[i - mapped_.size()];
    if (SharedShard found = other.lock()) return found;
    SharedShard made = open(i);
    other = made;
    recent_.push_back(made);
    if (recent_.size() > num_recent) recent_.pop_front();
    return made;
}

CacheReader::Impl::SharedShard CacheReader::Impl::checked_shard(const char* call, std::int64_t i,
                                                                std::size_t stream) const {
    if (i >= 0 && static_cast<std::size_t>(i) < manifest.shards.size() && stream < manifest.streams.size()) {
        return shard(static_cast<std::size_t>(i));
    }
    throw InvalidArgument(std::string("CacheReader::") + call + ": no shard " + std::to_string(i) + " or no stream " +
                          std::to_string(stream));
}

void CacheReader::Impl::require_readable() const {
    // One page that could not be read anywhere, and all are looked at from then on.
    if (MappingGuard::num_faults() == 0) return;
    for (const SharedShard& shard : mapped_) shard->require_readable();
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<const Shard>& other : others_) {
        if (const SharedShard shard = other.lock()) shard->require_readable();
    }
}

/// Note [A shard cut inside a page]
/// Where a file is cut short, pages that it no longer has raise SIGBUS, but the rest of its last page reads as zeros.
/// So each shard has a witness: its last byte that is not zero. Any cut before it turns it into a zero or into a page
/// that is gone; any cut after it removes nothing but zeros. One load a shard instead of a system call.
void CacheReader::Impl::require_whole() const {
    constexpr std::size_t looked_at = 256;
    {
        const MappingGuard guard;
        const std::lock_guard lock(mutex_);
        if (witnesses_.size() < mapped_.size()) {
            for (const SharedShard& shard : mapped_) witnesses_.push_back(shard->witness());
            for (const SharedShard& shard : mapped_) shard->require_whole();  // after the look: they were whole then
        }
        for (std::size_t n = 0; n < std::min(looked_at, mapped_.size()); ++n) {
            next_witness_ = next_witness_ + 1 < mapped_.size() ? next_witness_ + 1 : 0;
            const volatile char* witness = witnesses_[next_witness_];
            if (witness == nullptr || *witness != 0) continue;
            mapped_[next_witness_]->require_whole();
            throw FormatError(folder.string() + ": " + manifest.shards[next_witness_].name +
                              " changed since it was opened");
        }
    }
    require_readable();
}

std::pair<std::size_t, std::int64_t> CacheReader::Impl::find(std::int64_t episode) const {
    if (episode < 0 || episode >= first_episodes.back()) {
        throw InvalidArgument("CacheReader: episode must be from 0 to " + std::to_string(first_episodes.back() - 1) +
                              ", got " + std::to_string(episode));
    }
    const auto next = std::upper_bound(first_episodes.begin(), first_episodes.end(), episode);
    const auto i = static_cast<std::size_t>(next - first_episodes.begin()) - 1;
    return {i, episode - first_episodes[i]};
}

CacheReader::CacheReader(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

CacheReader::CacheReader(const std::filesystem::path& given) {
    const std::filesystem::path path = std::filesystem::absolute(given);
    const OpenFolder folder(path, O_PATH);
    // A writer may remove the version whose manifest was just read: then there is a newer one.
    Manifest manifest = read_manifest(folder.descriptor(), path);
    while (true) {
        const std::uint32_t generation = manifest.generation;
        try {
            impl_ = std::make_shared<const Impl>(path, folder.descriptor(), std::move(manifest));
            return;
        } catch (const FormatError&) {
            manifest = read_manifest(folder.descriptor(), path);
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
    return static_cast<std::int64_t>(impl_->manifest.shards.size());
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
    const auto [i, local] = impl_->find(episode);
    const auto shard = impl_->shard(i);
    shard->require_whole();
    CacheRows rows = shard->rows(local, stream);
    rows.owner = shard;
    return rows;
}

std::int64_t CacheReader::episode_index(std::int64_t episode) const {
    const auto [i, local] = impl_->find(episode);
    const auto shard = impl_->shard(i);
    shard->require_whole();
    return shard->index(local);
}

std::string CacheReader::episode_json(std::int64_t episode) const {
    const auto [i, local] = impl_->find(episode);
    const auto shard = impl_->shard(i);
    shard->require_whole();
    return shard->json(local);
}

std::int64_t CacheReader::first_episode(std::int64_t shard) const {
    if (shard < 0 || shard > num_shards()) {
        throw InvalidArgument("CacheReader::first_episode: no shard " + std::to_string(shard));
    }
    return impl_->first_episodes[static_cast<std::size_t>(shard)];
}

CacheRows CacheReader::shard_rows(std::int64_t shard, std::size_t stream) const {
    const auto found = impl_->checked_shard("shard_rows", shard, stream);
    CacheRows rows = found->all_rows(stream);
    rows.owner = found;
    return rows;
}

void CacheReader::check_times(std::int64_t shard, std::size_t stream) const {
    const auto found = impl_->checked_shard("check_times", shard, stream);
    const CacheRows& rows = found->all_rows(stream);
    const std::vector<std::uint32_t>& blocks = impl_->manifest.shards[static_cast<std::size_t>(shard)].blocks;
    for (const TensorView* view : {&rows.times, &rows.offsets, &rows.splits, &rows.index_splits}) {
        if (view->rank > 0) found->check(*view, blocks);
    }
}

void CacheReader::check_rows(std::int64_t episode, std::size_t stream) const {
    const CacheRows found = rows(episode, stream);
    const auto [i, local] = impl_->find(episode);
    const auto* shard = static_cast<const Shard*>(found.owner.get());
    for (const TensorView* view : {&found.values, &found.times, &found.splits, &found.index}) {
        if (view->rank > 0) shard->check(*view, impl_->manifest.shards[i].blocks);
    }
}

void CacheReader::copy_values(std::int64_t shard, std::size_t stream, std::int64_t begin, std::int64_t end, void* into,
                              bool check) const {
    const auto found = impl_->checked_shard("copy_values", shard, stream);
    const TensorView values = checked_part(found->all_rows(stream).values, "copy_values", begin, end);
    const std::vector<std::uint32_t>& blocks = impl_->manifest.shards[static_cast<std::size_t>(shard)].blocks;
    found->copy(values, static_cast<char*>(into), check ? &blocks : nullptr);
}

bool CacheReader::stays_mapped(std::int64_t shard) const {
    return shard < static_cast<std::int64_t>(impl_->num_mapped());
}

void CacheReader::require_readable() const {
    impl_->require_readable();
}

void CacheReader::require_whole() const {
    impl_->require_whole();
}

void CacheReader::require_whole(std::int64_t episode) const {
    impl_->shard(impl_->find(episode).first)->require_whole();
}

std::vector<std::string> CacheReader::verify() const {
    std::vector<std::string> problems;
    const Manifest& manifest = impl_->manifest;
    for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
        try {
            impl_->shard(i)->verify(manifest.shards[i].blocks, problems);
        } catch (const FormatError& error) {
            problems.emplace_back(error.what());
        }
    }
    for (const FileEntry& file : manifest.files) verify_file(impl_->folder / file.name, file, problems);
    return problems;
}

}  // namespace robocache
