// Memory of the host that NumPy arrays and arrays of other frameworks share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>

#include "robocache/tensor.hpp"

namespace robocache::python {

/// Aligned to 64 bytes, as JAX needs it to take arrays without a copy; not initialized. It has the buffer protocol, so
/// NumPy arrays can be made of it. Large memory is in a block (blocks.hpp). Any thread may free it without the GIL: JAX
/// drops arrays on threads of its own, also while Python shuts down.
class HostMemory {
public:
    /// data() is null if there is not so much memory.
    explicit HostMemory(std::size_t size_bytes);

    [[nodiscard]] char* data() const { return data_.get(); }
    [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
    [[nodiscard]] const std::shared_ptr<char>& owner() const { return data_; }

private:
    std::shared_ptr<char> data_;
    std::size_t size_bytes_;
};

/// A DLPack capsule of the array at `view`, without gaps and without its dimensions below `first`. Who takes it keeps
/// `memory` alive.
[[nodiscard]] nanobind::object dlpack_capsule(const TensorView& view, int first, std::shared_ptr<char> memory);

/// A HostMemory of Python. Throws MemoryError.
[[nodiscard]] nanobind::object new_host_memory(std::size_t size_bytes);

}  // namespace robocache::python
