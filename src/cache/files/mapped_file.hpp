// Files mapped for reading; a mapped page that cannot be read raises an error instead of SIGBUS.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace robocache::cache_detail {

/// One mapping, as the signal handler sees it.
struct MappedRange {
    std::atomic<std::uintptr_t> begin{0};  // 0: not in use
    std::atomic<std::uintptr_t> end{0};
    std::atomic<bool> is_damaged{false};  // a page could not be read; it reads as zeros since
};

/// Note [SIGBUS]
/// Reading a mapped page that its file no longer has (it was cut short, or the disk fails) raises SIGBUS. While a guard
/// is alive, the handler puts a page of zeros in the place of such a page of a MappedFile and marks the file as
/// damaged; whoever holds the guard must look at that mark (require_whole) before the data is used. All threads are
/// guarded: batches are read by several. Without a guard, and for every other address, the signal goes to the handler
/// that was there before, or ends the process: zeros that nobody asks about are worse than an end.
class MappingGuard {
public:
    MappingGuard();
    ~MappingGuard();
    MappingGuard(const MappingGuard&) = delete;
    MappingGuard& operator=(const MappingGuard&) = delete;

    /// Pages that could not be read so far, in all files.
    [[nodiscard]] static std::uint64_t num_faults();
};

/// A file mapped for reading. Symbolic links and what is not a regular file are refused.
class MappedFile {
public:
    explicit MappedFile(const std::filesystem::path& path);
    /// The file of that name in an open folder.
    MappedFile(int folder, const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    [[nodiscard]] std::string_view bytes() const { return {data_, size_}; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    /// Throws FormatError where a page could not be read since the file was mapped.
    void require_readable() const;
    /// The same, and where the file is shorter by now: the rest of its last page would read as zeros.
    void require_whole() const;

    /// Reads the file again, by read calls: an unreadable disk or a file cut short is an error, not a signal. Where the
    /// path names another file by now, the mapping is read instead.
    class Copy {
    public:
        explicit Copy(const MappedFile& file);
        ~Copy();
        Copy(const Copy&) = delete;
        Copy& operator=(const Copy&) = delete;
        /// Bytes `[begin, end)` as they are on disk, fewer where it is cut; the view lives until the next call.
        [[nodiscard]] std::string_view read(std::size_t begin, std::size_t end);
        /// The same into memory of the caller; returns the number of bytes. Safe to call from several threads.
        std::size_t read_into(char* into, std::size_t begin, std::size_t end) const;

    private:
        const MappedFile& file_;
        int descriptor_ = -1;
        std::vector<char> buffer_;
    };

private:
    std::filesystem::path path_;
    const char* data_ = nullptr;
    std::size_t size_ = 0;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    MappedRange* range_ = nullptr;
};

/// vm.max_map_count: how many mappings the system allows a process.
[[nodiscard]] std::size_t max_map_count();

/// A small file as text; `folder` may be AT_FDCWD. Throws FormatError where it is larger than `limit_bytes`.
[[nodiscard]] std::string read_file(int folder, const std::filesystem::path& path, std::size_t limit_bytes);

/// A folder that is open: O_PATH is enough to open files in it, to sync it takes O_RDONLY.
class OpenFolder {
public:
    OpenFolder(const std::filesystem::path& path, int flags);
    ~OpenFolder();
    OpenFolder(const OpenFolder&) = delete;
    OpenFolder& operator=(const OpenFolder&) = delete;
    [[nodiscard]] int descriptor() const { return folder_; }

private:
    int folder_ = -1;
};

}  // namespace robocache::cache_detail
