// Lines of JSON, each with a checksum that continues the one of the line before.
#include "cache/files/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/files/mapped_file.hpp"
#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/format/manifest.hpp"
#include "robocache/errors.hpp"

namespace robocache::cache_detail {
namespace {

constexpr std::string_view format_name = "robocache journal";
constexpr std::int64_t format_version = 1;
constexpr std::size_t max_journal_bytes = std::size_t{256} << 20;
constexpr std::size_t checksum_bytes = 9;  // 8 digits and a space
constexpr mode_t unfinished_mode = 0200;   // of a journal whose first line may not be whole

std::string first_line(std::uint32_t generation, std::string_view fingerprint) {
    return "{\"format\":" + json_text(format_name) + ",\"version\":" + std::to_string(format_version) +
           ",\"generation\":" + std::to_string(generation) + ",\"fingerprint\":" + json_text(fingerprint) + "}";
}

/// Adds what a line says; false where it says nothing that is known.
bool apply(const Json& line, JournalEntries& entries) {
    if (const Json* format = line.find("format")) {
        const auto* name = format->get_if<std::string>();
        const Json* version = line.find("version");
        const Json* generation = line.find("generation");
        const Json* fingerprint = line.find("fingerprint");
        const bool is_whole = name != nullptr && *name == format_name && version != nullptr && generation != nullptr &&
                              fingerprint != nullptr && version->get_if<std::int64_t>() != nullptr &&
                              *version->get_if<std::int64_t>() == format_version &&
                              generation->get_if<std::int64_t>() != nullptr &&
                              fingerprint->get_if<std::string>() != nullptr;
        const std::int64_t number = is_whole ? *generation->get_if<std::int64_t>() : 0;
        if (number < 1 || number > UINT32_MAX) return false;
        entries.generation = static_cast<std::uint32_t>(number);
        entries.fingerprint = *fingerprint->get_if<std::string>();
        entries.creates.clear();
        entries.replaces.clear();
        return true;
    }
    if (entries.generation == 0) return false;
    // Only names that a writer of this generation gives, whatever the file says.
    if (const Json* created = line.find("creates")) {
        const auto* name = created->get_if<std::string>();
        if (name == nullptr || generation_of(*name) != entries.generation) return false;
        entries.creates.push_back(*name);
        return true;
    }
    if (const Json* left = line.find("leaves")) {
        const auto* name = left->get_if<std::string>();
        if (name != nullptr) std::erase(entries.creates, *name);
        return name != nullptr;
    }
    const Json* replaced = line.find("replaces");
    const auto* names = replaced == nullptr ? nullptr : replaced->get_if<Json::Array>();
    if (names == nullptr) return false;
    for (const Json& item : *names) {
        const auto* name = item.get_if<std::string>();
        if (name == nullptr || generation_of(*name) == 0 || generation_of(*name) >= entries.generation) return false;
        entries.replaces.push_back(*name);
    }
    return true;
}

/// Whether this is a journal whose maker was killed before its first line was on disk: `unfinished_mode` says so.
bool is_unfinished(const LockedFolder& folder) {
    struct stat info{};
    if (::fstatat(folder.descriptor(), journal_name, &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
    return S_ISREG(info.st_mode) && (info.st_mode & 07777) == unfinished_mode && info.st_uid == ::geteuid();
}

}  // namespace

JournalEntries parse_journal(std::string_view text, std::string_view path) {
    JournalEntries entries;
    while (entries.size_bytes < text.size()) {
        const std::string_view rest = text.substr(entries.size_bytes);
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos || end < checksum_bytes) break;
        const std::string_view json = rest.substr(checksum_bytes, end - checksum_bytes);
        const std::uint32_t crc = crc32c(json, entries.crc32c);
        if (rest.substr(0, checksum_bytes) != hex(crc) + " ") break;
        if (!apply(parse_json(json, path), entries)) break;
        entries.size_bytes += end + 1;
        entries.crc32c = crc;
    }
    if (entries.generation == 0) {
        throw FormatError(std::string(path) +
                          ": has the name of RoboCache's journal but is not one; move it away to write here");
    }
    return entries;
}

Journal::~Journal() {
    if (file_ >= 0) (void)folder_.io().close(file_);
}

std::optional<JournalEntries> Journal::read(LockedFolder& folder) {
    if (!folder.has(journal_name)) return std::nullopt;
    if (is_unfinished(folder)) {
        (void)folder.remove(journal_name);
        folder.sync();
        return std::nullopt;
    }
    const std::filesystem::path path = folder.path_of(journal_name);
    return parse_journal(read_file(folder.descriptor(), path, max_journal_bytes), path.string());
}

std::string Journal::line_of(const std::string& json) {
    crc_ = crc32c(json, crc_);
    return hex(crc_) + " " + json + "\n";
}

/// The file appears with its first line, or not at all.
void Journal::make(std::string_view line) {
    FileIo& io = folder_.io();
    const std::filesystem::path path = folder_.path_of(journal_name);
    const std::string_view parts[] = {line};
    const auto taken = [&] {
        throw FormatError(path.string() + ": already exists, and was not written by this ingest");
    };
    file_ = io.create_unnamed(folder_.descriptor(), file_mode);
    if (file_ >= 0) {
        write_all(io, file_, path, parts);
        if (const int result = io.sync(file_); result < 0) fail_io(path, "sync", -result);
        const int result = io.link(file_, folder_.descriptor(), journal_name);
        if (result == -EEXIST) taken();
        if (result >= 0) {
            folder_.sync();
            return;
        }
        (void)io.close(std::exchange(file_, -1));  // no /proc, or a file system that does not link such files
    }
    // Under its name at once. Until the first line is on disk, its mode tells it from a file of somebody else.
    file_ = io.create(folder_.descriptor(), journal_name, unfinished_mode);
    if (file_ == -EEXIST) taken();
    if (file_ < 0) fail_io(path, "create", -file_);
    try {
        write_all(io, file_, path, parts);
        if (const int result = io.sync(file_); result < 0) fail_io(path, "sync", -result);
        if (const int result = io.set_mode(file_, 0644); result < 0) fail_io(path, "change the mode", -result);
        folder_.sync();
    } catch (...) {
        (void)io.close(std::exchange(file_, -1));
        (void)io.unlink(folder_.descriptor(), journal_name);
        throw;
    }
}

void Journal::begin(std::uint32_t generation, std::string_view fingerprint, const std::optional<JournalEntries>& left) {
    const std::string json = first_line(generation, fingerprint);
    (void)parse_json(json, folder_.path_of(journal_name).string());  // nothing is written that cannot be read back
    if (left) {
        resume(*left);
        created_.clear();
        append(json);
        return;
    }
    crc_ = 0;
    const std::string line = line_of(json);
    make(line);
    size_ = static_cast<off_t>(line.size());
}

void Journal::resume(const JournalEntries& left) {
    const std::filesystem::path path = folder_.path_of(journal_name);
    file_ = folder_.io().open(folder_.descriptor(), journal_name);
    if (file_ < 0) fail_io(path, "open", -file_);
    size_ = static_cast<off_t>(left.size_bytes);
    crc_ = left.crc32c;
    created_.insert(left.creates.begin(), left.creates.end());
    if (const int result = folder_.io().resize(file_, size_); result < 0) fail_io(path, "cut", -result);
}

void Journal::append(const std::string& json) {
    const std::filesystem::path path = folder_.path_of(journal_name);
    const std::string line = line_of(json);
    const std::string_view parts[] = {line};
    write_all(folder_.io(), file_, path, parts, size_);
    if (const int result = folder_.io().sync(file_); result < 0) fail_io(path, "sync", -result);
    size_ += static_cast<off_t>(line.size());
}

void Journal::creates(const std::string& name) {
    if (created_.insert(name).second) append("{\"creates\":" + json_text(name) + "}");
}

void Journal::leaves(const std::string& name) {
    if (created_.erase(name) > 0) append("{\"leaves\":" + json_text(name) + "}");
}

void Journal::replaces(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ",") + json_text(name);
    append("{\"replaces\":[" + list + "]}");
}

void Journal::remove() {
    if (file_ >= 0) (void)folder_.io().close(std::exchange(file_, -1));
    (void)folder_.remove(journal_name);
    folder_.sync();
}

}  // namespace robocache::cache_detail
