// The real file system calls, and the folder that a writer holds.
#include "cache/files/io.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/interrupt.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace {

int result_or_errno(int result) {
    return result < 0 ? -errno : result;
}

}  // namespace

int FileIo::make_folder(const std::filesystem::path& path) {
    if (::mkdir(path.c_str(), 0777) == 0) return 0;
    const int error = errno;
    struct stat info{};
    return error == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) ? 0 : -error;
}

int FileIo::create(int folder, const std::string& name, mode_t mode) {
    return result_or_errno(::openat(folder, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, mode));
}

int FileIo::create_unnamed(int folder, mode_t mode) {
    return result_or_errno(::openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
}

int FileIo::link(int file, int folder, const std::string& name) {
    const std::string opened = "/proc/self/fd/" + std::to_string(file);
    return result_or_errno(::linkat(AT_FDCWD, opened.c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW));
}

int FileIo::open(int folder, const std::string& name) {
    return result_or_errno(::openat(folder, name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

ssize_t FileIo::write(int file, const void* data, std::size_t bytes, off_t offset) {
    const ssize_t written = ::pwrite(file, data, bytes, offset);
    return written < 0 ? -errno : written;
}

int FileIo::resize(int file, off_t bytes) {
    return result_or_errno(::ftruncate(file, bytes));
}

int FileIo::set_mode(int file, mode_t mode) {
    return result_or_errno(::fchmod(file, mode));
}

int FileIo::sync(int file) {
    return result_or_errno(::fsync(file));
}

int FileIo::close(int file) {
    return result_or_errno(::close(file));
}

int FileIo::rename(int folder, const std::string& from, const std::string& to, bool replace) {
    if (replace) return result_or_errno(::renameat(folder, from.c_str(), folder, to.c_str()));
    constexpr unsigned no_replace = 1;  // RENAME_NOREPLACE, which is not in every libc
    const long result = ::syscall(SYS_renameat2, folder, from.c_str(), folder, to.c_str(), no_replace);
    if (result == 0 || (errno != EINVAL && errno != ENOSYS)) return result_or_errno(static_cast<int>(result));
    // A file system without it: a link is never made over another file.
    if (::linkat(folder, from.c_str(), folder, to.c_str(), 0) != 0) return -errno;
    return result_or_errno(::unlinkat(folder, from.c_str(), 0));
}

int FileIo::unlink(int folder, const std::string& name) {
    return result_or_errno(::unlinkat(folder, name.c_str(), 0));
}

int FileIo::sync_folder(int folder) {
    return result_or_errno(::fsync(folder));
}

namespace cache_detail {
namespace {

constexpr std::size_t largest_write = std::size_t{64} << 20;

/// Whether both are one file or folder.
bool is_same(const struct stat& a, const struct stat& b) {
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

void write_all(FileIo& io, int file, const std::filesystem::path& path, std::span<const std::string_view> parts,
               off_t offset) {
    for (std::string_view part : parts) {
        while (!part.empty()) {
            const std::size_t num_bytes = std::min(part.size(), largest_write);
            const ssize_t written = io.write(file, part.data(), num_bytes, offset);
            if (written == -EINTR) continue;
            if (written < 0) fail_io(path, "write", static_cast<int>(-written));
            if (written == 0) fail_io(path, "write", EIO);  // no progress: do not try for ever
            part.remove_prefix(static_cast<std::size_t>(written));
            offset += written;
            detail::poll_interrupt();  // the file has its temporary name, under which it is removed
        }
    }
}

void fail_io(const std::filesystem::path& path, std::string_view action, int error) {
    throw FormatError(path.string() + ": cannot " + std::string(action) + ": " +
                      std::generic_category().message(error));
}

bool sync_names(FileIo& io, int folder, const std::filesystem::path& path) {
    const int result = io.sync_folder(folder);
    if (result >= 0) return true;
    // Network and FUSE file systems that have no call for it.
    if (result == -EINVAL || result == -ENOTSUP || result == -EBADF || result == -ENOSYS) return false;
    fail_io(path, "sync", -result);
}

LockedFolder::LockedFolder(FileIo& io, const std::filesystem::path& path)
    : io_(io), path_(path), folder_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ < 0) fail_io(path, "open", errno);
    try {
        if (::flock(folder_, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) throw FormatError(path.string() + ": another ingest is writing here");
            fail_io(path, "lock", errno);
        }
        require_in_place();
    } catch (...) {
        ::close(folder_);
        throw;
    }
}

LockedFolder::~LockedFolder() {
    ::close(folder_);
}

std::vector<std::string> LockedFolder::names() const {
    const int again = ::openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* stream = again < 0 ? nullptr : ::fdopendir(again);
    if (stream == nullptr) {
        const int error = errno;
        if (again >= 0) ::close(again);
        fail_io(path_, "list", error);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
        errno = 0;
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) fail_io(path_, "list", error);
    return names;
}

bool LockedFolder::has(const std::string& name) const {
    struct stat info{};
    if (::fstatat(folder_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return true;
    if (errno != ENOENT) fail_io(path_of(name), "look at", errno);
    return false;
}

void LockedFolder::require_in_place() const {
    struct stat held{};
    struct stat named{};
    if (::fstat(folder_, &held) != 0) fail_io(path_, "look at", errno);
    if (::stat(path_.c_str(), &named) == 0 && is_same(held, named)) return;
    throw FormatError(path_.string() + ": the folder was moved or replaced during the ingest; nothing was committed");
}

bool LockedFolder::write_new(const std::string& name, mode_t mode, std::span<const std::string_view> parts) const {
    const std::filesystem::path path = path_of(name);
    int file = io_.create(folder_, name, mode);
    if (file == -EEXIST) return false;
    if (file < 0) fail_io(path, "create", -file);
    try {
        write_all(io_, file, path, parts);
        if (const int result = io_.sync(file); result < 0) fail_io(path, "sync", -result);
        if (const int result = io_.close(std::exchange(file, -1)); result < 0) fail_io(path, "close", -result);
    } catch (...) {
        if (file >= 0) (void)io_.close(file);
        (void)io_.unlink(folder_, name);
        throw;
    }
    return true;
}

bool LockedFolder::remove(const std::string& name) const {
    struct stat info{};
    if (::fstatat(folder_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return false;
        fail_io(path_of(name), "look at", errno);
    }
    if (!S_ISREG(info.st_mode)) return false;
    if (const int result = io_.unlink(folder_, name); result < 0) fail_io(path_of(name), "remove", -result);
    return true;
}

void LockedFolder::sync() {
    if (sync_names(io_, folder_, path_) || !notes_.empty()) return;
    notes_.push_back(path_.string() +
                     ": this file system cannot sync folders: after a power loss the newest version may be missing; a "
                     "killed process loses nothing");
}

}  // namespace cache_detail
}  // namespace robocache
