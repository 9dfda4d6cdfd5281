// Builds decoding tables on the host, code by code.
#include "ops/decode/jpeg/tables.hpp"

#include <algorithm>
#include <cstring>

#include "ops/decode/contract/idct.hpp"

namespace robocache::decode_detail {

void build_table(const std::uint8_t* bytes, std::size_t num_bytes, HuffmanTable& table) {
    std::memset(&table, 0, sizeof table);
    if (num_bytes < max_code_bits) return;
    const std::size_t num_symbols = std::min<std::size_t>(num_bytes - max_code_bits, 256);
    std::memcpy(table.symbols, bytes + max_code_bits, num_symbols);
    const HuffmanCodes codes{bytes, table.symbols};
    fill_limits(codes, table);
    std::size_t at = 0;  // in lookup
    std::size_t symbol = 0;
    for (int length = 1; length <= lookup_bits; ++length) {
        const auto width = std::size_t{1} << (lookup_bits - length);
        for (int i = 0; i < codes.counts[length - 1] && at + width <= lookup_size; ++i, ++symbol, at += width) {
            const auto entry = static_cast<std::uint16_t>(code_entry(length, table.symbols[symbol & 255]));
            std::fill_n(table.lookup + at, width, entry);
        }
    }
}

void build_skips(const HuffmanTable& ac, SkipTable& skips) {
    for (std::uint32_t i = 0; i < (1U << skip_bits); ++i) {
        int used = 0;
        int k = 0;
        bool is_end = false;
        while (!is_end) {
            const std::uint32_t entry = ac.lookup[(i << (32 - skip_bits) << used) >> (32 - lookup_bits)];
            if (entry == 0 || used + total_bits(entry) > skip_bits || k + zero_run(entry) + 1 > num_coefficients) break;
            used += total_bits(entry);
            is_end = value_size(entry) == 0 && zero_run(entry) != 15;
            k += is_end ? 1 : zero_run(entry) + 1;
        }
        skips.lookup[i] = static_cast<std::uint16_t>((is_end ? 1 : 0) << 11 | k << 4 | used);
    }
}

void PictureTables::load(const JpegHeader& header) {
    skips_.resize(max_components);
    for (int c = 0; c < header.record.num_components; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const ComponentTables& given = header.tables[i];
        if (scanned_[i] != given.dc) {
            build_table(given.dc.data(), given.dc.size(), dc_[i]);
            scanned_[i] = given.dc;
        }
        if (scanned_[max_components + i] != given.ac) {
            build_table(given.ac.data(), given.ac.size(), ac_[i]);
            build_skips(ac_[i], skips_[i]);
            scanned_[max_components + i] = given.ac;
        }
    }
}

void PictureTables::load(const IndexView& index, std::uint32_t set, int num_components) {
    if (loaded_from_ == index.base && loaded_set_ == set) return;
    const TableSet& tables = index.set(set);
    const std::uint8_t* huffman = index.huffman_bytes();
    const auto bytes_from = [&](std::uint32_t at) { return static_cast<std::size_t>(index.num_huffman_bytes - at); };
    for (int c = 0; c < num_components; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const std::uint16_t* steps = index.steps(tables.quantization[c]);
        for (std::size_t k = 0; k < num_coefficients; ++k) {
            steps_[i][k] = static_cast<std::uint32_t>(natural_order[k]) << 16 | steps[k];
        }
        if (c == 2 && tables.dc[2] == tables.dc[1] && tables.ac[2] == tables.ac[1]) {
            dc_[2] = dc_[1];
            ac_[2] = ac_[1];
        } else {
            build_table(huffman + tables.dc[c], bytes_from(tables.dc[c]), dc_[i]);
            build_table(huffman + tables.ac[c], bytes_from(tables.ac[c]), ac_[i]);
        }
    }
    loaded_from_ = index.base;
    loaded_set_ = set;
}

}  // namespace robocache::decode_detail
