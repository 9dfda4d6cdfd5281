// Builds decoding tables on the host, code by code.
#include "ops/decode/jpeg/tables.hpp"

#include <algorithm>
#include <cstring>

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
            const auto entry = static_cast<std::uint16_t>(length << 8 | table.symbols[symbol & 255]);
            std::fill_n(table.lookup + at, width, entry);
        }
    }
}

void PictureTables::load(int component, const std::uint8_t* dc, std::size_t dc_bytes, const std::uint8_t* ac,
                         std::size_t ac_bytes) {
    build_table(dc, dc_bytes, dc_[static_cast<std::size_t>(component)]);
    build_table(ac, ac_bytes, ac_[static_cast<std::size_t>(component)]);
}

void PictureTables::load(const IndexView& index, std::uint32_t set, int num_components) {
    if (loaded_from_ == index.base && loaded_set_ == set) return;
    const TableSet& tables = index.set(set);
    const std::uint8_t* huffman = index.huffman_bytes();
    const auto bytes_from = [&](std::uint32_t at) { return static_cast<std::size_t>(index.num_huffman_bytes - at); };
    for (int c = 0; c < num_components; ++c) {
        const auto i = static_cast<std::size_t>(c);
        steps_[i] = index.steps(tables.quantization[c]);
        if (c == 2 && tables.dc[2] == tables.dc[1] && tables.ac[2] == tables.ac[1]) {
            dc_[2] = dc_[1];
            ac_[2] = ac_[1];
        } else {
            load(c, huffman + tables.dc[c], bytes_from(tables.dc[c]), huffman + tables.ac[c], bytes_from(tables.ac[c]));
        }
    }
    loaded_from_ = index.base;
    loaded_set_ = set;
}

}  // namespace robocache::decode_detail
