// Memory that is about to become an output.
#pragma once

#include <cstddef>

namespace robocache::python {

/// Host memory that is about to be written for the first time costs a fault for every page: asks for large ones, where
/// there are enough bytes for it.
void prefer_huge_pages(void* data, std::size_t bytes);

}  // namespace robocache::python
