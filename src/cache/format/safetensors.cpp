// Parses untrusted headers; writes the headers of new shards.
#include "cache/format/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cache/format/json.hpp"
#include "robocache/errors.hpp"

namespace robocache::cache_detail {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and mapped as they are");

// In the order of DType.
constexpr std::array<std::string_view, 13> dtype_names = {"BOOL", "U8",  "U16", "U32",  "U64", "I8", "I16",
                                                          "I32",  "I64", "F16", "BF16", "F32", "F64"};

[[noreturn]] void fail(std::string_view path, const std::string& problem) {
    throw FormatError(std::string(path) + ": header: " + problem);
}

std::vector<std::int64_t> numbers(const Json* json, std::string_view path, const std::string& what) {
    const auto* items = json == nullptr ? nullptr : json->get_if<Json::Array>();
    if (items == nullptr) fail(path, what + " is not a list");
    std::vector<std::int64_t> result;
    for (const Json& item : *items) {
        const auto* number = item.get_if<std::int64_t>();
        if (number == nullptr || *number < 0) fail(path, what + " must contain only sizes");
        result.push_back(*number);
    }
    return result;
}

TensorEntry parse_entry(const Member& member, std::string_view path) {
    TensorEntry entry;
    entry.name = member.key;
    const std::string what = "tensor " + json_text(member.key);
    const Json* dtype = member.value.find("dtype");
    const auto* dtype_name = dtype == nullptr ? nullptr : dtype->get_if<std::string>();
    if (dtype_name == nullptr) fail(path, what + " has no dtype");
    const auto* found = std::find(dtype_names.begin(), dtype_names.end(), *dtype_name);
    if (found == dtype_names.end())
        fail(path, what + " has dtype " + json_text(*dtype_name) + ", which is not supported");
    entry.dtype = static_cast<DType>(found - dtype_names.begin());
    entry.shape = numbers(member.value.find("shape"), path, "shape of " + what);
    if (entry.shape.size() > TensorView::max_rank) fail(path, what + " has more than 8 dimensions");
    const std::vector<std::int64_t> bounds =
        numbers(member.value.find("data_offsets"), path, "data_offsets of " + what);
    if (bounds.size() != 2 || bounds[0] > bounds[1]) fail(path, "data_offsets of " + what + " are no interval");
    entry.begin = bounds[0];
    entry.end = bounds[1];
    if (checked_bytes(entry.dtype, entry.shape, std::string(path) + ": header: " + what) != entry.end - entry.begin) {
        fail(path, "data_offsets of " + what + " do not fit its shape");
    }
    if (entry.begin % size_bytes(entry.dtype) != 0) fail(path, what + " is not aligned");
    return entry;
}

}  // namespace

const std::string* ShardHeader::find_metadata(std::string_view key) const {
    for (const auto& [name, text] : metadata) {
        if (name == key) return &text;
    }
    return nullptr;
}

std::int64_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape, std::string_view what) {
    std::int64_t bytes = size_bytes(dtype);
    // Every extent counts, also beside a zero: strides are products of the others.
    std::int64_t largest = bytes;
    for (const std::int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(largest, std::max<std::int64_t>(extent, 1), &largest)) {
            throw FormatError(std::string(what) + " is too large");
        }
        bytes *= extent;
    }
    return bytes;
}

DType dtype_of_name(std::string_view wanted, std::string_view what) {
    for (int i = 0; i < static_cast<int>(dtype_names.size()); ++i) {
        if (wanted == name(static_cast<DType>(i))) return static_cast<DType>(i);
    }
    throw FormatError(std::string(what) + ": unknown dtype " + json_text(wanted));
}

ShardHeader parse_safetensors(std::string_view file, std::string_view path) {
    ShardHeader header;
    if (file.size() < 8)
        throw FormatError(std::string(path) + ": has " + std::to_string(file.size()) + " bytes, too few for a shard");
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    if (length > max_header_bytes || length > file.size() - 8) {
        fail(path, "has a length of " + std::to_string(length) + " bytes in a file of " + std::to_string(file.size()));
    }
    header.size_bytes = static_cast<std::int64_t>(length + 8);
    if (header.size_bytes % 8 != 0) fail(path, "the tensors do not begin at a multiple of 8 bytes");
    const Json json = parse_json(file.substr(8, length), std::string(path) + ": header");
    const auto* members = json.get_if<Json::Object>();
    if (members == nullptr) fail(path, "is no object");
    for (const Member& member : *members) {
        if (member.key != "__metadata__") {
            header.tensors.push_back(parse_entry(member, path));
            continue;
        }
        const auto* texts = member.value.get_if<Json::Object>();
        if (texts == nullptr) fail(path, "__metadata__ is not an object");
        for (const Member& item : *texts) {
            const auto* text = item.value.get_if<std::string>();
            if (text == nullptr) fail(path, "__metadata__ must contain only strings");
            header.metadata.emplace_back(item.key, *text);
        }
    }
    // Empty tensors first among those that begin at the same byte.
    std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::int64_t end = 0;
    for (const TensorEntry& entry : header.tensors) {
        if (entry.begin != end) fail(path, "tensor " + json_text(entry.name) + " overlaps another or leaves a gap");
        end = entry.end;
    }
    if (end != static_cast<std::int64_t>(file.size()) - header.size_bytes) {
        fail(path, "the tensors end at byte " + std::to_string(end) + " of " +
                       std::to_string(static_cast<std::int64_t>(file.size()) - header.size_bytes));
    }
    return header;
}

std::string make_safetensors_header(ShardHeader& header) {
    std::string json = "{\"__metadata__\":{";
    for (const auto& [key, text] : header.metadata) {
        if (json.back() != '{') json += ',';
        json += json_text(key) + ":" + json_text(text);
    }
    json += '}';
    std::int64_t offset = 0;
    for (TensorEntry& entry : header.tensors) {
        entry.begin = offset;
        offset += checked_bytes(entry.dtype, entry.shape, entry.name);
        entry.end = offset;
        json += "," + json_text(entry.name) + ":{\"dtype\":\"" +
                std::string(dtype_names[static_cast<std::size_t>(entry.dtype)]) + "\",\"shape\":[";
        for (std::size_t d = 0; d < entry.shape.size(); ++d)
            json += (d > 0 ? "," : "") + std::to_string(entry.shape[d]);
        json += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
    }
    json += '}';
    json.append((64 - (json.size() + 8) % 64) % 64, ' ');
    if (json.size() > max_header_bytes)
        throw InvalidArgument("CacheWriter: too many streams for the header of a shard");
    const auto length = static_cast<std::uint64_t>(json.size());
    header.size_bytes = static_cast<std::int64_t>(length + 8);
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, sizeof length);
    return text + json;
}

}  // namespace robocache::cache_detail
