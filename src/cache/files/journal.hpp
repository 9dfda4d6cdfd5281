// The journal of an ingest: the exact names of the files it creates, written before they are. Format: docs/cache.md.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cache/files/io.hpp"

namespace robocache::cache_detail {

constexpr const char* journal_name = "manifest.json.next";

/// What a journal on disk says.
struct JournalEntries {
    std::uint32_t generation = 0;  // that is being written
    std::string fingerprint;
    std::vector<std::string> creates;   // files of that generation that may exist
    std::vector<std::string> replaces;  // files of the version before, to be removed after the commit
    std::size_t size_bytes = 0;         // of the lines that are whole; more may follow, torn
    std::uint32_t crc32c = 0;           // of the last of them
};

/// Throws FormatError where the first line is not one of a journal. Lines after the first bad one do not count.
[[nodiscard]] JournalEntries parse_journal(std::string_view text, std::string_view path);

/// One journal a folder. A file that it names is ours; no other file is ever removed.
class Journal {
public:
    explicit Journal(LockedFolder& folder) : folder_(folder) {}
    ~Journal();
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;

    /// What a stopped ingest left; nothing where there is no journal. Removes one that was killed while it was made.
    [[nodiscard]] static std::optional<JournalEntries> read(LockedFolder& folder);

    /// Begins a generation. `left`: in the journal that is there already, whose files have all been removed.
    void begin(std::uint32_t generation, std::string_view fingerprint, const std::optional<JournalEntries>& left);
    /// Goes on with the journal that is there.
    void resume(const JournalEntries& left);
    [[nodiscard]] bool has_begun() const { return file_ >= 0; }

    /// On disk before the file is created.
    void creates(const std::string& name);
    /// The name was taken by somebody else's file after all.
    void leaves(const std::string& name);
    void replaces(const std::vector<std::string>& names);
    /// The last thing of an ingest.
    void remove();

private:
    void make(std::string_view first_line);
    void append(const std::string& json);
    [[nodiscard]] std::string line_of(const std::string& json);

    LockedFolder& folder_;
    int file_ = -1;
    off_t size_ = 0;
    std::uint32_t crc_ = 0;
    std::set<std::string, std::less<>> created_;
};

}  // namespace robocache::cache_detail
