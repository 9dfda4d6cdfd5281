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

/// Skips several AC codes at once, with the bits that follow them, by the next skip_bits: eob << 11 | k << 4 | bits.
/// `k` is how far they go in zigzag order, the end of the block counted as one; 0: the first code is too long.
inline constexpr int skip_bits = 12;
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
    /// From the header of a picture that is only scanned. Does nothing where its Huffman tables are already there.
    void load(const JpegHeader& header);

    [[nodiscard]] const HuffmanTable& dc(int c) const { return dc_[static_cast<std::size_t>(c)]; }
    [[nodiscard]] const HuffmanTable& ac(int c) const { return ac_[static_cast<std::size_t>(c)]; }
    [[nodiscard]] const SkipTable& skips(int c) const { return skips_[static_cast<std::size_t>(c)]; }
    /// Null while they are not built.
    [[nodiscard]] const PairTable* pairs(int c) const { return pairs_[static_cast<std::size_t>(c)]; }
    /// 64 in zigzag order: position in natural order << 16 | quantization step.
    [[nodiscard]] const std::uint32_t* steps(int c) const { return steps_[static_cast<std::size_t>(c)].data(); }

private:
    void load_set(const IndexView& index, const TableSet& tables, int num_components);

    std::array<HuffmanTable, max_components> dc_{};
    std::array<HuffmanTable, max_components> ac_{};
    std::vector<SkipTable> skips_;  // of scans
    std::vector<PairTable> built_pairs_;
    std::array<const PairTable*, max_components> pairs_{};
    std::array<std::array<std::uint32_t, num_coefficients>, max_components> steps_{};
    std::array<std::vector<std::uint8_t>, 2 * max_components> scanned_;  // bytes of the tables of scans
    const unsigned char* loaded_from_ = nullptr;
    std::uint32_t loaded_set_ = 0;
    std::size_t bytes_of_set_ = 0;  // of the pictures that were loaded with it
};

}  // namespace robocache::decode_detail
