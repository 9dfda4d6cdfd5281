// The sections of a PictureIndex while it is made: tables, each stored once, and the bytes of the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/decode/contract/record.hpp"
#include "robocache/decode.hpp"

namespace robocache {
namespace decode_detail {

using Steps = std::array<std::uint16_t, num_coefficients>;

/// Numbers for tables: equal ones have the same.
class TableStore {
public:
    std::uint32_t number_of(const Steps& steps);
    /// A table has 16 counts, then its symbols. Returns its position in `huffman`.
    std::uint32_t position_of(const std::string& table);
    std::uint32_t number_of(const TableSet& set);

    [[nodiscard]] const std::vector<TableSet>& sets() const { return sets_; }
    [[nodiscard]] const std::vector<Steps>& quantization() const { return quantization_; }
    [[nodiscard]] const std::string& huffman() const { return huffman_; }

private:
    std::vector<TableSet> sets_;
    std::vector<Steps> quantization_;
    std::string huffman_;
    std::map<std::array<std::uint32_t, 3 * max_components>, std::uint32_t> set_numbers_;
    std::map<Steps, std::uint32_t> step_numbers_;
    std::map<std::string, std::uint32_t> table_positions_;
};

}  // namespace decode_detail

/// Writes a new index: head, records and tables at once, then the entry points of each picture.
class PictureIndexWriter {
public:
    /// `records`: with first_entry set, in order.
    PictureIndexWriter(std::span<const decode_detail::PictureRecord> records, const decode_detail::TableStore& tables);

    /// `bits`, `predictors`: record.num_entries of each.
    void put_entries(const decode_detail::PictureRecord& record, const void* bits, const void* predictors);
    [[nodiscard]] PictureIndex finish() { return std::move(index_); }

private:
    void put(std::uint64_t at, const void* data, std::size_t bytes);

    PictureIndex index_;
    decode_detail::IndexView view_{};
};

}  // namespace robocache
