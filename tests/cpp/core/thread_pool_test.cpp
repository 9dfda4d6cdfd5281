// The pool: every item once, exceptions, nesting, many callers, fork.
#include "core/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace {

/// Counts how often each of `count` items is visited.
std::vector<int> visits(std::int64_t count, std::int64_t grain) {
    std::vector<int> seen(static_cast<std::size_t>(count));
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    return seen;
}

using Job = Background<std::function<void(std::int64_t, std::int64_t)>>;

class ThreadPoolTest : public testing::Test {
protected:
    void SetUp() override { set_num_threads(4); }
};

TEST_F(ThreadPoolTest, EveryItemIsVisitedOnce) {
    for (const std::int64_t count : {0, 1, 7, 1000, 12345}) {
        for (const std::int64_t grain : {1, 3, 1000000}) {
            EXPECT_EQ(visits(count, grain), std::vector<int>(static_cast<std::size_t>(count), 1));
        }
    }
}

TEST_F(ThreadPoolTest, MoreThanOneThreadWorks) {
    std::atomic<int> inside{0};
    std::atomic<bool> together{false};
    parallel_for(4, 1, [&](std::int64_t, std::int64_t) {
        ++inside;
        for (int i = 0; i < 20000 && !together; ++i) {
            if (inside.load() > 1) together = true;
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        --inside;
    });
    EXPECT_TRUE(together);
}

TEST_F(ThreadPoolTest, AnExceptionReachesTheCallerAndThePoolLivesOn) {
    const auto failing = [](std::int64_t begin, std::int64_t) {
        if (begin == 500) throw std::runtime_error("item 500");
    };
    EXPECT_THROW(parallel_for(1000, 1, failing), std::runtime_error);
    EXPECT_EQ(visits(1000, 1), std::vector<int>(1000, 1));
}

TEST_F(ThreadPoolTest, NestedCallsDoNotDeadlock) {
    std::atomic<int> total{0};
    parallel_for(8, 1, [&](std::int64_t, std::int64_t) {
        parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { total += static_cast<int>(end - begin); });
    });
    EXPECT_EQ(total, 800);
}

TEST_F(ThreadPoolTest, ManyCallersAndResizesAtOnce) {
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 6; ++i) {
        callers.emplace_back([&, i] {
            for (int k = 0; k < 50; ++k) {
                if (i == 0) set_num_threads(1 + k % 4);
                if (visits(500, 7) != std::vector<int>(500, 1)) ++wrong;
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadPoolTest, WorkInTheBackgroundIsDoneOnceInOrderAndWithOneThreadToo) {
    for (const int threads : {1, 2, 4}) {
        set_num_threads(threads);
        std::vector<std::vector<int>> seen(6, std::vector<int>(1000));
        const auto count_in = [](std::vector<int>& into) {
            return [&into](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) ++into[static_cast<std::size_t>(i)];
            };
        };
        std::vector<std::unique_ptr<Job>> jobs;
        for (std::vector<int>& into : seen) {
            jobs.push_back(std::make_unique<Job>(1000, 7, count_in(into)));
        }
        EXPECT_EQ(visits(500, 3), std::vector<int>(500, 1));  // others may call meanwhile
        for (std::size_t i = 0; i < jobs.size(); ++i) {
            jobs[i]->wait();
            EXPECT_TRUE(jobs[i]->is_done());
            EXPECT_EQ(seen[i], std::vector<int>(1000, 1));
        }
    }
}

TEST_F(ThreadPoolTest, NobodyNeedsToWaitForWorkInTheBackground) {
    set_num_threads(1);
    std::atomic<int> done{0};
    const auto body = [&](std::int64_t, std::int64_t) { ++done; };
    const Job job(10, 1, body);
    for (int i = 0; i < 20000 && !job.is_done(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
    EXPECT_TRUE(job.is_done());
    EXPECT_EQ(done, 10);
}

TEST_F(ThreadPoolTest, AnExceptionInTheBackgroundReachesWhoWaits) {
    const auto failing = [](std::int64_t begin, std::int64_t) {
        if (begin == 500) throw std::runtime_error("item 500");
    };
    const Job job(1000, 1, failing);
    EXPECT_THROW(job.wait(), std::runtime_error);
    const Job unheard(1000, 1, failing);  // its destructor throws nothing
    EXPECT_EQ(visits(1000, 1), std::vector<int>(1000, 1));
}

TEST_F(ThreadPoolTest, WorkThatIsLetGoOfIsDroppedAndNothingOfItGoesOn) {
    std::atomic<int> begun{0}, ended{0};
    const auto slow = [&](std::int64_t, std::int64_t) {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
    };
    {
        const Job job(100000, 1, slow);
    }
    EXPECT_LT(begun, 1000);
    EXPECT_EQ(begun, ended);
}

TEST_F(ThreadPoolTest, WorkInTheBackgroundOutlivesAChangeOfThreads) {
    std::atomic<int> done{0};
    const auto body = [&](std::int64_t, std::int64_t) { ++done; };
    const Job job(1000, 1, body);
    set_num_threads(2);
    EXPECT_EQ(visits(1000, 1), std::vector<int>(1000, 1));
    job.wait();
    EXPECT_EQ(done, 1000);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow fork() in a process with threads
TEST_F(ThreadPoolTest, AForkedChildWorksAloneUntilItAsksForMore) {
    EXPECT_EQ(visits(1000, 1), std::vector<int>(1000, 1));  // the parent's pool is running
    std::atomic<int> done{0};
    const auto slow = [&](std::int64_t, std::int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ++done;
    };
    auto job = std::make_unique<Job>(20, 1, slow);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);  // a hang kills the child
        bool good = num_threads() == 1 && visits(1000, 1) == std::vector<int>(1000, 1);
        set_num_threads(3);
        good = good && num_threads() == 3 && visits(1000, 1) == std::vector<int>(1000, 1);
        job.reset();  // the parent's: there is nobody here to wait for
        _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(num_threads(), 4);
    EXPECT_EQ(visits(1000, 1), std::vector<int>(1000, 1));
    job->wait();
    EXPECT_EQ(done, 20);
}
#endif

TEST_F(ThreadPoolTest, RefusesSillyCounts) {
    EXPECT_THROW(set_num_threads(0), InvalidArgument);
    EXPECT_THROW(set_num_threads(-1), InvalidArgument);
    EXPECT_EQ(num_threads(), 4);
}

}  // namespace
}  // namespace robocache
