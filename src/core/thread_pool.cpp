// A small fork-safe thread pool.
//
// Note [Fork]
// PyTorch's DataLoader forks workers from a process whose pool may be running. Threads do not survive fork and their
// mutexes may be copied in a locked state. So the child forgets the pool (leaks it, touching none of its members) and
// runs on one thread until set_num_threads. The only lock that lives across fork is the one around the pool pointer,
// which the handlers hold while forking.
#include "core/thread_pool.hpp"

#include <pthread.h>
#include <unistd.h>

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

#include "core/interrupt.hpp"
#include "core/limits.hpp"
#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace detail {

/// Items that threads take part by part.
struct Job {
    RangeBody body;
    void* context;
    std::int64_t count;
    std::int64_t grain;
    std::atomic<std::int64_t> next{0};
    int num_inside = 0;  // helpers; guarded by the pool
    std::mutex error_mutex{};
    std::exception_ptr error{};

    [[nodiscard]] std::int64_t num_parts() const noexcept { return (count + grain - 1) / grain; }
    [[nodiscard]] bool has_parts_left() const noexcept { return next.load(std::memory_order_relaxed) < count; }

    /// Does one part; false where none is left.
    bool work_once() noexcept {
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return false;
        try {
            body(context, begin, std::min(begin + grain, count));
        } catch (...) {
            fail();
        }
        return true;
    }

    void work() noexcept {
        while (work_once()) {
        }
    }

    /// The same by the thread that called: an interrupt ends the job as an exception of a body does.
    void work_interruptibly() noexcept {
        while (work_once()) {
            try {
                poll_interrupt();
            } catch (...) {
                fail();
            }
        }
    }

    /// Keeps the exception being handled, if it is the first.
    void fail() noexcept {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        drop();
    }

    /// What nobody has begun is not done.
    void drop() noexcept { next.store(count, std::memory_order_relaxed); }
};

class ThreadPool {
public:
    explicit ThreadPool(int num_helpers) {
        try {
            for (int i = 0; i < num_helpers; ++i) threads_.emplace_back([this] { help(); });
        } catch (const std::exception&) {
            // ignored: the system has no more threads to give; those that were made do the work.
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

    /// Helpers take parts of it once no earlier job has any left. As many are woken as there are parts for.
    void submit(Job& job, std::int64_t num_parts) {
        {
            const std::lock_guard lock(mutex_);
            jobs_.push_back(&job);
        }
        if (num_parts >= static_cast<std::int64_t>(threads_.size())) return wake_.notify_all();
        for (std::int64_t i = 0; i < num_parts; ++i) wake_.notify_one();
    }

    /// No thread begins a part of it any more: waits for those that did.
    void finish(Job& job) {
        std::unique_lock lock(mutex_);
        std::erase(jobs_, &job);  // a helper that has not come by now does not find it: nobody waits for it
        left_.wait(lock, [&] { return job.num_inside == 0; });
    }

    [[nodiscard]] bool is_done(const Job& job) {
        const std::lock_guard lock(mutex_);
        return job.num_inside == 0 && !job.has_parts_left();
    }

    /// Not in a child of the process that made it, where its threads are not.
    [[nodiscard]] bool is_here() const noexcept { return process_ == getpid(); }

private:
    void help() {
        std::unique_lock lock(mutex_);
        for (;;) {
            Job* job = nullptr;
            wake_.wait(lock, [&] { return stop_ || (job = first_with_parts()) != nullptr; });
            if (stop_) return;
            ++job->num_inside;
            lock.unlock();
            job->work();
            lock.lock();
            if (--job->num_inside == 0) left_.notify_all();
        }
    }

    [[nodiscard]] Job* first_with_parts() const {
        const auto found =
            std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) { return job->has_parts_left(); });
        return found == jobs_.end() ? nullptr : *found;
    }

    const pid_t process_ = getpid();
    std::mutex mutex_;  // guards everything below, and Job::num_inside
    std::condition_variable wake_;
    std::condition_variable left_;
    std::vector<Job*> jobs_;  // the oldest first
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace detail

namespace {

using detail::Job;
using detail::ThreadPool;

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
    return cores_of_rank(process_limits(), local_ranks());
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

/// The pool, made on first use. It has a helper thread even with num_threads 1, for background tasks.
std::shared_ptr<ThreadPool> current_pool() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (!s.pool) s.pool = std::make_shared<ThreadPool>(std::max(decided_num_threads(s) - 1, 1));
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
    Job job{body, context, count, std::max<std::int64_t>(grain, 1)};
    if (num_threads() > 1) {
        const std::shared_ptr<ThreadPool> pool = current_pool();
        pool->submit(job, job.num_parts() - 1);
        job.work_interruptibly();
        pool->finish(job);
    } else {
        job.work_interruptibly();
    }
    if (job.error) std::rethrow_exception(job.error);
}

detail::BackgroundJob::BackgroundJob(std::int64_t count, std::int64_t grain, RangeBody body, void* context)
    : pool_(current_pool()), job_(new Job{body, context, count, std::max<std::int64_t>(grain, 1)}) {
    pool_->submit(*job_, job_->num_parts());
}

detail::BackgroundJob::~BackgroundJob() {
    if (pool_->is_here()) {
        job_->drop();
        pool_->finish(*job_);
    } else {
        // Leaked, see Note [Fork]. Without memory for it the process ends: joining threads of the parent would hang.
        new std::shared_ptr<ThreadPool>(std::move(pool_));  // NOLINT(bugprone-unhandled-exception-at-new)
    }
}

bool detail::BackgroundJob::is_done() const {
    return pool_->is_done(*job_);
}

void detail::BackgroundJob::wait() const {
    // An interrupt ends the waiting, not the job: the pool goes on with it, and it can be waited for again.
    while (job_->work_once()) poll_interrupt();
    pool_->finish(*job_);
    if (job_->error) std::rethrow_exception(job_->error);
}

}  // namespace robocache
