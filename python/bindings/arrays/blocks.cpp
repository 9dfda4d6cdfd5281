// A few unused blocks in slots that are exchanged atomically: no lock that a fork could copy while it is held.
#include "arrays/blocks.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/huge_pages.hpp"

namespace robocache::python {
namespace {

std::array<std::atomic<Block*>, 16> unused{};  // a batch has an output for each camera
std::atomic<unsigned> replaced{0};

void drop(Block* block) noexcept {
    if (block == nullptr) return;
    std::free(block->data);
    delete block;
}

bool fits(const Block& block, std::size_t bytes) {
    return block.size_bytes >= bytes && block.size_bytes - bytes <= bytes / 8 + huge_page;
}

void keep(Block* block) noexcept {
    for (std::atomic<Block*>& slot : unused) {
        Block* none = nullptr;
        if (slot.compare_exchange_strong(none, block)) return;
    }
    drop(unused.at(replaced.fetch_add(1) % unused.size()).exchange(block));
}

}  // namespace

Block* take_block(std::size_t bytes) noexcept {
    for (std::atomic<Block*>& slot : unused) {
        if (slot.load(std::memory_order_relaxed) == nullptr) continue;
        Block* found = slot.exchange(nullptr);
        if (found == nullptr) continue;
        if (fits(*found, bytes)) return found;
        keep(found);
    }
    Block* made = new (std::nothrow) Block{nullptr, bytes};
    if (made == nullptr) return nullptr;
    made->data = allocate_pages(bytes, least_block_bytes);
    if (made->data == nullptr) {
        for (std::atomic<Block*>& slot : unused) drop(slot.exchange(nullptr));
        made->data = allocate_pages(bytes, least_block_bytes);
    }
    if (made->data != nullptr) return made;
    delete made;
    return nullptr;
}

void give_block(Block* block) noexcept {
    const std::size_t rounded = (block->size_bytes + huge_page - 1) / huge_page * huge_page;
    (void)madvise(block->data, rounded, MADV_FREE);  // takes no page away before memory is short
    keep(block);
}

}  // namespace robocache::python
