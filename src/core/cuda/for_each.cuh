// One kernel for every loop over an index whose steps do not work together.
#pragma once

#include <cstdint>

#include "core/cuda/launch.hpp"
#include "core/cuda/overlap.cuh"

namespace robocache {

constexpr int for_each_threads = 256;

template <class Body>
struct IndexLoop {
    Body body;
    std::int64_t count;
};

template <class Body>
__global__ __launch_bounds__(for_each_threads) void for_each_index(const __grid_constant__ IndexLoop<Body> loop) {
    wait_for_earlier_work();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * for_each_threads + threadIdx.x;
    if (i < loop.count) loop.body(i);
}

/// Calls body(i) on the device for i in [0, count), a thread for each. Body: a struct with a const `operator()`, passed
/// by value. `what` names the launch in errors.
template <class Body>
void for_each(std::int64_t count, const Body& body, cudaStream_t stream, const char* what) {
    if (count <= 0) return;
    const Launch launch{(count + for_each_threads - 1) / for_each_threads, for_each_threads};
    launch_overlapped(&for_each_index<Body>, launch, stream, IndexLoop<Body>{body, count}, what);
}

}  // namespace robocache
