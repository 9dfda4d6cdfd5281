// Memory on a GPU for frameworks that do not lend theirs, and what a stream does. Without CUDA code: Unsupported.
#pragma once

#include <cstddef>

#include "robocache/tensor.hpp"

namespace robocache {

[[nodiscard]] void* allocate_cuda(std::size_t bytes, int device);

/// Waits for all work on the device first: whoever used the memory last may have done so on any stream.
void free_cuda(void* data) noexcept;

void wait_for_stream(int device, CudaQueue stream);

/// The device that is current in this thread.
[[nodiscard]] int current_device();

/// Whether work on the stream is captured in a graph; false on the CPU.
[[nodiscard]] bool is_capturing(Device device, CudaQueue stream);

}  // namespace robocache
