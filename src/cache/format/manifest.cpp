// Writes one line of JSON whose last member is the checksum of everything before it.
#include "cache/format/manifest.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/format/safetensors.hpp"

namespace robocache::cache_detail {
namespace {

constexpr std::string_view format_name = "robocache";
constexpr std::int64_t format_version = 1;
constexpr std::int64_t encoded_version = 2;  // of a cache with encoded pictures, which older readers would misread
constexpr std::int64_t video_version = 3;    // of a cache with packets of video
constexpr std::array<std::string_view, 2> picture_codecs{"jpeg", "png"};
constexpr std::array<std::string_view, 5> video_codecs{"h264", "hevc", "av1", "vp9", "mpeg4"};

template <std::size_t n>
bool is_among(const std::array<std::string_view, n>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::int64_t version_of(const CacheStream& stream) {
    if (!stream.is_encoded()) return format_version;
    return is_among(video_codecs, stream.codec) ? video_version : encoded_version;
}
constexpr std::size_t checksum_bytes = 22;  // ,"crc32c":"01234567"} and a newline

/// Reads members of one object by name; every message begins with where it is.
class Fields {
public:
    Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
        if (json.get_if<Json::Object>() == nullptr) throw FormatError(where_ + " is not an object");
    }

    template <class T>
    [[nodiscard]] const T& get(std::string_view key, std::string_view kind) const {
        const Json* member = json_.find(key);
        const T* value = member == nullptr ? nullptr : member->get_if<T>();
        if (value == nullptr) fail(key, "is no " + std::string(kind));
        return *value;
    }
    [[nodiscard]] const std::string& text(std::string_view key) const { return get<std::string>(key, "text"); }
    [[nodiscard]] const Json::Array& list(std::string_view key) const { return get<Json::Array>(key, "list"); }
    [[nodiscard]] std::int64_t size(std::string_view key) const {
        const auto number = get<std::int64_t>(key, "number");
        if (number < 0) fail(key, "is negative");
        return number;
    }
    [[nodiscard]] std::uint32_t checksum(std::string_view key) const {
        const std::vector<std::uint32_t> one = parse_blocks(text(key), where_ + "." + std::string(key));
        if (one.size() != 1) fail(key, "is no checksum");
        return one[0];
    }
    [[nodiscard]] std::string object_text(std::string_view key) const {
        (void)get<Json::Object>(key, "object");
        return write_json(*json_.find(key));
    }
    [[noreturn]] void fail(std::string_view key, const std::string& problem) const {
        throw FormatError(where_ + "." + std::string(key) + " " + problem);
    }

private:
    const Json& json_;
    std::string where_;
};

std::string item(std::string_view path, std::string_view list, std::size_t i) {
    return std::string(path) + ": " + std::string(list) + "[" + std::to_string(i) + "]";
}

CacheStream parse_stream(const Json& json, const std::string& where) {
    const Fields fields(json, where);
    CacheStream stream;
    stream.name = fields.text("name");
    stream.dtype = dtype_of_name(fields.text("dtype"), where);
    for (const Json& extent : fields.list("shape")) {
        const auto* number = extent.get_if<std::int64_t>();
        if (number == nullptr) fields.fail("shape", "must contain only sizes");
        stream.shape.push_back(*number);
    }
    stream.kind = fields.text("kind");
    stream.ragged = fields.get<bool>("ragged", "bool");
    stream.details = fields.object_text("details");
    if (json.find("codec") != nullptr) stream.codec = fields.text("codec");
    if (const std::string problem = problem_of(stream); !problem.empty()) throw FormatError(where + " " + problem);
    return stream;
}

ShardEntry parse_shard(const Json& json, const std::string& where, std::string_view expected_name) {
    const Fields fields(json, where);
    ShardEntry shard;
    shard.name = fields.text("name");
    if (shard.name != expected_name) fields.fail("name", "must be " + json_text(expected_name));
    shard.size_bytes = fields.size("bytes");
    shard.header_bytes = fields.size("header_bytes");
    shard.num_episodes = fields.size("episodes");
    shard.header_crc32c = fields.checksum("header_crc32c");
    shard.blocks = parse_blocks(fields.text("blocks"), where + ".blocks");
    if (shard.header_bytes > shard.size_bytes) fields.fail("header_bytes", "is larger than the shard");
    const std::int64_t data = shard.size_bytes - shard.header_bytes;
    if (static_cast<std::int64_t>(shard.blocks.size()) != data / block_bytes + (data % block_bytes != 0 ? 1 : 0)) {
        fields.fail("blocks", "must have one checksum for each MiB");
    }
    return shard;
}

FileEntry parse_file(const Json& json, const std::string& where, std::uint32_t generation) {
    const Fields fields(json, where);
    FileEntry file{fields.text("name"), fields.size("bytes"), fields.checksum("crc32c")};
    if (generation_of(file.name) != generation) fields.fail("name", "is no name of this generation");
    return file;
}

/// The text without the checksum, which has been compared.
std::string check_sum(std::string_view text, std::string_view path) {
    if (text.size() < checksum_bytes) throw FormatError(std::string(path) + ": is not a manifest");
    const std::string_view body = text.substr(0, text.size() - checksum_bytes);
    // Compared as text: every bit of the file counts.
    if (text.substr(body.size()) != ",\"crc32c\":\"" + hex(crc32c(body)) + "\"}\n") {
        throw FormatError(std::string(path) + ": is damaged: its checksum is wrong");
    }
    return std::string(body) + "}";
}

}  // namespace

std::string problem_of(const CacheStream& stream) {
    if (stream.name.empty() || stream.name.size() > 256) return "must have a name of 1 to 256 bytes";
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (std::any_of(stream.name.begin(), stream.name.end(), control)) return "must have a name of printable characters";
    if (stream.name.starts_with("__")) return "must have a name that does not begin with __";
    if (stream.shape.size() > TensorView::max_rank - 1) return "must have rows of at most 7 dimensions";
    std::int64_t bytes = size_bytes(stream.dtype);
    for (const std::int64_t extent : stream.shape) {
        if (extent < 1 || __builtin_mul_overflow(bytes, extent, &bytes)) return "must have rows of 1 to 2^63 bytes";
    }
    if (!stream.is_encoded()) return "";
    if (!is_among(picture_codecs, stream.codec) && !is_among(video_codecs, stream.codec)) {
        return "must have a codec among jpeg, png, h264, hevc, av1, vp9 and mpeg4, got " + json_text(stream.codec);
    }
    if (stream.ragged || (stream.kind != "image" && stream.kind != "depth")) {
        return "must be an image or depth to have a codec";
    }
    return "";
}

std::string version_text(std::span<const CacheStream> streams) {
    std::int64_t version = format_version;
    for (const CacheStream& stream : streams) version = std::max(version, version_of(stream));
    return std::to_string(version);
}

std::string shard_name(std::size_t i, std::uint32_t generation) {
    std::string number = std::to_string(i);
    if (number.size() < 5) number.insert(0, 5 - number.size(), '0');
    return "shard-" + number + "-" + hex(generation) + ".safetensors";
}

std::size_t shard_number(std::string_view name) {
    constexpr std::string_view begin = "shard-";
    std::size_t number = 0;
    if (name.starts_with(begin)) std::from_chars(name.data() + begin.size(), name.data() + name.size(), number);
    return number;
}

std::uint32_t generation_of(std::string_view name) {
    const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    const std::size_t dot = name.find('.');
    const std::size_t dash = name.substr(0, dot).rfind('-');
    if (name.size() > 100 || dot == std::string_view::npos || dash == std::string_view::npos) return 0;
    const std::string_view stem = name.substr(0, dash);
    const std::string_view extension = name.substr(dot + 1);
    std::uint32_t generation = 0;
    const std::string_view digits = name.substr(dash + 1, dot - dash - 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), generation, 16);
    if (stem.empty() || extension.empty() || digits != hex(generation)) return 0;
    const bool plain = std::all_of(stem.begin(), stem.end(), [&](char c) { return is_plain(c) || c == '-'; }) &&
                       std::all_of(extension.begin(), extension.end(), is_plain);
    return plain ? generation : 0;
}

std::string blocks_text(const std::vector<std::uint32_t>& blocks) {
    std::string text;
    text.reserve(blocks.size() * 8);
    for (const std::uint32_t block : blocks) text += hex(block);
    return text;
}

std::vector<std::uint32_t> parse_blocks(std::string_view text, std::string_view what) {
    std::vector<std::uint32_t> blocks(text.size() / 8);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const char* digits = text.data() + i * 8;
        if (std::from_chars(digits, digits + 8, blocks[i], 16).ptr != digits + 8) blocks[i] = 0;
        if (text.substr(i * 8, 8) != hex(blocks[i]))
            throw FormatError(std::string(what) + " must contain only checksums");
    }
    if (text.size() % 8 != 0) throw FormatError(std::string(what) + " must contain only checksums");
    return blocks;
}

Manifest parse_manifest(std::string_view text, std::string_view path) {
    const Json json = parse_json(check_sum(text, path), path);
    const Fields fields(json, std::string(path) + ": manifest");
    if (fields.text("format") != format_name) fields.fail("format", "must be " + json_text(format_name));
    const std::int64_t version = fields.size("version");
    if (version < format_version || version > video_version) {
        fields.fail("version", "must be from " + std::to_string(format_version) + " to " +
                                   std::to_string(video_version) + ", got " + std::to_string(version) +
                                   ": written by a newer RoboCache");
    }
    if (fields.size("block_bytes") != block_bytes) fields.fail("block_bytes", "must be " + std::to_string(block_bytes));
    Manifest manifest;
    const std::int64_t generation = fields.size("generation");
    if (generation < 1 || generation > UINT32_MAX) fields.fail("generation", "must be from 1 to 2^32 - 1");
    manifest.generation = static_cast<std::uint32_t>(generation);
    manifest.fingerprint = fields.text("fingerprint");
    manifest.metadata = fields.object_text("metadata");
    std::set<std::string> names;
    for (const Json& stream : fields.list("streams")) {
        manifest.streams.push_back(parse_stream(stream, item(path, "streams", manifest.streams.size())));
        if (!names.insert(manifest.streams.back().name).second) fields.fail("streams", "has a name twice");
        if (const std::int64_t needed = version_of(manifest.streams.back()); version < needed) {
            fields.fail("version", "must be " + std::to_string(needed) + " with codec " +
                                       json_text(manifest.streams.back().codec));
        }
    }
    std::int64_t num_episodes = 0;
    std::int64_t total = 0;
    for (const Json& shard : fields.list("shards")) {
        const std::size_t i = manifest.shards.size();
        manifest.shards.push_back(parse_shard(shard, item(path, "shards", i), shard_name(i, manifest.generation)));
        if (__builtin_add_overflow(num_episodes, manifest.shards.back().num_episodes, &num_episodes) ||
            __builtin_add_overflow(total, manifest.shards.back().size_bytes, &total)) {
            fields.fail("shards", "are too large");
        }
    }
    if (fields.size("episodes") != num_episodes) fields.fail("episodes", "must be the sum of those of the shards");
    for (const Json& file : fields.list("files")) {
        manifest.files.push_back(parse_file(file, item(path, "files", manifest.files.size()), manifest.generation));
    }
    return manifest;
}

std::string write_manifest(const Manifest& manifest) {
    std::int64_t num_episodes = 0;
    for (const ShardEntry& shard : manifest.shards) num_episodes += shard.num_episodes;
    std::string text = "{\"format\":" + json_text(format_name) + ",\"version\":" + version_text(manifest.streams) +
                       ",\"generation\":" + std::to_string(manifest.generation) +
                       ",\"fingerprint\":" + json_text(manifest.fingerprint) +
                       ",\"episodes\":" + std::to_string(num_episodes) +
                       ",\"block_bytes\":" + std::to_string(block_bytes) + ",\"metadata\":" + manifest.metadata;
    const auto list = [&](std::string_view key, const auto& items, const auto& write) {
        text += "," + json_text(key) + ":[";
        for (std::size_t i = 0; i < items.size(); ++i) text += (i > 0 ? ",{" : "{") + write(items[i]) + "}";
        text += ']';
    };
    list("streams", manifest.streams, [](const CacheStream& stream) {
        std::string shape;
        for (const std::int64_t extent : stream.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
        return "\"name\":" + json_text(stream.name) + ",\"dtype\":" + json_text(name(stream.dtype)) + ",\"shape\":[" +
               shape + "],\"kind\":" + json_text(stream.kind) + ",\"ragged\":" + (stream.ragged ? "true" : "false") +
               (stream.is_encoded() ? ",\"codec\":" + json_text(stream.codec) : "") + ",\"details\":" + stream.details;
    });
    list("shards", manifest.shards, [](const ShardEntry& shard) {
        return "\"name\":" + json_text(shard.name) + ",\"bytes\":" + std::to_string(shard.size_bytes) +
               ",\"header_bytes\":" + std::to_string(shard.header_bytes) +
               ",\"episodes\":" + std::to_string(shard.num_episodes) + ",\"header_crc32c\":\"" +
               hex(shard.header_crc32c) + "\",\"blocks\":\"" + blocks_text(shard.blocks) + "\"";
    });
    list("files", manifest.files, [](const FileEntry& file) {
        return "\"name\":" + json_text(file.name) + ",\"bytes\":" + std::to_string(file.size_bytes) + ",\"crc32c\":\"" +
               hex(file.crc32c) + "\"";
    });
    return text + ",\"crc32c\":\"" + hex(crc32c(text)) + "\"}\n";
}

}  // namespace robocache::cache_detail
