// Mapped files and the SIGBUS handler that guards them. Note [SIGBUS] in mapped_file.hpp.
#include "cache/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <mutex>
#include <utility>

#include "cache/io.hpp"
#include "robocache/errors.hpp"

namespace robocache::cache_detail {
namespace {

// ---- ranges: a list that a signal handler can walk while others change it -------------------------------------------

constexpr std::size_t chunk_ranges = 1024;

struct RangeChunk {
    MappedRange ranges[chunk_ranges];
    std::atomic<RangeChunk*> next{nullptr};
};

/// Never destroyed: a mapping may outlive every static object.
struct Ranges {
    RangeChunk first;
    std::mutex mutex;  // of what follows
    std::vector<MappedRange*> unused;
    RangeChunk* last = &first;
    bool first_is_listed = false;
};

Ranges& ranges() {
    static Ranges* const all = new Ranges;
    return *all;
}

MappedRange* take_range(const char* data, std::size_t size) {
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    if (all.unused.empty()) {
        RangeChunk* chunk = &all.first;
        if (all.first_is_listed) {
            chunk = new RangeChunk;
            all.last->next.store(chunk, std::memory_order_release);
            all.last = chunk;
        }
        all.first_is_listed = true;
        all.unused.reserve(all.unused.size() + chunk_ranges);
        for (MappedRange& range : chunk->ranges) all.unused.push_back(&range);
    }
    MappedRange* range = all.unused.back();
    all.unused.pop_back();
    range->is_damaged.store(false);
    range->end.store(reinterpret_cast<std::uintptr_t>(data) + size);
    range->begin.store(reinterpret_cast<std::uintptr_t>(data));
    return range;
}

void give_back(MappedRange* range) {
    range->begin.store(0);
    Ranges& all = ranges();
    const std::lock_guard lock(all.mutex);
    all.unused.push_back(range);
}

// ---- the handler ----------------------------------------------------------------------------------------------------

std::atomic<int> guards{0};
std::atomic<std::uint64_t> num_faults{0};
std::atomic<RangeChunk*> first_chunk{nullptr};
std::atomic<const struct sigaction*> handler_before{nullptr};
std::atomic<pid_t> passing_thread{0};
std::uintptr_t page_bytes = 4096;

MappedRange* range_of(std::uintptr_t address) {
    for (RangeChunk* chunk = first_chunk.load(); chunk != nullptr; chunk = chunk->next.load()) {
        for (MappedRange& range : chunk->ranges) {
            const std::uintptr_t begin = range.begin.load();
            if (begin != 0 && begin <= address && address < range.end.load()) return &range;
        }
    }
    return nullptr;
}

/// To the handler that was there before. The default action follows when the instruction runs again.
void pass_on(int number, siginfo_t* info, void* context) {
    const struct sigaction* before = handler_before.load();
    const bool is_plain = before == nullptr || (before->sa_flags & SA_SIGINFO) == 0;
    const bool is_default = is_plain && (before == nullptr || before->sa_handler == SIG_DFL);
    const pid_t thread = ::gettid();
    if (is_default || passing_thread.load() == thread) {  // or handlers that call each other in a ring
        std::signal(number, SIG_DFL);
        if (info->si_code <= 0) std::raise(number);  // sent by somebody: no instruction runs again
        return;
    }
    pid_t nobody = 0;
    const bool is_marked = passing_thread.compare_exchange_strong(nobody, thread);
    if (!is_plain) {
        before->sa_sigaction(number, info, context);
    } else if (before->sa_handler != SIG_IGN) {
        before->sa_handler(number);
    }
    if (is_marked) passing_thread.store(0);
}

/// Only calls that are safe here: loads, stores, mmap.
void on_sigbus(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    MappedRange* range = info->si_code > 0 && guards.load() > 0 ? range_of(address) : nullptr;
    if (range != nullptr) {
        range->is_damaged.store(true);
        num_faults.fetch_add(1);
        auto* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (::mmap(page, page_bytes, PROT_READ, flags, -1, 0) == MAP_FAILED) range = nullptr;
    }
    if (range == nullptr) pass_on(number, info, context);
    errno = error;
}

/// Others may have put theirs in its place since: faulthandler, a debugger.
void require_handler() {
    struct sigaction now{};
    if (::sigaction(SIGBUS, nullptr, &now) != 0 || ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_sigbus))
        return;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (::sigaction(SIGBUS, nullptr, &now) != 0 || ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_sigbus))
        return;
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    first_chunk.store(&ranges().first);
    handler_before.store(new struct sigaction(now));  // kept: a handler may be reading the one before
    struct sigaction ours{};
    ours.sa_sigaction = on_sigbus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    ::sigaction(SIGBUS, &ours, nullptr);
}

// ---- files ----------------------------------------------------------------------------------------------------------

/// Opens a regular file without following a link in its last part and without waiting for a pipe.
int open_regular(int folder, const std::filesystem::path& path, struct stat& info) {
    const std::filesystem::path name = folder == AT_FDCWD ? path : path.filename();
    const int file = ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
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

MappingGuard::MappingGuard() {
    require_handler();
    guards.fetch_add(1);
}

MappingGuard::~MappingGuard() {
    guards.fetch_sub(1);
}

std::uint64_t MappingGuard::num_faults() {
    return cache_detail::num_faults.load();
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(AT_FDCWD, path) {}

MappedFile::MappedFile(int folder, const std::filesystem::path& path) : path_(path) {
    struct stat info{};
    const int file = open_regular(folder, path, info);
    size_ = static_cast<std::size_t>(info.st_size);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    void* data = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (data == MAP_FAILED && error == ENOMEM) {
        throw FormatError(path.string() +
                          ": cannot map: no memory, or more mapped files than vm.max_map_count allows; larger "
                          "shard_bytes make fewer shards");
    }
    if (data == MAP_FAILED) fail_io(path, "map", error);
    data_ = static_cast<const char*>(data);
    if (data_ == nullptr) return;
    try {
        range_ = take_range(data_, size_);
    } catch (...) {
        ::munmap(data, size_);
        throw;
    }
}

MappedFile::~MappedFile() {
    if (range_ != nullptr) give_back(range_);
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

void MappedFile::require_readable() const {
    if (range_ == nullptr || !range_->is_damaged.load()) return;
    throw FormatError(path_.string() + ": was cut short or became unreadable since it was opened");
}

void MappedFile::require_whole() const {
    require_readable();
    struct stat info{};
    if (::lstat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return;
    if (static_cast<std::size_t>(info.st_size) >= size_) return;
    throw FormatError(path_.string() + ": was cut short since it was opened: it has " + std::to_string(info.st_size) +
                      " bytes, and had " + std::to_string(size_));
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

std::size_t MappedFile::Copy::read_into(char* into, std::size_t begin, std::size_t end) const {
    if (descriptor_ >= 0) return read_at(descriptor_, into, end - begin, begin, file_.path_);
    const MappingGuard guard;
    file_.bytes().copy(into, end - begin, begin);
    file_.require_readable();
    return end - begin;
}

std::string_view MappedFile::Copy::read(std::size_t begin, std::size_t end) {
    buffer_.resize(end - begin);
    return {buffer_.data(), read_into(buffer_.data(), begin, end)};
}

std::string read_file(int folder, const std::filesystem::path& path, std::size_t limit_bytes) {
    struct stat info{};
    const int file = open_regular(folder, path, info);
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

OpenFolder::OpenFolder(const std::filesystem::path& path, int flags)
    : folder_(::open(path.c_str(), flags | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ < 0) fail_io(path, "open", errno);
}

OpenFolder::~OpenFolder() {
    ::close(folder_);
}

}  // namespace robocache::cache_detail
