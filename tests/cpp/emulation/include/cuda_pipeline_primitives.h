// Asynchronous copies of a thread, for the emulated GPU.
#pragma once

#include "cuda_runtime.h"

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes) {
    emulation::start_copy(to, from, bytes);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(int) {
    emulation::finish_copies();
}
