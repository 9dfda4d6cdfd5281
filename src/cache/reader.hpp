// State of a CacheReader.
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/shard.hpp"
#include "robocache/cache.hpp"

namespace robocache {

struct CacheReader::Impl {
    using SharedShard = std::shared_ptr<const cache_detail::Shard>;

    /// Opens the shards that `manifest` lists, in an open folder.
    Impl(const std::filesystem::path& folder, int descriptor, cache_detail::Manifest manifest);
    ~Impl();

    /// A shard by number. Beyond the limit of mapped files it is mapped now, and stays as long as somebody has it.
    [[nodiscard]] SharedShard shard(std::size_t i) const;
    /// The same after a look at the arguments of a call.
    [[nodiscard]] SharedShard checked_shard(const char* call, std::int64_t i, std::size_t stream) const;
    [[nodiscard]] std::size_t num_mapped() const { return mapped_.size(); }
    void require_readable() const;
    void require_whole() const;
    /// The shard of an episode, and its number there.
    [[nodiscard]] std::pair<std::size_t, std::int64_t> find(std::int64_t episode) const;

    std::filesystem::path folder;
    cache_detail::Manifest manifest;
    std::vector<std::int64_t> first_episodes = {0};  // of each shard, and their number

private:
    [[nodiscard]] SharedShard open(std::size_t i) const;

    std::vector<SharedShard> mapped_;                 // the first shards: mapped from the beginning on
    std::optional<cache_detail::OpenFolder> folder_;  // of the others
    mutable std::mutex mutex_;                        // of what follows
    mutable std::vector<const char*> witnesses_;      // of mapped_
    mutable std::size_t next_witness_ = 0;
    mutable std::vector<std::weak_ptr<const cache_detail::Shard>> others_;
    mutable std::deque<SharedShard> recent_;  // the last few of them, so that neighbors are quick
};

namespace cache_detail {

[[nodiscard]] Manifest read_manifest(int folder, const std::filesystem::path& path);

/// How many shards all readers of a process keep mapped; at first half of vm.max_map_count. Returns the limit before.
std::size_t set_max_mapped_shards(std::size_t limit);

}  // namespace cache_detail
}  // namespace robocache
