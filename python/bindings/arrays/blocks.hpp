// Memory of large outputs on the host. A block that nothing refers to any more is used again: the system zeroes every
// page of new memory: 3 % of the CPU time of a batch of four cameras on a quiet machine, half of it on a busy one.
#pragma once

#include <cstddef>

namespace robocache::python {

/// Outputs from here on are worth a block.
inline constexpr std::size_t least_block_bytes = std::size_t{4} << 20;

struct Block {
    void* data;
    std::size_t size_bytes;
};

/// Not initialized, aligned to a huge page; null where there is no memory.
[[nodiscard]] Block* take_block(std::size_t bytes) noexcept;

/// Of a block that nothing refers to, from any thread, with or without the GIL. The system may have its pages until it
/// is taken again.
void give_block(Block* block) noexcept;

}  // namespace robocache::python
