// PictureIndex::join: one index from the pictures of several. Equal tables are stored once.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ops/decode/jpeg/index.hpp"
#include "ops/decode/jpeg/sections.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace decode_detail {
namespace {

/// The tables of the joined index. A set of a part is looked up once.
class JoinedTables {
public:
    explicit JoinedTables(std::size_t num_parts) : sets_of_part_(num_parts) {}

    std::uint32_t set_of(std::size_t part, const IndexView& view, std::uint32_t set) {
        const auto [known, is_unknown] = sets_of_part_[part].try_emplace(set, 0);
        if (!is_unknown) return known->second;
        const TableSet& given = view.set(set);
        TableSet made{};
        for (int c = 0; c < max_components; ++c) {
            Steps steps;
            std::memcpy(steps.data(), view.steps(given.quantization[c]), sizeof steps);
            made.quantization[c] = store.number_of(steps);
            made.dc[c] = store.position_of(table_at(view, given.dc[c]));
            made.ac[c] = store.position_of(table_at(view, given.ac[c]));
        }
        return known->second = store.number_of(made);
    }

    TableStore store;

private:
    /// As many symbols as the counts sum to, or as the section has bytes left.
    static std::string table_at(const IndexView& view, std::uint32_t position) {
        constexpr std::uint64_t num_counts = 16;
        const std::uint8_t* begin = view.huffman_bytes() + position;
        const std::uint64_t num_symbols = std::accumulate(begin, begin + num_counts, std::uint64_t{0});
        const std::uint64_t size = std::min(num_counts + num_symbols, view.num_huffman_bytes - position);
        return {reinterpret_cast<const char*>(begin), size};
    }

    std::vector<std::map<std::uint32_t, std::uint32_t>> sets_of_part_;
};

/// A picture of the result: its part, and its number there.
struct Picked {
    std::size_t part;
    std::int64_t picture;
};

/// The pictures of the result: those of all parts, or these rows of them. Rows are looked up, so that a batch of some
/// pictures takes no time for all others.
std::vector<Picked> pick(std::span<const PictureIndex* const> parts,
                         std::optional<std::span<const std::int64_t>> rows) {
    std::vector<std::int64_t> ends;  // of each part, in rows
    std::int64_t count = 0;
    for (const PictureIndex* part : parts) ends.push_back(count += part->num_pictures());
    std::vector<Picked> picked;
    picked.reserve(rows ? rows->size() : static_cast<std::size_t>(count));
    if (!rows) {
        for (std::size_t part = 0; part < parts.size(); ++part) {
            for (std::int64_t i = 0; i < parts[part]->num_pictures(); ++i) picked.push_back({part, i});
        }
        return picked;
    }
    for (const std::int64_t row : *rows) {
        if (row < 0 || row >= count) {
            throw InvalidArgument("PictureIndex: rows must be from 0 to " + std::to_string(count) +
                                  " (excluded), got " + std::to_string(row));
        }
        const auto part = static_cast<std::size_t>(std::ranges::upper_bound(ends, row) - ends.begin());
        picked.push_back({part, row - (part == 0 ? 0 : ends[part - 1])});
    }
    return picked;
}

}  // namespace
}  // namespace decode_detail

using namespace decode_detail;

PictureIndex PictureIndex::join(std::span<const PictureIndex* const> parts,
                                std::optional<std::span<const std::int64_t>> rows) {
    std::vector<IndexView> views;
    for (const PictureIndex* part : parts) views.push_back(view_of(*part));
    const std::vector<Picked> picked = pick(parts, rows);
    JoinedTables tables(parts.size());
    std::vector<PictureRecord> records;
    records.reserve(picked.size());
    std::uint64_t num_entries = 0;
    for (const Picked& from : picked) {
        PictureRecord record = views[from.part].record(from.picture);
        if (record.codec == Codec::jpeg) {
            record.table_set = tables.set_of(from.part, views[from.part], record.table_set);
        }
        record.first_entry = num_entries;
        num_entries += record.num_entries;
        records.push_back(record);
    }
    PictureIndexWriter writer(records, tables.store);
    for (std::size_t i = 0; i < picked.size(); ++i) {
        const IndexView& from = views[picked[i].part];
        const std::uint64_t first = from.record(picked[i].picture).first_entry;
        writer.put_entries(records[i], from.base + from.entry_bits + first * sizeof(std::uint32_t),
                           from.base + from.entry_predictors + first * sizeof(Predictors));
    }
    return writer.finish();
}

}  // namespace robocache
