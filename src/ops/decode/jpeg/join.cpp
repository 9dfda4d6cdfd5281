// PictureIndex::join: one index from the pictures of several. Equal tables are stored once.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ops/decode/jpeg/index.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace decode_detail {
namespace {

using Steps = std::array<std::uint16_t, num_coefficients>;

/// The tables of the joined index. A set of a part is looked up once.
class JoinedTables {
public:
    explicit JoinedTables(std::size_t num_parts) : sets_of_part_(num_parts) {}

    std::uint32_t set_of(std::size_t part, const IndexView& view, std::uint32_t set) {
        const auto [known, is_unknown] = sets_of_part_[part].try_emplace(set, 0);
        if (!is_unknown) return known->second;
        const TableSet& given = view.set(set);
        TableSet made{};
        std::array<std::uint32_t, 3 * max_components> key{};
        for (int c = 0; c < max_components; ++c) {
            made.quantization[c] = steps_of(view, given.quantization[c]);
            made.dc[c] = table_of(view, given.dc[c]);
            made.ac[c] = table_of(view, given.ac[c]);
            const auto at = static_cast<std::size_t>(c) * 3;
            key[at] = made.quantization[c];
            key[at + 1] = made.dc[c];
            key[at + 2] = made.ac[c];
        }
        const auto [at, is_new] = numbers_.try_emplace(key, static_cast<std::uint32_t>(sets.size()));
        if (is_new) sets.push_back(made);
        return known->second = at->second;
    }

    std::vector<TableSet> sets;
    std::vector<Steps> quantization;
    std::string huffman;

private:
    std::uint32_t steps_of(const IndexView& view, std::uint32_t i) {
        Steps steps;
        std::memcpy(steps.data(), view.steps(i), sizeof steps);
        const auto [at, is_new] = step_numbers_.try_emplace(steps, static_cast<std::uint32_t>(quantization.size()));
        if (is_new) quantization.push_back(steps);
        return at->second;
    }

    /// A table has 16 counts, then as many symbols as they sum to, or as the section has bytes left.
    std::uint32_t table_of(const IndexView& view, std::uint32_t position) {
        constexpr std::uint64_t num_counts = 16;
        const std::uint8_t* begin = view.huffman_bytes() + position;
        const std::uint64_t num_symbols = std::accumulate(begin, begin + num_counts, std::uint64_t{0});
        const std::uint64_t size = std::min(num_counts + num_symbols, view.num_huffman_bytes - position);
        std::string table(reinterpret_cast<const char*>(begin), size);
        const auto [at, is_new] = positions_.try_emplace(table, static_cast<std::uint32_t>(huffman.size()));
        if (is_new) huffman += table;
        return at->second;
    }

    std::vector<std::map<std::uint32_t, std::uint32_t>> sets_of_part_;
    std::map<std::array<std::uint32_t, 3 * max_components>, std::uint32_t> numbers_;
    std::map<Steps, std::uint32_t> step_numbers_;
    std::map<std::string, std::uint32_t> positions_;
};

/// A picture of the result: its part, and its number there.
struct Picked {
    std::size_t part;
    std::int64_t picture;
};

std::vector<Picked> pick(std::span<const PictureIndex* const> parts,
                         std::optional<std::span<const std::int64_t>> rows) {
    std::vector<Picked> all;
    for (std::size_t part = 0; part < parts.size(); ++part) {
        for (std::int64_t i = 0; i < parts[part]->num_pictures(); ++i) all.push_back({part, i});
    }
    if (!rows) return all;
    std::vector<Picked> picked;
    picked.reserve(rows->size());
    for (const std::int64_t row : *rows) {
        if (row < 0 || row >= static_cast<std::int64_t>(all.size())) {
            throw InvalidArgument("PictureIndex: rows must be from 0 to " + std::to_string(all.size()) +
                                  " (excluded), got " + std::to_string(row));
        }
        picked.push_back(all[static_cast<std::size_t>(row)]);
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
    IndexHead head{};
    head.magic = index_magic;
    head.version = index_version;
    head.num_pictures = records.size();
    head.num_sets = tables.sets.size();
    head.num_quantization = tables.quantization.size();
    head.num_huffman_bytes = tables.huffman.size();
    head.num_entries = num_entries;
    head.size_bytes = view_of(head, nullptr).end;
    PictureIndex index;
    index.words_.resize(head.size_bytes / 8);
    auto* base = reinterpret_cast<unsigned char*>(index.words_.data());
    const IndexView view = view_of(head, base);
    const auto put = [&](std::uint64_t at, const void* data, std::size_t bytes) {
        if (bytes > 0) std::memcpy(base + at, data, bytes);
    };
    put(0, &head, sizeof head);
    put(view.records, records.data(), records.size() * sizeof(PictureRecord));
    put(view.sets, tables.sets.data(), tables.sets.size() * sizeof(TableSet));
    put(view.quantization, tables.quantization.data(), tables.quantization.size() * sizeof(Steps));
    put(view.huffman, tables.huffman.data(), tables.huffman.size());
    for (std::size_t i = 0; i < picked.size(); ++i) {
        const IndexView& from = views[picked[i].part];
        const PictureRecord& given = from.record(picked[i].picture);
        const std::size_t count = records[i].num_entries;
        if (count == 0) continue;
        put(view.entry_bits + records[i].first_entry * sizeof(std::uint32_t),
            from.base + from.entry_bits + given.first_entry * sizeof(std::uint32_t), count * sizeof(std::uint32_t));
        put(view.entry_predictors + records[i].first_entry * sizeof(Predictors),
            from.base + from.entry_predictors + given.first_entry * sizeof(Predictors), count * sizeof(Predictors));
    }
    return index;
}

}  // namespace robocache
