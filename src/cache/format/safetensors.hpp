// The header of a safetensors file: 8 bytes little-endian length, JSON, then the tensors without gaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/tensor.hpp"

namespace robocache::cache_detail {

constexpr std::size_t max_header_bytes = std::size_t{16} << 20;

struct TensorEntry {
    std::string name;
    DType dtype = DType::u8;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // bytes after the header
    std::int64_t end = 0;
};

struct ShardHeader {
    std::int64_t size_bytes = 0;  // with the 8 bytes of its length; where the tensors begin
    std::vector<TensorEntry> tensors;
    std::vector<std::pair<std::string, std::string>> metadata;

    [[nodiscard]] const std::string* find_metadata(std::string_view key) const;
};

/// Reads the header of a whole file. Throws FormatError unless it is well formed, the tensors lie one after the other,
/// at multiples of their elements' size, and fill the file exactly. `path` is for messages.
[[nodiscard]] ShardHeader parse_safetensors(std::string_view file, std::string_view path);

/// The first bytes of a file with these tensors, whose begin and end are filled in; a multiple of 64 bytes. Put the
/// tensors in descending order of their elements' size.
[[nodiscard]] std::string make_safetensors_header(ShardHeader& header);

/// Bytes of a tensor; throws FormatError "<what> is too large" where int64 cannot say it.
[[nodiscard]] std::int64_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape, std::string_view what);

/// By NumPy's name: "float32". Throws FormatError.
[[nodiscard]] DType dtype_of_name(std::string_view name, std::string_view what);

}  // namespace robocache::cache_detail
