// parallel_for on a small thread pool that survives fork(). Note [Fork] in thread_pool.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace robocache {

namespace detail {
using RangeBody = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t grain, RangeBody body, void* context);
/// From now on a forked child detects that it is one. The first use of the pool does this too.
void watch_forks();

struct Job;
class ThreadPool;

class BackgroundJob {
public:
    BackgroundJob(std::int64_t count, std::int64_t grain, RangeBody body, void* context);
    ~BackgroundJob();
    BackgroundJob(const BackgroundJob&) = delete;
    BackgroundJob& operator=(const BackgroundJob&) = delete;
    [[nodiscard]] bool is_done() const;
    void wait() const;

private:
    std::shared_ptr<ThreadPool> pool_;
    std::unique_ptr<Job> job_;
};
}  // namespace detail

/// Calls body(begin, end) over disjoint parts of [0, count), each of about `grain` items, and returns when all are
/// done. The calling thread works too; alone when there is one part or one thread, or while the pool is at earlier
/// calls. The first exception thrown by a body reaches the caller, and so does an interrupt (interrupt.hpp).
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    detail::parallel_for(
        count, grain,
        [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<std::remove_const_t<Plain>*>(&body));
}

/// The same while the caller goes on, by the pool alone (one thread of it where num_threads() is 1), after what began
/// earlier. The destructor drops what is not begun, and waits for the rest.
template <class Body>
class Background {
public:
    Background(std::int64_t count, std::int64_t grain, Body body)
        : body_(std::move(body)), job_(count, grain, call, &body_) {}

    /// Whether wait() returns at once.
    [[nodiscard]] bool is_done() const { return job_.is_done(); }
    /// Works too. Throws what a body has thrown first; or an interrupt, after which the job goes on.
    void wait() const { job_.wait(); }

private:
    static void call(void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<Body*>(context))(begin, end);
    }

    Body body_;
    detail::BackgroundJob job_;
};

}  // namespace robocache
