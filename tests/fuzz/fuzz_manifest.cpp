// Any bytes as a manifest: as they are, and with the checksum they would need.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cache/crc32c.hpp"
#include "cache/json.hpp"
#include "cache/manifest.hpp"

using namespace robocache;
using namespace robocache::cache_detail;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

/// What is read and written again is the same.
void try_manifest(std::string_view text) {
    try {
        const std::string written = write_manifest(parse_manifest(text, "fuzz"));
        require(write_manifest(parse_manifest(written, "fuzz")) == written);
    } catch (const FormatError&) {
    }
}

void try_json(std::string_view text) {
    try {
        const std::string written = write_json(parse_json(text, "fuzz"));
        require(write_json(parse_json(written, "fuzz")) == written);
    } catch (const FormatError&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try_manifest(text);
    try_json(text);
    // A seed is a whole manifest: what stands before its checksum is the body.
    const std::string body(text.substr(0, text.rfind(",\"crc32c\":\"")));
    try_manifest(body + ",\"crc32c\":\"" + hex(crc32c(body)) + "\"}\n");
    return 0;
}
