// Memory with random access, in huge pages if the system grants them: a TLB entry and a page fault cover 2 MB instead
// of 4 KB.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace robocache {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Not initialized, aligned to 64 bytes, for std::free; null where there is no more. In huge pages from `least` bytes
/// on.
inline void* allocate_pages(std::size_t bytes, std::size_t least) noexcept {
    if (bytes > SIZE_MAX / 2) return nullptr;
    const std::size_t unit = bytes >= least ? huge_page : 64;
    const std::size_t rounded = bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
    void* made = std::aligned_alloc(unit, rounded);
    if (made != nullptr && unit == huge_page) (void)madvise(made, rounded, MADV_HUGEPAGE);  // refused: small ones do
    return made;
}

/// For a std::vector whose elements are read in any order.
template <class T>
struct HugePageAllocator {
    using value_type = T;

    HugePageAllocator() = default;
    template <class Other>
    explicit HugePageAllocator(const HugePageAllocator<Other>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t count) {
        static_assert(alignof(T) <= 64);
        if (count > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
        void* made = allocate_pages(count * sizeof(T), huge_page / 8);  // a smaller table is not worth a page
        if (made == nullptr) throw std::bad_alloc();
        return static_cast<T*>(made);
    }

    void deallocate(T* given, std::size_t) noexcept { std::free(given); }

    [[nodiscard]] bool operator==(const HugePageAllocator&) const = default;
};

}  // namespace robocache
