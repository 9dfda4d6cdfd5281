// A small fork-safe thread pool.
//
// Note [Fork]
// PyTorch's DataLoader forks workers from a process whose pool may be running. Threads do not survive fork and their
// mutexes may be copied in a locked state. So the child forgets the pool (leaks it, touching none of its members) and
// runs on one thread until it asks for more. The only lock that lives across fork is the one around the pool pointer,
// which the handlers hold while forking.
#include "core/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace {

struct Job {
    detail::RangeBody body;
    void* context;
    std::int64_t count;
    std::int64_t grain;
    std::atomic<std::int64_t> next{0};
    std::mutex error_mutex{};
    std::exception_ptr error{};

    void work() noexcept {
        for (;;) {
            const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            try {
                body(context, begin, std::min(begin + grain, count));
            } catch (...) {
                const std::lock_guard lock(error_mutex);
                if (!error) error = std::current_exception();
                next.store(count, std::memory_order_relaxed);
            }
        }
    }
};

class ThreadPool {
public:
    explicit ThreadPool(int num_helpers) {
        try {
            for (int i = 0; i < num_helpers; ++i) threads_.emplace_back([this] { help(); });
        } catch (const std::exception&) {
            // The system has no more threads to give: those that were made do the work.
        }
    }

    ~ThreadPool() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    /// False if another call is using the pool: the caller then does the work alone.
    bool run(Job& job) {
        const std::unique_lock busy(submit_, std::try_to_lock);
        if (!busy) return false;
        {
            const std::lock_guard lock(mutex_);
            job_ = &job;
            ++generation_;
        }
        wake_.notify_all();
        job.work();
        // A helper that has not woken up by now finds no job: nobody waits for it.
        std::unique_lock lock(mutex_);
        job_ = nullptr;
        idle_.wait(lock, [this] { return helpers_inside_ == 0; });
        return true;
    }

private:
    void help() {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stop_ || (job_ != nullptr && generation_ != seen); });
            if (stop_) return;
            seen = generation_;
            Job& job = *job_;
            ++helpers_inside_;
            lock.unlock();
            job.work();
            lock.lock();
            if (--helpers_inside_ == 0) idle_.notify_one();
        }
    }

    std::mutex submit_;  // held by the one call that uses the pool
    std::mutex mutex_;   // guards everything below
    std::condition_variable wake_;
    std::condition_variable idle_;
    Job* job_ = nullptr;
    std::uint64_t generation_ = 0;
    int helpers_inside_ = 0;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

int default_num_threads() {
    if (const char* text = std::getenv("ROBOCACHE_NUM_THREADS"); text != nullptr && *text != '\0') {
        char* end = nullptr;
        const long count = std::strtol(text, &end, 10);
        if (*end != '\0' || count < 1 || count > 4096) {
            throw InvalidArgument(std::string("ROBOCACHE_NUM_THREADS must be an integer from 1 to 4096, got '") + text +
                                  "'");
        }
        return static_cast<int>(count);
    }
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
    return std::max(1U, std::thread::hardware_concurrency());
}

struct State {
    std::mutex mutex;
    std::shared_ptr<ThreadPool> pool;
    int num_threads = 0;  // 0: not decided yet
};

// Never destroyed: helpers may still be waiting when the process exits.
State& state() {
    static State& instance = *[] {
        auto* created = new State;
        pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                       [] {
                           State& inherited = state();
                           new std::shared_ptr<ThreadPool>(std::move(inherited.pool));  // leaked, see Note [Fork]
                           inherited.pool.reset();
                           inherited.num_threads = 1;
                           inherited.mutex.unlock();
                       });
        return created;
    }();
    return instance;
}

int decided_num_threads(State& s) {
    if (s.num_threads == 0) s.num_threads = default_num_threads();
    return s.num_threads;
}

/// The pool, made on first use; null if one thread is all there is.
std::shared_ptr<ThreadPool> current_pool() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (decided_num_threads(s) > 1 && !s.pool) s.pool = std::make_shared<ThreadPool>(s.num_threads - 1);
    return s.pool;
}

}  // namespace

int num_threads() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return decided_num_threads(s);
}

void set_num_threads(int count) {
    if (count < 1 || count > 4096) {
        throw InvalidArgument("set_num_threads: count must be from 1 to 4096, got " + std::to_string(count));
    }
    std::shared_ptr<ThreadPool> old;  // joined outside the lock
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (count != s.num_threads) old = std::move(s.pool);
    s.num_threads = count;
}

void detail::watch_forks() {
    (void)state();
}

void detail::parallel_for(std::int64_t count, std::int64_t grain, RangeBody body, void* context) {
    if (count <= 0) return;
    if (count <= grain) return body(context, 0, count);
    const std::shared_ptr<ThreadPool> pool = current_pool();
    Job job{body, context, count, std::max<std::int64_t>(grain, 1)};
    if (!pool || !pool->run(job)) job.work();
    if (job.error) std::rethrow_exception(job.error);
}

}  // namespace robocache
