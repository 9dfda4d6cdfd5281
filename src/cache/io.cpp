// The real file system calls.
#include "cache/io.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

int FileIo::create(const std::filesystem::path& path) {
    return result_or_errno(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666));
}

ssize_t FileIo::write(int file, const void* data, std::size_t bytes, off_t offset) {
    const ssize_t written = ::pwrite(file, data, bytes, offset);
    return written < 0 ? -errno : written;
}

int FileIo::sync(int file) {
    return result_or_errno(::fsync(file));
}

int FileIo::close(int file) {
    return result_or_errno(::close(file));
}

int FileIo::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
    return result_or_errno(::rename(from.c_str(), to.c_str()));
}

int FileIo::unlink(const std::filesystem::path& path) {
    return result_or_errno(::unlink(path.c_str()));
}

int FileIo::sync_folder(const std::filesystem::path& path) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -errno;
    const int result = result_or_errno(::fsync(folder));
    ::close(folder);
    return result;
}

namespace cache_detail {
namespace {

constexpr std::size_t largest_write = std::size_t{64} << 20;

void write_all(FileIo& io, int file, const std::filesystem::path& path, std::span<const std::string_view> parts) {
    off_t offset = 0;
    for (std::string_view part : parts) {
        while (!part.empty()) {
            const std::size_t asked = std::min(part.size(), largest_write);
            const ssize_t written = io.write(file, part.data(), asked, offset);
            if (written == -EINTR) continue;
            if (written < 0) fail_io(path, "write", static_cast<int>(-written));
            if (written == 0) fail_io(path, "write", EIO);  // no progress: do not try for ever
            part.remove_prefix(static_cast<std::size_t>(written));
            offset += written;
            detail::poll_interrupt();  // the file has its temporary name, under which it is removed
        }
    }
}

}  // namespace

void fail_io(const std::filesystem::path& path, std::string_view action, int error) {
    throw FormatError(path.string() + ": cannot " + std::string(action) + ": " +
                      std::generic_category().message(error));
}

void write_file(FileIo& io, const std::filesystem::path& path, std::span<const std::string_view> parts) {
    std::filesystem::path temporary = path;
    temporary += ".tmp";
    int file = io.create(temporary);
    if (file < 0) fail_io(temporary, "create", -file);
    try {
        write_all(io, file, temporary, parts);
        if (const int result = io.sync(file); result < 0) fail_io(temporary, "sync", -result);
        if (const int result = io.close(std::exchange(file, -1)); result < 0) fail_io(temporary, "close", -result);
        if (const int result = io.rename(temporary, path); result < 0) fail_io(path, "rename", -result);
    } catch (...) {
        if (file >= 0) (void)io.close(file);
        (void)io.unlink(temporary);
        throw;
    }
    if (const int result = io.sync_folder(path.parent_path()); result < 0) {
        fail_io(path.parent_path(), "sync", -result);
    }
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ < 0) fail_io(folder, "open", errno);
    if (::flock(folder_, LOCK_EX | LOCK_NB) == 0) return;
    const int error = errno;
    ::close(folder_);
    if (error == EWOULDBLOCK) throw FormatError(folder.string() + ": another ingest is writing here");
    fail_io(folder, "lock", error);
}

FolderLock::~FolderLock() {
    ::close(folder_);
}

namespace {

/// Opens a regular file without following a link in its last part and without waiting for a pipe.
int open_regular(const std::filesystem::path& path, struct stat& info) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0 && errno == ELOOP) throw FormatError(path.string() + ": is a symbolic link, which a cache never has");
    if (file < 0) fail_io(path, "open", errno);
    if (::fstat(file, &info) == 0 && S_ISREG(info.st_mode)) return file;
    ::close(file);
    throw FormatError(path.string() + ": is not a regular file");
}

std::size_t read_at(int file, char* data, std::size_t bytes, std::size_t offset, const std::filesystem::path& path) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t got = ::pread(file, data + done, bytes - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_io(path, "read", errno);
        if (got == 0) break;
        done += static_cast<std::size_t>(got);
    }
    return done;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
    struct stat info{};
    const int file = open_regular(path, info);
    size_ = static_cast<std::size_t>(info.st_size);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    void* data = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (data == MAP_FAILED) fail_io(path, "map", error);
    data_ = static_cast<const char*>(data);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::Copy::Copy(const MappedFile& file) : file_(file) {
    struct stat info{};
    const int descriptor = ::open(file.path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) return;
    const bool same = ::fstat(descriptor, &info) == 0 && info.st_dev == file.device_ && info.st_ino == file.inode_;
    if (same) {
        descriptor_ = descriptor;
    } else {
        ::close(descriptor);
    }
}

MappedFile::Copy::~Copy() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

std::string_view MappedFile::Copy::read(std::size_t begin, std::size_t end) {
    if (descriptor_ < 0) return file_.bytes().substr(begin, end - begin);
    buffer_.resize(end - begin);
    return {buffer_.data(), read_at(descriptor_, buffer_.data(), end - begin, begin, file_.path_)};
}

std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes) {
    struct stat info{};
    const int file = open_regular(path, info);
    std::string text;
    try {
        const auto size = static_cast<std::size_t>(info.st_size);
        if (size > limit_bytes) {
            throw FormatError(path.string() + ": has " + std::to_string(size) + " bytes, more than " +
                              std::to_string(limit_bytes));
        }
        text.resize(size);
        text.resize(read_at(file, text.data(), size, 0, path));
    } catch (...) {
        ::close(file);
        throw;
    }
    ::close(file);
    return text;
}

}  // namespace cache_detail
}  // namespace robocache
