// Huffman codes of a scan: decoding tables, and the coefficients of one block.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
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

/// A code and the bits that follow it: run << 9 | size << 5 | bits of both together, at most 31. A code has at least
/// one bit, so that 0 is free for a code that is undefined, or too long for a lookup.
ROBOCACHE_HD std::uint32_t code_entry(int length, int symbol) {
    const int size = symbol & 15;
    return static_cast<std::uint32_t>((symbol >> 4) << 9 | size << 5 | (length + size));
}

/// A table for decoding. Codes up to lookup_bits: one lookup; longer ones: a search by length.
struct HuffmanTable {
    std::uint16_t lookup[lookup_size];         // code_entry by the next lookup_bits; 0: longer or undefined
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
            return static_cast<std::uint16_t>(code_entry(length, codes.symbols[(position + offset) & 255]));
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

/// The entry of the code at the top of `bits`, or 0 where no code fits.
ROBOCACHE_HD std::uint32_t entry_of(std::uint32_t bits, const HuffmanTable& table) {
    const std::uint32_t entry = table.lookup[bits >> (32 - lookup_bits)];
    if (entry != 0) return entry;
    const std::uint32_t code = bits >> (32 - max_code_bits);
    for (int length = lookup_bits + 1; length <= max_code_bits; ++length) {
        if (code < table.limit[length]) {
            const auto at = static_cast<std::int32_t>(code >> (max_code_bits - length)) + table.position[length];
            return code_entry(length, table.symbols[at & 255]);
        }
    }
    return 0;
}

ROBOCACHE_HD int total_bits(std::uint32_t entry) {
    return static_cast<int>(entry & 31);
}
ROBOCACHE_HD int value_size(std::uint32_t entry) {
    return static_cast<int>(entry >> 5 & 15);
}
ROBOCACHE_HD int zero_run(std::uint32_t entry) {
    return static_cast<int>(entry >> 9);
}

/// The signed number behind the code at the top of `bits`; one that begins with 0 is negative. Its size is not 0.
ROBOCACHE_HD int value_of(std::uint32_t bits, std::uint32_t entry) {
    const int size = value_size(entry);
    const std::uint32_t value = bits << (total_bits(entry) - size);
    const std::uint32_t inverted = ~static_cast<std::uint32_t>(static_cast<std::int32_t>(value) >> 31);
    const std::uint32_t magnitude = (value ^ inverted) >> (32 - size);
    return static_cast<int>((magnitude ^ inverted) - inverted);
}

enum class BlockFault : std::uint8_t { none, undefined_code, too_many_coefficients, out_of_data };

/// Decodes one block: calls put(k, value) for the DC coefficient (k = 0) and for every other one that is not 0, k in
/// zigzag order. `predictor` becomes the DC value, modulo 2^16 as in libjpeg. After a fault the block is as far as it
/// was decoded.
///
/// Reader: need() makes 32 bits available, peek_32() is these, drop(n) skips n of them, overran() is whether more were
/// skipped than the scan has.
template <class Reader, class Put>
ROBOCACHE_HD BlockFault decode_block(Reader& reader, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor,
                                     Put put) {
    reader.need();
    const std::uint32_t dc_bits = reader.peek_32();
    const std::uint32_t dc_entry = entry_of(dc_bits, dc);
    if (value_size(dc_entry) > 0) predictor = static_cast<std::int16_t>(predictor + value_of(dc_bits, dc_entry));
    put(0, predictor);
    if (dc_entry == 0) return BlockFault::undefined_code;
    reader.drop(total_bits(dc_entry));
    for (int k = 1; k < num_coefficients; ++k) {
        reader.need();
        const std::uint32_t bits = reader.peek_32();
        const std::uint32_t entry = entry_of(bits, ac);
        if (entry == 0) return BlockFault::undefined_code;
        reader.drop(total_bits(entry));
        const int run = zero_run(entry);
        k += run;
        if (value_size(entry) == 0) {
            if (run != 15) break;
        } else {
            if (k >= num_coefficients) return BlockFault::too_many_coefficients;
            put(k, value_of(bits, entry));
        }
    }
    return reader.overran() ? BlockFault::out_of_data : BlockFault::none;
}

}  // namespace robocache::decode_detail
