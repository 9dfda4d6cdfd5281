// The decoding tables of one picture on the host.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/decode/contract/huffman.hpp"
#include "ops/decode/contract/record.hpp"
#include "ops/decode/jpeg/markers.hpp"

namespace robocache::decode_detail {

/// Fills a table from codes: 16 counts and at most `num_bytes` - 16 symbols.
void build_table(const std::uint8_t* bytes, std::size_t num_bytes, HuffmanTable& table);

/// Skips the AC codes that are whole within the next skip_bits, each with the bits of its number, which may be behind
/// them: advance << 5 | bits. `advance` is how far they go in zigzag order; behind the end of a block, which counts as
/// one, num_coefficients more. So one comparison tells whether a block goes on.
inline constexpr int skip_bits = 12;
inline constexpr int most_skipped_bits = skip_bits + 15;
inline constexpr std::uint16_t no_skip = 255 << 5;  // the first code is undefined or too long
struct SkipTable {
    std::uint16_t lookup[1 << skip_bits];
};
void build_skips(const HuffmanTable& ac, SkipTable& skips);

/// One or two AC coefficients, and the end of the block if its code follows, by the next lookup_bits.
struct CoefficientPair {
    std::int16_t values[2];   // equal if it is one coefficient
    std::uint8_t offsets[2];  // in zigzag order, from the next coefficient of the block on
    std::uint8_t advance;     // offset behind the last one; 0: no coefficient is whole within these bits
    std::uint8_t end_bits;    // end << 7 | bits of all codes
};
struct PairTable {
    CoefficientPair lookup[lookup_size];
};
void build_pairs(const HuffmanTable& ac, PairTable& pairs);

/// Huffman tables and quantization steps by component.
class PictureTables {
public:
    /// From an index, for a picture of so many bytes. Does nothing where `set` is the one already there. Pair tables
    /// are built for a set as soon as its pictures have enough bytes to save the time that building takes.
    void load(const IndexView& index, std::uint32_t set, int num_components, std::size_t num_bytes);

    [[nodiscard]] const HuffmanTable& dc(int c) const { return dc_[static_cast<std::size_t>(c)]; }
    [[nodiscard]] const HuffmanTable& ac(int c) const { return ac_[static_cast<std::size_t>(c)]; }
    /// Null while they are not built.
    [[nodiscard]] const PairTable* pairs(int c) const { return pairs_[static_cast<std::size_t>(c)]; }
    /// 64 in zigzag order: position in natural order << 16 | quantization step.
    [[nodiscard]] const std::uint32_t* steps(int c) const { return steps_[static_cast<std::size_t>(c)].data(); }

private:
    void load_set(const IndexView& index, const TableSet& tables, int num_components);

    std::array<HuffmanTable, max_components> dc_{};
    std::array<HuffmanTable, max_components> ac_{};
    std::vector<PairTable> built_pairs_;
    std::array<const PairTable*, max_components> pairs_{};
    std::array<std::array<std::uint32_t, num_coefficients>, max_components> steps_{};
    const unsigned char* loaded_from_ = nullptr;
    std::uint32_t loaded_set_ = 0;
    std::size_t bytes_of_set_ = 0;  // of the pictures that were loaded with it
};

/// The Huffman tables of a picture that is only scanned. Components with the same ones share them: they stay in the
/// first-level cache.
class ScanTables {
public:
    [[nodiscard]] bool has(const JpegHeader& header) const;
    /// Does nothing where they are already there.
    void load(const JpegHeader& header);

    [[nodiscard]] const HuffmanTable& dc(int c) const { return dc_[dc_of_[static_cast<std::size_t>(c)]]; }
    [[nodiscard]] const HuffmanTable& ac(int c) const { return ac_[ac_of_[static_cast<std::size_t>(c)]]; }
    [[nodiscard]] const SkipTable& skips(int c) const { return skips_[ac_of_[static_cast<std::size_t>(c)]]; }

private:
    using Numbers = std::array<std::size_t, max_components>;  // by component

    std::array<HuffmanTable, max_components> dc_{};
    std::array<HuffmanTable, max_components> ac_{};
    std::array<SkipTable, max_components> skips_{};
    Numbers dc_of_{};
    Numbers ac_of_{};
    std::array<std::vector<std::uint8_t>, max_components> dc_bytes_;  // by component, as the header has them
    std::array<std::vector<std::uint8_t>, max_components> ac_bytes_;
};

}  // namespace robocache::decode_detail
