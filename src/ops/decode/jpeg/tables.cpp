// Builds decoding tables on the host, code by code.
#include "ops/decode/jpeg/tables.hpp"

#include <algorithm>
#include <cstring>

#include "ops/decode/contract/idct.hpp"

namespace robocache::decode_detail {
namespace {

// Building the pair tables of a picture takes some 30 us, and they save 1 us for 400 bytes of it.
constexpr std::size_t least_pair_bytes = 16 << 10;

}  // namespace

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
        while (!is_end && used < skip_bits) {
            const std::uint32_t entry = entry_of(i << (32 - skip_bits) << used, ac);
            const bool is_whole = entry != 0 && used + total_bits(entry) - value_size(entry) <= skip_bits;
            if (!is_whole || k + zero_run(entry) + 1 > num_coefficients) break;
            used += total_bits(entry);
            is_end = value_size(entry) == 0 && zero_run(entry) != 15;
            k += is_end ? 1 : zero_run(entry) + 1;
        }
        const int advance = is_end ? num_coefficients + k : k;
        skips.lookup[i] = k == 0 ? no_skip : static_cast<std::uint16_t>(advance << 5 | used);
    }
}

void build_pairs(const HuffmanTable& ac, PairTable& pairs) {
    for (std::uint32_t i = 0; i < lookup_size; ++i) {
        CoefficientPair& pair = pairs.lookup[i];
        pair = {};
        int used = 0;
        bool is_end = false;
        for (int count = 0;; ++count) {
            const std::uint32_t bits = i << (32 - lookup_bits) << used;
            const std::uint32_t entry = ac.lookup[bits >> (32 - lookup_bits)];
            if (entry == 0 || used + total_bits(entry) > lookup_bits) break;
            if (value_size(entry) == 0) {
                is_end = zero_run(entry) != 15 && count > 0;
                if (is_end) used += total_bits(entry);
                break;
            }
            if (count == 2) break;
            used += total_bits(entry);
            pair.values[1] = static_cast<std::int16_t>(value_of(bits, entry));
            pair.offsets[1] = static_cast<std::uint8_t>(pair.advance + zero_run(entry));
            if (count == 0) {
                pair.values[0] = pair.values[1];
                pair.offsets[0] = pair.offsets[1];
            }
            pair.advance = static_cast<std::uint8_t>(pair.offsets[1] + 1);
        }
        pair.end_bits = static_cast<std::uint8_t>((is_end ? 128 : 0) | used);
    }
}

bool ScanTables::has(const JpegHeader& header) const {
    for (int c = 0; c < header.record.num_components; ++c) {
        const auto i = static_cast<std::size_t>(c);
        if (dc_bytes_[i] != header.tables[i].dc || ac_bytes_[i] != header.tables[i].ac) return false;
    }
    return true;
}

void ScanTables::load(const JpegHeader& header) {
    if (has(header)) return;
    const auto count = static_cast<std::size_t>(header.record.num_components);
    for (std::size_t c = 0; c < count; ++c) {
        dc_bytes_[c] = header.tables[c].dc;
        ac_bytes_[c] = header.tables[c].ac;
    }
    // The number of the first component with the same table.
    const auto first_with = [](const auto& bytes, std::size_t c) {
        return static_cast<std::size_t>(
            std::find(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(c), bytes[c]) - bytes.begin());
    };
    for (std::size_t c = 0; c < count; ++c) {
        dc_of_[c] = first_with(dc_bytes_, c);
        ac_of_[c] = first_with(ac_bytes_, c);
        if (dc_of_[c] == c) build_table(dc_bytes_[c].data(), dc_bytes_[c].size(), dc_[c]);
        if (ac_of_[c] != c) continue;
        build_table(ac_bytes_[c].data(), ac_bytes_[c].size(), ac_[c]);
        build_skips(ac_[c], skips_[c]);
    }
}

void PictureTables::load(const IndexView& index, std::uint32_t set, int num_components, std::size_t num_bytes) {
    const TableSet& tables = index.set(set);
    const bool is_loaded = loaded_from_ == index.base && loaded_set_ == set;
    bytes_of_set_ = num_bytes + (is_loaded ? bytes_of_set_ : 0);
    if (!is_loaded) load_set(index, tables, num_components);
    loaded_from_ = index.base;
    loaded_set_ = set;
    if (pairs_[0] != nullptr || bytes_of_set_ < least_pair_bytes) return;
    built_pairs_.resize(max_components);
    for (int c = 0; c < num_components; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const bool is_shared = c == 2 && tables.ac[2] == tables.ac[1];
        if (!is_shared) build_pairs(ac_[i], built_pairs_[i]);
        pairs_[i] = &built_pairs_[is_shared ? 1 : i];
    }
}

void PictureTables::load_set(const IndexView& index, const TableSet& tables, int num_components) {
    pairs_ = {};
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
}

}  // namespace robocache::decode_detail
