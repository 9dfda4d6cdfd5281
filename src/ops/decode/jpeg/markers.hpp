// The header of a JPEG picture: everything before its scan.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/decode/contract/record.hpp"

namespace robocache::decode_detail {

using Bytes = std::span<const std::uint8_t>;

/// Why a picture is refused: it must <rule>, but is <given>.
struct PictureFault {
    bool is_unsupported;  // a valid kind of JPEG, or of a picture, that is not decoded here
    std::string rule;
    std::string given;
};

/// Tables of one component: quantization steps in zigzag order; Huffman tables as 16 counts and their symbols.
struct ComponentTables {
    std::array<std::uint16_t, num_coefficients> steps;
    std::vector<std::uint8_t> dc;
    std::vector<std::uint8_t> ac;
};

struct JpegHeader {
    PictureRecord record{};  // without tables and entries
    std::array<ComponentTables, max_components> tables;
};

/// Throws PictureFault. Refuses more than max_pixels.
[[nodiscard]] JpegHeader read_header(Bytes picture, std::int64_t max_pixels);

/// Bytes as "89504e47".
[[nodiscard]] std::string hex(Bytes bytes);

}  // namespace robocache::decode_detail
