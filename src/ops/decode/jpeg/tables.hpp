// The decoding tables of one picture on the host.
#pragma once

#include <array>
#include <cstdint>

#include "ops/decode/contract/huffman.hpp"
#include "ops/decode/contract/record.hpp"

namespace robocache::decode_detail {

/// Fills a table from codes: 16 counts and at most `num_bytes` - 16 symbols.
void build_table(const std::uint8_t* bytes, std::size_t num_bytes, HuffmanTable& table);

/// Huffman tables and quantization steps by component.
class PictureTables {
public:
    /// From an index. Does nothing where `set` is the one already there.
    void load(const IndexView& index, std::uint32_t set, int num_components);
    /// From Huffman tables as JPEG stores them.
    void load(int component, const std::uint8_t* dc, std::size_t dc_bytes, const std::uint8_t* ac,
              std::size_t ac_bytes);

    [[nodiscard]] const HuffmanTable& dc(int c) const { return dc_[static_cast<std::size_t>(c)]; }
    [[nodiscard]] const HuffmanTable& ac(int c) const { return ac_[static_cast<std::size_t>(c)]; }
    [[nodiscard]] const std::uint16_t* steps(int c) const { return steps_[static_cast<std::size_t>(c)]; }

private:
    std::array<HuffmanTable, max_components> dc_{};
    std::array<HuffmanTable, max_components> ac_{};
    std::array<const std::uint16_t*, max_components> steps_{};
    const unsigned char* loaded_from_ = nullptr;
    std::uint32_t loaded_set_ = 0;
};

}  // namespace robocache::decode_detail
