// Interrupts: a call ends between two parts of its work, on the thread that called; nothing else is disturbed.
#include "core/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "cache/cache_cases.hpp"
#include "core/thread_pool.hpp"
#include "robocache/align.hpp"
#include "robocache/threads.hpp"
#include "robocache/voxelize.hpp"

namespace robocache {
namespace {

using detail::InterruptScope;
using detail::poll_interrupt;

struct Interrupted {};

std::atomic<int> num_checks{0};

void interrupt_always() {
    ++num_checks;
    throw Interrupted();
}
void interrupt_never() {
    ++num_checks;
}

/// A check between all parts of a call, so that calls need not take long.
struct AtOnce : InterruptScope {
    explicit AtOnce(Check check) : InterruptScope(check, std::chrono::nanoseconds(0)) { num_checks = 0; }
};

class InterruptTest : public testing::TestWithParam<int> {
protected:
    void SetUp() override { set_num_threads(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Threads, InterruptTest, testing::Values(1, 4));

TEST_P(InterruptTest, APartThatIsNotBegunIsNotDone) {
    std::atomic<std::int64_t> done{0};
    const auto count = [&](std::int64_t begin, std::int64_t end) { done += end - begin; };
    {
        const AtOnce scope(interrupt_always);
        EXPECT_THROW(parallel_for(1'000'000, 1, count), Interrupted);
    }
    EXPECT_LT(done, 1'000'000);
    done = 0;
    parallel_for(1000, 1, count);  // the pool lives on
    EXPECT_EQ(done, 1000);
}

std::thread::id caller;
std::atomic<bool> checked_elsewhere{false};

TEST_P(InterruptTest, OnlyTheCallingThreadChecks) {
    caller = std::this_thread::get_id();
    const AtOnce scope([] {
        ++num_checks;
        if (std::this_thread::get_id() != caller) checked_elsewhere = true;
    });
    parallel_for(1000, 1, [](std::int64_t, std::int64_t) { poll_interrupt(); });
    std::thread([] {
        for (int i = 0; i < 10; ++i) poll_interrupt();
    }).join();
    EXPECT_FALSE(checked_elsewhere);
    if (GetParam() == 1) EXPECT_GT(num_checks, 0);  // other threads may have done it all
}

TEST_P(InterruptTest, AnExceptionOfABodyComesFirst) {
    const AtOnce scope(interrupt_never);
    EXPECT_THROW(parallel_for(100, 1, [](std::int64_t, std::int64_t) { throw std::runtime_error("body"); }),
                 std::runtime_error);
}

TEST_P(InterruptTest, AnInnerCallEndsTheOuterOne) {
    const AtOnce scope(interrupt_always);
    std::atomic<int> outer{0};
    EXPECT_THROW(parallel_for(1'000'000, 1,
                              [&](std::int64_t, std::int64_t) {
                                  ++outer;
                                  parallel_for(4, 1, [](std::int64_t, std::int64_t) {});
                              }),
                 Interrupted);
    EXPECT_LT(outer, 1'000'000);
}

TEST_P(InterruptTest, WaitingForABackgroundJobEndsAndTheJobGoesOn) {
    std::atomic<std::int64_t> done{0};
    const Background<std::function<void(std::int64_t, std::int64_t)>> job(
        20000, 1, [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
    {
        const AtOnce scope(interrupt_always);
        try {
            job.wait();
        } catch (const Interrupted&) {
        }
    }
    job.wait();
    EXPECT_EQ(done, 20000);
}

TEST_P(InterruptTest, ACheckMayCallTheLibrary) {
    const AtOnce scope([] {
        ++num_checks;
        std::atomic<std::int64_t> done{0};
        parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
        if (done != 100) throw Interrupted();
    });
    EXPECT_NO_THROW(parallel_for(10, 1, [](std::int64_t, std::int64_t) {}));
    if (GetParam() == 1) EXPECT_GT(num_checks, 0);  // other threads may have done it all
}

TEST(Interrupt, ScopesNestAndEnd) {
    const AtOnce outer(interrupt_always);
    {
        const AtOnce inner(interrupt_never);
        for (int i = 0; i < 3; ++i) poll_interrupt();
    }
    EXPECT_NO_THROW(poll_interrupt());  // the first one begins the interval
    EXPECT_THROW(poll_interrupt(), Interrupted);
}

TEST(Interrupt, AShortCallIsNeverAsked) {
    num_checks = 0;
    const InterruptScope scope(interrupt_always);
    EXPECT_NO_THROW(parallel_for(10, 1, [](std::int64_t, std::int64_t) {}));
    EXPECT_EQ(num_checks, 0);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

TEST(Interrupt, EndsAlign) {
    set_num_threads(1);  // else the other threads may be done before the caller looks
    constexpr std::int64_t rows = 64;
    constexpr std::int64_t targets = 20'000;
    std::vector<float> values(rows);
    std::vector<std::int64_t> times(rows);
    std::iota(times.begin(), times.end(), 0);
    std::vector<std::int64_t> query_times(targets, 5);
    std::vector<float> out(targets);
    for (const Method method : {Method::linear, Method::mean}) {
        StreamView stream;
        stream.values = TensorView(values.data(), DType::f32, {1, rows, 1});
        stream.times = TensorView(times.data(), DType::i64, {1, rows});
        stream.method = method;
        Query query;
        query.times = TensorView(query_times.data(), DType::i64, {1, targets});
        const AlignOutput output{TensorView(out.data(), DType::f32, {1, targets, 1}), {}, {}};
        const AtOnce scope(interrupt_always);
        EXPECT_THROW(run(plan_align({&stream, 1}, query), {&output, 1}), Interrupted);
    }
}

TEST(Interrupt, EndsVoxelize) {
    set_num_threads(1);
    constexpr std::int64_t num_points = 100'000;
    std::vector<float> points(3 * num_points, 0.5F);
    std::vector<float> features(num_points, 1.0F);
    PointsView view;
    view.points = TensorView(points.data(), DType::f32, {num_points, 3});
    const VoxelGrid grid{{0, 0, 0}, {1, 1, 1}, {2, 2, 2}};
    std::vector<std::int32_t> counts(8);
    VoxelOutput dense;
    dense.grid = TensorView(counts.data(), DType::i32, {2, 2, 2});
    {
        const AtOnce scope(interrupt_always);
        EXPECT_THROW(run(plan_voxelize(view, grid, {Reduction::count}), dense), Interrupted);
    }
    view.features = TensorView(features.data(), DType::f32, {num_points, 1});
    std::vector<std::int32_t> coordinates(4 * 8);
    std::vector<float> means(8);
    std::int64_t found[2] = {};
    SparseOutput sparse;
    sparse.coordinates = TensorView(coordinates.data(), DType::i32, {8, 4});
    sparse.features = TensorView(means.data(), DType::f32, {8, 1});
    sparse.found = TensorView(found, DType::i64, {2});
    {
        const AtOnce scope(interrupt_always);
        EXPECT_THROW(run(plan_voxelize_sparse(view, grid, {}, {Reduction::mean}), sparse), Interrupted);
    }
    run(plan_voxelize_sparse(view, grid, {}, {Reduction::mean}), sparse);
    EXPECT_EQ(found[0], 1);
    EXPECT_EQ(means[0], 1.0F);
}

class InterruptedCache : public cache_test::CacheTest {};

TEST_F(InterruptedCache, VerifyEnds) {
    cache_test::write_version(folder, 1);
    const CacheReader reader(folder);
    {
        const AtOnce scope(interrupt_always);
        EXPECT_THROW((void)reader.verify(), Interrupted);
    }
    EXPECT_TRUE(reader.verify().empty());
}

TEST_F(InterruptedCache, AWriterLeavesNoTemporaryFileAndNoLock) {
    {
        const AtOnce scope(interrupt_always);
        EXPECT_THROW(cache_test::write_version(folder, 1), Interrupted);
    }
    for (const std::string& name : cache_test::names_in(folder)) EXPECT_FALSE(name.ends_with(".tmp")) << name;
    cache_test::write_version(folder, 2);
    EXPECT_TRUE(CacheReader(folder).verify().empty());
}

}  // namespace
}  // namespace robocache
