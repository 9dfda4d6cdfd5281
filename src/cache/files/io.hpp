// FileIo: all disk writes of the cache, so that tests can make any of them fail, write partially, or end the process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace robocache {

/// Calls return what the system call returns, or -errno. `folder` is an open descriptor and `name` a file in it: a
/// folder that is moved meanwhile stays the one that is written to.
class FileIo {
public:
    virtual ~FileIo() = default;

    virtual int make_folder(const std::filesystem::path& path);  ///< 0 also where it is there already
    /// A new file to write: its descriptor. -EEXIST where anything has that name.
    virtual int create(int folder, const std::string& name, mode_t mode);
    virtual int create_unnamed(int folder, mode_t mode);              ///< O_TMPFILE; many file systems have it
    virtual int link(int file, int folder, const std::string& name);  ///< names an unnamed file, or -EEXIST
    virtual int open(int folder, const std::string& name);            ///< an existing file, to write
    virtual ssize_t write(int file, const void* data, std::size_t bytes, off_t offset);  ///< may write fewer bytes
    virtual int resize(int file, off_t bytes);
    virtual int set_mode(int file, mode_t mode);
    virtual int sync(int file);
    virtual int close(int file);
    virtual int rename(int folder, const std::string& from, const std::string& to, bool replace);
    virtual int unlink(int folder, const std::string& name);
    virtual int sync_folder(int folder);
};

namespace cache_detail {

constexpr mode_t shard_mode = 0444;  // nobody writes to a finished file by accident
constexpr mode_t file_mode = 0666;   // less the umask

/// Throws FormatError "<path>: cannot <action>: <text of the error>".
[[noreturn]] void fail_io(const std::filesystem::path& path, std::string_view action, int error);

/// Writes all bytes from `offset` on. `path` is for messages.
void write_all(FileIo& io, int file, const std::filesystem::path& path, std::span<const std::string_view> parts,
               off_t offset = 0);

/// A folder that is held against other writers until it is destroyed; the system lets go where the process is killed.
/// Everything goes through the descriptor that is locked.
class LockedFolder {
public:
    /// Throws FormatError where the folder cannot be opened or another writer has it.
    LockedFolder(FileIo& io, const std::filesystem::path& path);
    ~LockedFolder();
    LockedFolder(const LockedFolder&) = delete;
    LockedFolder& operator=(const LockedFolder&) = delete;

    [[nodiscard]] FileIo& io() const { return io_; }
    [[nodiscard]] int descriptor() const { return folder_; }
    [[nodiscard]] std::filesystem::path path_of(const std::string& name) const { return path_ / name; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    /// What is in it, but for "." and "..".
    [[nodiscard]] std::vector<std::string> names() const;
    [[nodiscard]] bool has(const std::string& name) const;  ///< of any kind; links are not followed
    /// Throws FormatError where the path names another folder by now.
    void require_in_place() const;

    /// Writes a whole new file and syncs it; false where the name is taken. On an error the file is removed as far as
    /// the disk allows it.
    [[nodiscard]] bool write_new(const std::string& name, mode_t mode, std::span<const std::string_view> parts) const;
    /// Removes a regular file; false where there is none of that name, or something else than a regular file.
    bool remove(const std::string& name) const;
    /// Syncs the names. Where the file system cannot sync folders, notes() says so.
    void sync();
    [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

private:
    FileIo& io_;
    std::filesystem::path path_;
    int folder_ = -1;
    std::vector<std::string> notes_;
};

/// Syncs a folder; false where its file system cannot do that.
bool sync_names(FileIo& io, int folder, const std::filesystem::path& path);

}  // namespace cache_detail
}  // namespace robocache
