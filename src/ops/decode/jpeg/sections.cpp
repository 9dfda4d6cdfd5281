// TableStore and PictureIndexWriter.
#include "ops/decode/jpeg/sections.hpp"

#include <cstring>

namespace robocache {
namespace decode_detail {

std::uint32_t TableStore::number_of(const Steps& steps) {
    const auto [at, is_new] = step_numbers_.try_emplace(steps, static_cast<std::uint32_t>(quantization_.size()));
    if (is_new) quantization_.push_back(steps);
    return at->second;
}

std::uint32_t TableStore::position_of(const std::string& table) {
    const auto [at, is_new] = table_positions_.try_emplace(table, static_cast<std::uint32_t>(huffman_.size()));
    if (is_new) huffman_ += table;
    return at->second;
}

std::uint32_t TableStore::number_of(const TableSet& set) {
    std::array<std::uint32_t, 3 * max_components> key{};
    for (int c = 0; c < max_components; ++c) {
        const auto at = static_cast<std::size_t>(c) * 3;
        key[at] = set.quantization[c];
        key[at + 1] = set.dc[c];
        key[at + 2] = set.ac[c];
    }
    const auto [at, is_new] = set_numbers_.try_emplace(key, static_cast<std::uint32_t>(sets_.size()));
    if (is_new) sets_.push_back(set);
    return at->second;
}

}  // namespace decode_detail

using namespace decode_detail;

PictureIndexWriter::PictureIndexWriter(std::span<const PictureRecord> records, const TableStore& tables) {
    IndexHead head{};
    head.magic = index_magic;
    head.version = index_version;
    head.num_pictures = records.size();
    head.num_sets = tables.sets().size();
    head.num_quantization = tables.quantization().size();
    head.num_huffman_bytes = tables.huffman().size();
    for (const PictureRecord& record : records) head.num_entries += record.num_entries;
    head.size_bytes = view_of(head, nullptr).end;
    index_.words_.resize(head.size_bytes / 8);
    view_ = view_of(head, reinterpret_cast<const unsigned char*>(index_.words_.data()));
    put(0, &head, sizeof head);
    put(view_.records, records.data(), records.size_bytes());
    put(view_.sets, tables.sets().data(), tables.sets().size() * sizeof(TableSet));
    put(view_.quantization, tables.quantization().data(), tables.quantization().size() * sizeof(Steps));
    put(view_.huffman, tables.huffman().data(), tables.huffman().size());
}

void PictureIndexWriter::put_entries(const PictureRecord& record, const void* bits, const void* predictors) {
    put(view_.entry_bits + record.first_entry * sizeof(std::uint32_t), bits,
        record.num_entries * sizeof(std::uint32_t));
    put(view_.entry_predictors + record.first_entry * sizeof(Predictors), predictors,
        record.num_entries * sizeof(Predictors));
}

void PictureIndexWriter::put(std::uint64_t at, const void* data, std::size_t bytes) {
    if (bytes > 0) std::memcpy(reinterpret_cast<unsigned char*>(index_.words_.data()) + at, data, bytes);
}

}  // namespace robocache
