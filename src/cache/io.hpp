// Every change the cache makes on disk goes through FileIo, so that tests can fail, cut short or kill any of them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace robocache {

/// Calls return what the system call returns, or -errno. The default does the real thing.
class FileIo {
public:
    virtual ~FileIo() = default;

    virtual int make_folder(const std::filesystem::path& path);  ///< 0 also where it is there already
    virtual int create(const std::filesystem::path& path);       ///< a new file to write: its descriptor
    virtual ssize_t write(int file, const void* data, std::size_t bytes, off_t offset);  ///< may write fewer bytes
    virtual int sync(int file);
    virtual int close(int file);
    virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
    virtual int unlink(const std::filesystem::path& path);
    virtual int sync_folder(const std::filesystem::path& path);
};

namespace cache_detail {

/// Throws FormatError "<path>: cannot <action>: <text of the error>".
[[noreturn]] void fail_io(const std::filesystem::path& path, std::string_view action, int error);

/// Writes a whole file under `path` + ".tmp", syncs it, renames it to `path` and syncs the folder. On an error the
/// temporary file is removed as far as the disk allows it, and `path` is what it was.
void write_file(FileIo& io, const std::filesystem::path& path, std::span<const std::string_view> parts);

/// Holds a folder against other writers until it is destroyed; the system lets go where the process is killed.
class FolderLock {
public:
    explicit FolderLock(const std::filesystem::path& folder);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int folder_ = -1;
};

/// A file mapped for reading. Symbolic links and what is not a regular file are refused.
class MappedFile {
public:
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    [[nodiscard]] std::string_view bytes() const { return {data_, size_}; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    /// Reads the file again, by read calls: an unreadable disk or a file cut short is an error, not a signal. Where the
    /// path names another file by now, the mapping is read instead.
    class Copy {
    public:
        explicit Copy(const MappedFile& file);
        ~Copy();
        Copy(const Copy&) = delete;
        Copy& operator=(const Copy&) = delete;
        /// Bytes `[begin, end)` as they are on disk; the view lives until the next call.
        [[nodiscard]] std::string_view read(std::size_t begin, std::size_t end);

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
};

/// A small file as text. Throws FormatError where it is larger than `limit_bytes`.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes);

}  // namespace cache_detail
}  // namespace robocache
