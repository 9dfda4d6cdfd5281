// Mapped files and the SIGBUS handler that guards them. Note [SIGBUS] in mapped_file.hpp.
#include "cache/files/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <memory>
#include <mutex>
#include <utility>

#include "cache/files/io.hpp"
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

/// Handlers that were replaced, the newest first. Never freed: a signal may be reading one.
struct HandlerBefore {
    struct sigaction action{};
    HandlerBefore* next = nullptr;
};
std::atomic<HandlerBefore*> handler_before{nullptr};
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

void on_sigbus(int number, siginfo_t* info, void*);

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_sigbus;
}

/// Makes the handler before this one the current one again: the instruction that failed runs again, and it is called as
/// if this one had never been there. The next guard puts this one back.
void pass_on(int number, const siginfo_t* info) {
    struct sigaction now{};
    if (::sigaction(number, nullptr, &now) == 0 && is_ours(now)) {  // else another thread has done it
        HandlerBefore* before = handler_before.load();
        while (before != nullptr && !handler_before.compare_exchange_weak(before, before->next)) {
        }
        struct sigaction none{};
        none.sa_handler = SIG_DFL;
        ::sigaction(number, before != nullptr ? &before->action : &none, nullptr);
    }
    if (info->si_code <= 0) ::raise(number);  // sent by somebody: no instruction runs again
}

/// Only calls that are safe here: loads, stores, mmap, sigaction.
void on_sigbus(int number, siginfo_t* info, void*) {
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
    if (range == nullptr) pass_on(number, info);
    errno = error;
}

/// Others may have put theirs in its place since: faulthandler, a debugger.
void require_handler() {
    struct sigaction now{};
    if (::sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (::sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    first_chunk.store(&ranges().first);
    auto* before = new HandlerBefore{now, handler_before.load()};
    while (!handler_before.compare_exchange_weak(before->next, before)) {
    }
    struct sigaction ours{};
    ours.sa_sigaction = on_sigbus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    ::sigaction(SIGBUS, &ours, nullptr);
}

std::atomic<std::size_t> num_mapped{0};

// ---- files ----------------------------------------------------------------------------------------------------------

/// Opens a regular file without following a link in its last part and without waiting for a pipe.
int open_regular(int folder, const std::filesystem::path& path, struct stat& info) {
    const std::filesystem::path name = folder == AT_FDCWD ? path : path.filename();
    const int file = ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0 && errno == ELOOP)
        throw FormatError(path.string() + ": is a symbolic link, which a cache must not contain");
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

std::size_t max_map_count() {
    static const std::size_t count = [] {
        std::size_t allowed = 0;
        std::ifstream("/proc/sys/vm/max_map_count") >> allowed;
        return allowed > 0 ? allowed : 65530;
    }();
    return count;
}

std::uint64_t MappingGuard::num_faults() {
    return cache_detail::num_faults.load();
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(AT_FDCWD, path) {}

MappedFile::MappedFile(int folder, const std::filesystem::path& path) : path_(path) {
    // Before the system refuses: then memory could not be allocated either, here and elsewhere.
    if (num_mapped.load() >= max_map_count() / 4 * 3) {
        throw FormatError(
            path.string() + ": cannot map: " + std::to_string(num_mapped.load()) +
            " files are mapped, and vm.max_map_count allows few more; larger shard_bytes make fewer shards, "
            "and a Loader with tier=\"memory\" maps few of them");
    }
    struct stat info{};
    const int file = open_regular(folder, path, info);
    size_ = static_cast<std::size_t>(info.st_size);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    void* data = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (data == MAP_FAILED) fail_io(path, "map", error);
    data_ = static_cast<const char*>(data);
    if (data_ == nullptr) return;
    try {
        range_ = take_range(data_, size_);
        num_mapped.fetch_add(1);
    } catch (...) {
        ::munmap(data, size_);
        throw;
    }
}

MappedFile::~MappedFile() {
    if (range_ != nullptr) {
        give_back(range_);
        num_mapped.fetch_sub(1);
    }
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

void MappedFile::require_readable() const {
    if (range_ == nullptr || !range_->is_damaged.load()) return;
    throw FormatError(path_.string() + ": was truncated or became unreadable after it was opened");
}

void MappedFile::require_whole() const {
    require_readable();
    struct stat info{};
    if (::lstat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return;
    if (static_cast<std::size_t>(info.st_size) >= size_) return;
    throw FormatError(path_.string() + ": was truncated after it was opened: it has " + std::to_string(info.st_size) +
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
