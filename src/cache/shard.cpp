// Finds the tensors of a shard, hands out views inside its bounds, and checks its data.
#include "cache/shard.hpp"

#include <fcntl.h>

#include <algorithm>

#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "core/interrupt.hpp"
#include "core/thread_pool.hpp"

namespace robocache::cache_detail {
namespace {

const std::int64_t* numbers(const TensorView& view) {
    return static_cast<const std::int64_t*>(view.data);
}

/// Whether the numbers rise from 0 to `last` without a step down.
bool is_cut(const TensorView& offsets, std::int64_t last) {
    const std::int64_t* begin = numbers(offsets);
    const std::int64_t* end = begin + offsets.shape[0];
    return *begin == 0 && end[-1] == last && std::is_sorted(begin, end);
}

}  // namespace

void BlockSums::add(std::string_view bytes) {
    while (!bytes.empty()) {
        const std::size_t part = std::min(bytes.size(), static_cast<std::size_t>(block_bytes - filled_));
        crc_ = crc32c(bytes.substr(0, part), crc_);
        filled_ += static_cast<std::int64_t>(part);
        bytes.remove_prefix(part);
        detail::poll_interrupt();
        if (filled_ < block_bytes) continue;
        blocks_.push_back(crc_);
        crc_ = 0;
        filled_ = 0;
    }
}

std::vector<std::uint32_t> BlockSums::finish() {
    if (filled_ > 0) blocks_.push_back(crc_);
    return std::move(blocks_);
}

Shard::Shard(const std::filesystem::path& path, std::span<const CacheStream> streams)
    : Shard(AT_FDCWD, path, streams) {}

Shard::Shard(int folder, const std::filesystem::path& path, std::span<const CacheStream> streams)
    : file_(folder, path) {
    const MappingGuard guard;
    header_ = parse_safetensors(file_.bytes(), path.string());
    header_crc32c_ = crc32c(bytes().substr(0, static_cast<std::size_t>(header_.size_bytes)));
    file_.require_readable();
    std::sort(header_.tensors.begin(), header_.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    read_streams(streams);
}

Shard::~Shard() {
    delete[] good_blocks_.load();
}

void Shard::fail(const std::string& problem) const {
    throw FormatError(file_.path().string() + ": " + problem);
}

TensorView Shard::tensor(std::string_view stream, std::string_view part, DType dtype,
                         const std::vector<std::int64_t>& row) const {
    const std::string name = std::string(stream) + "/" + std::string(part);
    const auto entry = std::lower_bound(header_.tensors.begin(), header_.tensors.end(), name,
                                        [](const TensorEntry& a, const std::string& b) { return a.name < b; });
    if (entry == header_.tensors.end() || entry->name != name) fail("has no tensor " + json_text(name));
    const bool fits = entry->dtype == dtype && entry->shape.size() == row.size() + 1 &&
                      std::equal(row.begin(), row.end(), entry->shape.begin() + 1);
    if (!fits) fail("tensor " + json_text(name) + " does not have the dtype or the shape of its stream");
    TensorView view;
    view.data = const_cast<char*>(file_.bytes().data()) + header_.size_bytes + entry->begin;
    view.dtype = dtype;
    view.rank = static_cast<int>(entry->shape.size());
    std::int64_t stride = 1;  // the product fits: parse_safetensors took it
    for (int d = view.rank - 1; d >= 0; --d) {
        view.shape[d] = entry->shape[static_cast<std::size_t>(d)];
        view.strides[d] = stride;
        stride *= view.shape[d];
    }
    return view;
}

void Shard::read_streams(std::span<const CacheStream> streams) {
    index_ = tensor(episodes_name, "index", DType::i64, {});
    json_ = tensor(episodes_name, "json", DType::u8, {});
    json_offsets_ = tensor(episodes_name, "offsets", DType::i64, {});
    const std::int64_t num_offsets = num_episodes() + 1;
    if (json_offsets_.shape[0] != num_offsets) fail("must have one offset more than episodes");
    std::size_t num_tensors = 3;
    for (const CacheStream& stream : streams) {
        CacheRows rows;
        rows.values = tensor(stream.name, "values", stream.stored_dtype(), stream.stored_shape());
        rows.times = tensor(stream.name, "times", DType::i64, {});
        rows.offsets = tensor(stream.name, "offsets", DType::i64, {});
        if (stream.has_splits()) rows.splits = tensor(stream.name, "splits", DType::i64, {});
        if (stream.is_encoded()) {
            rows.index = tensor(stream.name, "index", DType::u8, {});
            rows.index_splits = tensor(stream.name, "index_splits", DType::i64, {});
            if (rows.index_splits.shape[0] != num_offsets) fail(stream.name + " must have one index for each episode");
        }
        num_tensors += stream.is_encoded() ? 6 : stream.ragged ? 4 : 3;
        if (rows.offsets.shape[0] != num_offsets) fail(stream.name + " must have one offset more than episodes");
        if (stream.has_splits() ? rows.splits.shape[0] != rows.times.shape[0] + 1
                                : rows.values.shape[0] != rows.times.shape[0]) {
            fail(stream.name + " must have one time for each of its messages");
        }
        streams_.push_back(rows);
    }
    if (header_.tensors.size() != num_tensors) fail("has tensors that belong to no stream");
}

std::pair<std::int64_t, std::int64_t> Shard::cut(const TensorView& offsets, std::int64_t begin, std::int64_t end,
                                                 std::int64_t limit) const {
    const std::int64_t first = numbers(offsets)[begin];
    const std::int64_t last = numbers(offsets)[end];
    file_.require_readable();
    if (first < 0 || first > last || last > limit) fail("is damaged: offsets outside their tensor");
    return {first, last};
}

CacheRows Shard::rows(std::int64_t episode, std::size_t stream) const {
    const MappingGuard guard;
    const CacheRows& all = streams_[stream];
    const auto [begin, end] = cut(all.offsets, episode, episode + 1, all.times.shape[0]);
    CacheRows rows;
    rows.times = all.times.slice(0, begin, end);
    if (all.splits.rank == 0) {
        rows.values = all.values.slice(0, begin, end);
        file_.require_readable();
        return rows;
    }
    const auto [first, last] = cut(all.splits, begin, end, all.values.shape[0]);
    rows.values = all.values.slice(0, first, last);
    if (all.index_splits.rank > 0) {
        const auto [index_begin, index_end] = cut(all.index_splits, episode, episode + 1, all.index.shape[0]);
        rows.index = all.index.slice(0, index_begin, index_end);
    }
    rows.splits = all.splits.slice(0, begin, end + 1);
    const std::int64_t* splits = numbers(rows.splits);
    const bool is_rising = std::is_sorted(splits, splits + rows.splits.shape[0]);
    file_.require_readable();
    if (!is_rising) fail("is damaged: splits outside their tensor");
    return rows;
}

std::int64_t Shard::index(std::int64_t episode) const {
    const MappingGuard guard;
    const std::int64_t found = numbers(index_)[episode];
    file_.require_readable();
    return found;
}

std::string Shard::json(std::int64_t episode) const {
    const MappingGuard guard;
    const auto [begin, end] = cut(json_offsets_, episode, episode + 1, json_.shape[0]);
    std::string text(static_cast<const char*>(json_.data) + begin, static_cast<std::size_t>(end - begin));
    file_.require_readable();
    return text;
}

const char* Shard::witness() const {
    const std::string_view all = bytes();
    const std::size_t first = all.size() - std::min(all.size(), static_cast<std::size_t>(block_bytes));
    const std::size_t found = all.substr(first).find_last_not_of('\0');
    return found == std::string_view::npos ? nullptr : all.data() + first + found;
}

void Shard::check_header(const ShardEntry& entry) const {
    const auto size = static_cast<std::int64_t>(bytes().size());
    if (size != entry.size_bytes) {
        fail("is damaged: has " + std::to_string(size) + " bytes, the manifest says " +
             std::to_string(entry.size_bytes));
    }
    if (header_.size_bytes != entry.header_bytes || header_crc32c_ != entry.header_crc32c) {
        fail("is damaged: the checksum of its header is wrong");
    }
    if (num_episodes() != entry.num_episodes) fail("has a different number of episodes than the manifest");
}

std::atomic<bool>* Shard::good_blocks(std::size_t count) const {
    std::atomic<bool>* found = good_blocks_.load();
    if (found != nullptr) return found;
    auto made = std::make_unique<std::atomic<bool>[]>(count);
    return good_blocks_.compare_exchange_strong(found, made.get()) ? made.release() : found;
}

void Shard::fail_block(std::size_t begin, std::size_t end) const {
    fail("bytes [" + std::to_string(begin) + ", " + std::to_string(end) +
         ") are damaged: their checksum is wrong, or the file was truncated");
}

/// The bytes of a view, counted from the beginning of the file.
std::pair<std::size_t, std::size_t> Shard::place(const TensorView& view) const {
    const auto begin = static_cast<std::size_t>(static_cast<const char*>(view.data) - bytes().data());
    return {begin, begin + static_cast<std::size_t>(view.num_elements() * robocache::size_bytes(view.dtype))};
}

void Shard::check(const TensorView& view, const std::vector<std::uint32_t>& blocks) const {
    const auto [begin, end] = place(view);
    if (begin == end) return;
    const auto data_begin = static_cast<std::size_t>(header_.size_bytes);
    const auto size = static_cast<std::size_t>(block_bytes);
    std::atomic<bool>* good = good_blocks(blocks.size());
    const std::size_t first = (begin - data_begin) / size;
    const std::size_t last = (end - data_begin - 1) / size;
    parallel_for(static_cast<std::int64_t>(last - first + 1), 1, [&](std::int64_t from, std::int64_t to) {
        for (std::size_t i = first + static_cast<std::size_t>(from); i < first + static_cast<std::size_t>(to); ++i) {
            if (good[i].load()) continue;
            const std::size_t at = data_begin + i * size;
            const std::string_view block = bytes().substr(at, size);
            const MappingGuard guard;
            const std::uint32_t crc = crc32c(block);
            file_.require_readable();
            if (crc != blocks[i]) fail_block(at, at + block.size());
            good[i].store(true);
        }
    });
}

void Shard::copy(const TensorView& view, char* into, const std::vector<std::uint32_t>* blocks) const {
    const std::pair<std::size_t, std::size_t> ends = place(view);
    const std::size_t begin = ends.first, end = ends.second;  // named for the lambda: clang 14 captures no bindings
    if (begin == end) return;
    const auto data_begin = static_cast<std::size_t>(header_.size_bytes);
    const auto size = static_cast<std::size_t>(block_bytes);
    std::atomic<bool>* good = blocks == nullptr ? nullptr : good_blocks(blocks->size());
    const std::size_t first = (begin - data_begin) / size;
    const std::size_t last = (end - data_begin - 1) / size;
    const MappedFile::Copy file(file_);
    parallel_for(static_cast<std::int64_t>(last - first + 1), 4, [&](std::int64_t from, std::int64_t to) {
        std::string whole;  // the whole block, if only a part is requested and the block is not verified yet
        for (std::size_t i = first + static_cast<std::size_t>(from); i < first + static_cast<std::size_t>(to); ++i) {
            const std::size_t block_begin = data_begin + i * size;
            const std::size_t block_end = std::min(bytes().size(), block_begin + size);
            const std::size_t part_begin = std::max(begin, block_begin);
            const std::size_t part_end = std::min(end, block_end);
            char* const target = into + (part_begin - begin);
            const bool is_part = part_begin != block_begin || part_end != block_end;
            if (good == nullptr || (good[i].load() && is_part)) {
                if (file.read_into(target, part_begin, part_end) != part_end - part_begin) {
                    fail_block(part_begin, part_end);
                }
                continue;
            }
            if (is_part) whole.resize(block_end - block_begin);
            char* const read = is_part ? whole.data() : target;
            const std::size_t got = file.read_into(read, block_begin, block_end);
            const std::string_view block(read, block_end - block_begin);
            if (got != block.size() || crc32c(block) != (*blocks)[i]) fail_block(block_begin, block_end);
            if (is_part) block.copy(target, part_end - part_begin, part_begin - block_begin);
            good[i].store(true);
        }
    });
}

void Shard::verify(const std::vector<std::uint32_t>& blocks, std::vector<std::string>& problems) const {
    const std::string path = file_.path().string();
    const auto data_begin = static_cast<std::size_t>(header_.size_bytes);
    const std::size_t num_problems = problems.size();
    MappedFile::Copy copy(file_);
    if (crc32c(copy.read(0, data_begin)) != header_crc32c_) problems.push_back(path + ": the header changed on disk");
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const std::size_t begin = data_begin + i * static_cast<std::size_t>(block_bytes);
        const std::size_t end = std::min(bytes().size(), begin + static_cast<std::size_t>(block_bytes));
        const std::string_view block = copy.read(begin, end);
        detail::poll_interrupt();
        if (block.size() == end - begin && crc32c(block) == blocks[i]) continue;
        problems.push_back(path + ": bytes [" + std::to_string(begin) + ", " + std::to_string(end) +
                           ") are damaged: their checksum is wrong");
    }
    if (problems.size() > num_problems) return;
    const MappingGuard guard;
    if (!is_cut(json_offsets_, json_.shape[0])) problems.push_back(path + ": offsets of the episodes are wrong");
    for (const CacheRows& rows : streams_) {
        bool good = is_cut(rows.offsets, rows.times.shape[0]);
        if (good && rows.splits.rank > 0) good = is_cut(rows.splits, rows.values.shape[0]);
        if (good && rows.index_splits.rank > 0) good = is_cut(rows.index_splits, rows.index.shape[0]);
        for (std::int64_t e = 0; good && e < num_episodes(); ++e) {
            const std::int64_t* times = numbers(rows.times);
            good = std::is_sorted(times + numbers(rows.offsets)[e], times + numbers(rows.offsets)[e + 1]);
        }
        if (!good) problems.push_back(path + ": offsets or times of a stream are wrong");
    }
    file_.require_readable();
}

}  // namespace robocache::cache_detail
