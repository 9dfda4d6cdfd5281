// Any bytes as a manifest and as a journal: as they are, and with the checksums they would need.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cache/files/journal.hpp"
#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/format/manifest.hpp"

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

/// No line makes a journal name a file that no writer of its generation creates or replaces.
void try_journal(std::string_view text) {
    try {
        const JournalEntries entries = parse_journal(text, "fuzz");
        require(entries.size_bytes <= text.size());
        for (const std::string& name : entries.creates) require(generation_of(name) == entries.generation);
        for (const std::string& name : entries.replaces) require(generation_of(name) < entries.generation);
    } catch (const FormatError&) {
    }
}

/// Each line of the text as one of a journal, with its checksum.
std::string journal_of(std::string_view text) {
    std::string journal;
    std::uint32_t crc = 0;
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        crc = crc32c(line, crc);
        journal += hex(crc) + " " + std::string(line) + "\n";
    }
    return journal;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try_manifest(text);
    try_json(text);
    // A seed is a whole manifest: what stands before its checksum is the body.
    const std::string body(text.substr(0, text.rfind(",\"crc32c\":\"")));
    try_journal(text);
    try_journal(journal_of(text));
    try_manifest(body + ",\"crc32c\":\"" + hex(crc32c(body)) + "\"}\n");
    return 0;
}
