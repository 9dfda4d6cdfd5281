// parallel_for on a small thread pool that survives fork(). Note [Fork] in thread_pool.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

namespace robocache {

namespace detail {
using RangeBody = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t grain, RangeBody body, void* context);
/// From now on a forked child knows that it is one. The first use of the pool does this too.
void watch_forks();
}  // namespace detail

/// Calls body(begin, end) over disjoint parts of [0, count), each of about `grain` items, and returns when all are
/// done. Runs on the calling thread alone when there is one part, one thread, or the pool is busy (nested or
/// concurrent calls). The first exception thrown by a body reaches the caller.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    detail::parallel_for(
        count, grain,
        [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<std::remove_const_t<Plain>*>(&body));
}

}  // namespace robocache
