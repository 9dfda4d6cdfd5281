// Huffman codes of a scan: decoding tables, and the coefficients of one block.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/decode/contract/bits.hpp"
#include "ops/decode/contract/record.hpp"

namespace robocache::decode_detail {

inline constexpr int lookup_bits = 10;
inline constexpr int lookup_size = 1 << lookup_bits;
inline constexpr int max_code_bits = 16;

/// A table as JPEG stores it: codes are counted by length, symbols follow in the order of codes.
struct HuffmanCodes {
    const std::uint8_t* counts;   // 16: codes of 1, 2, ... 16 bits
    const std::uint8_t* symbols;  // as many as the counts say, at most 256
};

/// A table for decoding. Codes up to lookup_bits: one lookup; longer ones: a search by length.
struct HuffmanTable {
    std::uint16_t lookup[lookup_size];         // length << 8 | symbol, by the next lookup_bits; 0: longer or undefined
    std::uint32_t limit[max_code_bits + 1];    // codes of this length or less, left-aligned to 16 bits, are below it
    std::int32_t position[max_code_bits + 1];  // of the symbol of a code of this length: code + position
    std::uint8_t symbols[256];
};

/// HuffmanTable::lookup[i]. One thread per entry may build a table.
ROBOCACHE_HD std::uint16_t lookup_entry(const HuffmanCodes& codes, int i) {
    int code = 0;
    int position = 0;
    for (int length = 1; length <= lookup_bits; ++length) {
        const int count = codes.counts[length - 1];
        const int offset = (i >> (lookup_bits - length)) - code;
        if (offset >= 0 && offset < count) {
            return static_cast<std::uint16_t>(length << 8 | codes.symbols[(position + offset) & 255]);
        }
        code = (code + count) << 1;
        position += count;
    }
    return 0;
}

/// HuffmanTable::limit and position.
ROBOCACHE_HD void fill_limits(const HuffmanCodes& codes, HuffmanTable& table) {
    std::uint32_t code = 0;
    std::int32_t position = 0;
    for (int length = 1; length <= max_code_bits; ++length) {
        const std::uint32_t count = codes.counts[length - 1];
        table.position[length] = position - static_cast<std::int32_t>(code);
        code += count;
        position += static_cast<std::int32_t>(count);
        table.limit[length] = code << (max_code_bits - length);
        code <<= 1;
    }
}

/// The next symbol, or -1 where no code fits. At least 16 bits must be there.
ROBOCACHE_HD int next_symbol(BitReader& reader, const HuffmanTable& table) {
    const std::uint32_t entry = table.lookup[reader.peek(lookup_bits)];
    if (entry != 0) {
        reader.drop(static_cast<int>(entry >> 8));
        return static_cast<int>(entry & 0xFF);
    }
    const std::uint32_t code = reader.peek(max_code_bits);
    for (int length = lookup_bits + 1; length <= max_code_bits; ++length) {
        if (code < table.limit[length]) {
            reader.drop(length);
            const auto at = static_cast<std::int32_t>(code >> (max_code_bits - length)) + table.position[length];
            return table.symbols[at & 255];
        }
    }
    return -1;
}

/// `size` bits as a signed number: those that begin with 0 are negative.
ROBOCACHE_HD int next_value(BitReader& reader, int size) {
    const int value = static_cast<int>(reader.peek(size));
    reader.drop(size);
    return value < (1 << (size - 1)) ? value - (1 << size) + 1 : value;
}

enum class BlockFault : std::uint8_t { none, undefined_code, too_many_coefficients, out_of_data };

/// Decodes one block: calls put(k, value) for the DC coefficient (k = 0) and for every other one that is not 0, k in
/// zigzag order. `predictor` becomes the DC value, modulo 2^16 as in libjpeg. After a fault the block is as far as it
/// was decoded.
template <class Put>
ROBOCACHE_HD BlockFault decode_block(BitReader& reader, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor,
                                     Put put) {
    reader.need();
    const int dc_symbol = next_symbol(reader, dc);
    if (dc_symbol >= 0) {
        const int size = dc_symbol & 15;
        if (size > 0) predictor = static_cast<std::int16_t>(predictor + next_value(reader, size));
    }
    put(0, predictor);
    if (dc_symbol < 0) return BlockFault::undefined_code;
    for (int k = 1; k < num_coefficients;) {
        reader.need();
        const int symbol = next_symbol(reader, ac);
        if (symbol < 0) return BlockFault::undefined_code;
        const int size = symbol & 15;
        k += symbol >> 4;
        if (size == 0) {
            if (symbol != 0xF0) break;
        } else {
            if (k >= num_coefficients) return BlockFault::too_many_coefficients;
            put(k, next_value(reader, size));
        }
        ++k;
    }
    return reader.overran() ? BlockFault::out_of_data : BlockFault::none;
}

}  // namespace robocache::decode_detail
