// What a CacheReader holds.
#pragma once

#include <deque>
#include <filesystem>
#include <vector>

#include "cache/shard.hpp"
#include "robocache/cache.hpp"

namespace robocache {

struct CacheReader::Impl {
    /// Opens the shards that `manifest` lists.
    Impl(const std::filesystem::path& folder, cache_detail::Manifest manifest);

    std::filesystem::path folder;
    cache_detail::Manifest manifest;
    std::deque<cache_detail::Shard> shards;
    std::vector<std::int64_t> first_episodes = {0};  // of each shard, and their number
    bool committed = true;                           // manifest.json says the same

    /// The shard of an episode, and its number there.
    [[nodiscard]] std::pair<const cache_detail::Shard*, std::int64_t> find(std::int64_t episode) const;
};

namespace cache_detail {

[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace cache_detail
}  // namespace robocache
