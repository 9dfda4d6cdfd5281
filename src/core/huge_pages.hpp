// Memory for tables that are read at random.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace robocache {

/// For a std::vector whose elements are read in any order. A large one lies in huge pages, where the system gives them
/// to who asks: one entry of the TLB covers 2 MB instead of 4 KB.
template <class T>
struct HugePageAllocator {
    using value_type = T;

    HugePageAllocator() = default;
    template <class Other>
    explicit HugePageAllocator(const HugePageAllocator<Other>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t count) {
        const std::size_t bytes = count * sizeof(T);
        if (bytes < least) return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
        const std::size_t whole_pages = (bytes + page - 1) / page * page;
        void* made = ::operator new(whole_pages, std::align_val_t{page});
        (void)madvise(made, whole_pages, MADV_HUGEPAGE);  // where it is refused, small pages do
        return static_cast<T*>(made);
    }

    void deallocate(T* given, std::size_t count) noexcept {
        ::operator delete(given, std::align_val_t{count * sizeof(T) < least ? alignof(T) : page});
    }

    [[nodiscard]] bool operator==(const HugePageAllocator&) const = default;

private:
    static constexpr std::size_t page = std::size_t{2} << 20;
    static constexpr std::size_t least = page / 8;  // what is smaller is not worth a page of its own
};

}  // namespace robocache
