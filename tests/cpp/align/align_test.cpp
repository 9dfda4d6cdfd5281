// align as a C++ user calls it, and what Python cannot reach: devices, poisoned outputs, durations, threads.
#include "robocache/align.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace {

using namespace std::chrono_literals;

/// One dense episode: values[i] = 10 i at times 0, 10, 20, 30 ns.
struct Ramp {
    std::vector<float> values{0, 10, 20, 30};
    std::vector<std::int64_t> times{0, 10, 20, 30};
    std::vector<std::int64_t> targets{-5, 0, 5, 30, 35};
    std::vector<float> out = std::vector<float>(5, -1.0F);
    std::vector<std::uint8_t> valid = std::vector<std::uint8_t>(5, 7);
    std::vector<std::int64_t> index = std::vector<std::int64_t>(5, -7);

    StreamView stream() {
        StreamView view;
        view.values = TensorView(values.data(), DType::f32, {1, 4});
        view.times = TensorView(times.data(), DType::i64, {1, 4});
        return view;
    }
    Query query() {
        Query q;
        q.times = TensorView(targets.data(), DType::i64, {1, 5});
        return q;
    }
    AlignOutput output() {
        return {TensorView(out.data(), DType::f32, {1, 5}), TensorView(valid.data(), DType::boolean, {1, 5}),
                TensorView(index.data(), DType::i64, {1, 5})};
    }
    void run(const StreamView& stream) {
        const AlignOutput to = output();
        robocache::run(plan_align({&stream, 1}, query()), {&to, 1});
    }
    /// The call must throw InvalidArgument with this text, and leave the outputs alone.
    void expect_refused(const StreamView& stream, const Query& q, const AlignOutput& to, const std::string& text) {
        try {
            robocache::run(plan_align({&stream, 1}, q), {&to, 1});
            FAIL() << "expected: " << text;
        } catch (const InvalidArgument& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
        EXPECT_EQ(out, std::vector<float>(5, -1.0F)) << text;
        EXPECT_EQ(valid, std::vector<std::uint8_t>(5, 7)) << text;
    }
};

TEST(Align, HoldsOutsideAndBlendsInside) {
    Ramp r;
    r.run(r.stream());
    EXPECT_EQ(r.out, (std::vector<float>{0, 0, 5, 30, 30}));
    EXPECT_EQ(r.valid, (std::vector<std::uint8_t>{0, 1, 1, 1, 0}));
    EXPECT_EQ(r.index, (std::vector<std::int64_t>{-1, 0, 0, 3, 3}));
}

TEST(Align, TakesDurationsFromChrono) {
    Ramp r;
    StreamView stream = r.stream();
    stream.latency = 10ns;
    stream.max_gap = 5ns;
    stream.outside_valid = true;
    r.run(stream);
    EXPECT_EQ(r.out, (std::vector<float>{5, 10, 15, 30, 30}));
    EXPECT_EQ(r.valid, (std::vector<std::uint8_t>{0, 1, 0, 0, 0}));
}

TEST(Align, ATargetWithinTheToleranceIsAtItsRow) {
    Ramp r;
    r.targets = {-2, 9, 12, 13, 32};
    StreamView stream = r.stream();
    stream.tolerance = 2ns;
    stream.max_gap = 0ns;
    r.run(stream);
    EXPECT_EQ(r.out, (std::vector<float>{0, 10, 10, 13, 30}));
    EXPECT_EQ(r.valid, (std::vector<std::uint8_t>{1, 1, 1, 0, 1}));
    EXPECT_EQ(r.index, (std::vector<std::int64_t>{0, 1, 1, 1, 3}));
}

TEST(Align, RefusesANegativeTolerance) {
    Ramp r;
    StreamView stream = r.stream();
    stream.tolerance = -1ns;
    r.expect_refused(stream, r.query(), r.output(), "streams[0].tolerance must be at least 0 and finite, got -1");
}

TEST(Align, ExtrapolatesOnlyOnTheSideThatAsks) {
    Ramp r;
    StreamView stream = r.stream();
    stream.after = Outside::linear;
    r.run(stream);
    EXPECT_EQ(r.out, (std::vector<float>{0, 0, 5, 30, 35}));
    stream.before = Outside::nan;
    r.run(stream);
    EXPECT_TRUE(std::isnan(r.out[0]));
}

TEST(Align, SeveralStreamsWriteIntoColumnsOfOneOutput) {
    const std::vector<float> a{0, 10, 20, 30};  // (2 rows, 2 channels)
    const std::vector<float> b{1, 2, 3};        // (3 rows, 1 channel)
    const std::vector<double> times_a{0, 1}, times_b{0, 1, 2};
    const std::vector<double> targets{0.5, 1.0};
    std::vector<float> out(2 * 4, -1.0F);
    StreamView streams[2];
    streams[0].values = TensorView(a.data(), DType::f32, {2, 2});
    streams[0].times = TensorView(times_a.data(), DType::f64, {2});
    streams[1].values = TensorView(b.data(), DType::f32, {3, 1});
    streams[1].times = TensorView(times_b.data(), DType::f64, {3});
    Query query;
    query.times = TensorView(targets.data(), DType::f64, {2});
    const TensorView whole(out.data(), DType::f32, {1, 2, 4});
    const AlignOutput outputs[2] = {{whole.slice(2, 0, 2), {}, {}}, {whole.slice(2, 3, 4), {}, {}}};
    run(plan_align(streams, query), outputs);
    EXPECT_EQ(out, (std::vector<float>{10, 20, -1, 1.5, 20, 30, -1, 2}));
}

TEST(Align, APlanGivesTheOutputsOfEveryStream) {
    Ramp r;
    StreamView streams[2] = {r.stream(), r.stream()};
    streams[1].dtype = DType::f64;
    const AlignPlan plan = plan_align(streams, r.query());
    ASSERT_EQ(plan.num_streams(), 2U);
    EXPECT_EQ(plan.device(), Device{});
    EXPECT_EQ(plan.workspace_bytes(), 0);
    const AlignOutput output = plan.output(0);
    EXPECT_EQ(shape_text(output.values), "(1, 5)");
    EXPECT_EQ(output.values.dtype, DType::f32);
    EXPECT_EQ(output.values.data, nullptr);
    EXPECT_EQ(shape_text(*output.valid), "(1, 5)");
    EXPECT_EQ(output.valid->dtype, DType::boolean);
    EXPECT_EQ(output.index->dtype, DType::i64);
    EXPECT_EQ(plan.output(1).values.dtype, DType::f64);
}

TEST(Align, APlanIsRunAgainAfterTheDataHaveChanged) {
    Ramp r;
    const StreamView stream = r.stream();
    AlignPlan first = plan_align({&stream, 1}, r.query());
    const AlignPlan plan = std::move(first);
    const AlignOutput to = r.output();
    run(plan, {&to, 1});
    EXPECT_EQ(r.out, (std::vector<float>{0, 0, 5, 30, 30}));
    r.values[1] = 20;
    r.targets[0] = 10;
    run(plan, {&to, 1});
    EXPECT_EQ(r.out, (std::vector<float>{20, 0, 10, 30, 30}));
}

TEST(Align, AnOutputHasTheDtypeThatItsStreamNames) {
    Ramp r;
    StreamView stream = r.stream();
    stream.dtype = DType::f64;
    r.expect_refused(stream, r.query(), r.output(),
                     "align: out[0] must have dtype float64 like streams[0].dtype, got float32");
    stream.dtype = DType::i32;
    r.expect_refused(stream, r.query(), r.output(),
                     "align: streams[0].dtype must be float32 or a floating dtype, got int32");
}

TEST(Align, RefusesMixedDevicesBeforeTouchingMemory) {
    Ramp r;
    Query query = r.query();
    query.times->device = {DeviceType::cuda, 0};
    r.expect_refused(r.stream(), query, r.output(), "align: times must be on cpu, got cuda:0");
    StreamView stream = r.stream();
    stream.times.device = {DeviceType::cuda, 1};
    r.expect_refused(stream, r.query(), r.output(), "align: streams[0].times must be on cpu, got cuda:1");
    AlignOutput to = r.output();
    to.valid->device = {DeviceType::cuda, 0};
    r.expect_refused(r.stream(), r.query(), to, "align: out[0].valid must be on cpu, got cuda:0");
}

TEST(Align, PinnedHostMemoryIsHostMemory) {
    Ramp r;
    StreamView stream = r.stream();
    stream.values.device = {DeviceType::cuda_host, 0};
    r.run(stream);
    EXPECT_EQ(r.out[2], 5.0F);
}

TEST(Align, RefusesOutputsThatDoNotFit) {
    Ramp r;
    AlignOutput to = r.output();
    to.values.shape[1] = 4;
    r.expect_refused(r.stream(), r.query(), to, "align: out[0] must have shape (1, 5), got (1, 4)");
    to = r.output();
    to.values.strides[1] = 0;
    r.expect_refused(r.stream(), r.query(), to, "align: out[0] must not overlap itself, got stride 0 in dimension 1");
    to = r.output();
    to.values.dtype = DType::i32;
    r.expect_refused(r.stream(), r.query(), to, "align: out[0].dtype must be float32 or a floating dtype, got int32");
    to = r.output();
    to.index->dtype = DType::i32;
    r.expect_refused(r.stream(), r.query(), to, "align: out[0].index must have dtype int64, got int32");
}

TEST(Align, RefusesSizesBelowZeroAndNumbersThatAreNoEnumerators) {
    Ramp r;
    StreamView stream = r.stream();
    stream.values.shape[0] = stream.times.shape[0] = -1;
    r.expect_refused(stream, r.query(), r.output(), "streams[0].values must have no size below 0, got shape (-1");
    stream = r.stream();
    stream.method = static_cast<Method>(99);
    r.expect_refused(stream, r.query(), r.output(), "align: streams[0].method must be an enumerator, got 99");
    stream = r.stream();
    stream.after = static_cast<Outside>(7);
    r.expect_refused(stream, r.query(), r.output(), "align: streams[0].after must be an enumerator, got 7");
}

TEST(Align, RefusesMemoryThatWasForgotten) {
    Ramp r;
    AlignOutput to = r.output();
    to.valid->data = nullptr;  // as AlignPlan::output gives it
    r.expect_refused(r.stream(), r.query(), to, "align: out[0].valid must have memory, got null data");
    StreamView stream = r.stream();
    stream.times.data = nullptr;
    r.expect_refused(stream, r.query(), r.output(), "align: streams[0].times must have memory, got null data");
}

TEST(Align, RefusesBadDataBeforeWriting) {
    Ramp r;
    r.times = {0, 20, 10, 30};
    r.expect_refused(
        r.stream(), r.query(), r.output(),
        "align: streams[0].times must not decrease inside an episode, got 10 after 20 at row 2 of episode 0");
    r.times = {0, 10, 20, 30};
    StreamView stream = r.stream();
    stream.after = Outside::error;
    r.expect_refused(stream, r.query(), r.output(), "got 35 at row 0, position 4");
}

TEST(Align, UncheckedNonsenseStaysInsideTheMemory) {  // ASan watches
    std::vector<double> times{5, std::nan(""), -1e300, std::numeric_limits<double>::infinity(), 0, 5, 5, -7};
    std::vector<float> values(8, 1.0F);
    std::vector<double> targets{-1e308, std::nan(""), 5, 5.5, 1e308, 0};
    std::vector<std::int64_t> offsets{3, -5, 100, 2, 8};
    std::vector<std::int64_t> episode{0, 1, 2, 3, 4, -1, 1LL << 62};
    std::vector<float> out(7 * 6);
    StreamView stream;
    stream.values = TensorView(values.data(), DType::f32, {8});
    stream.times = TensorView(times.data(), DType::f64, {8});
    stream.offsets = TensorView(offsets.data(), DType::i64, {5});
    Query query;
    query.times = TensorView(targets.data(), DType::f64, {6});
    query.episode = TensorView(episode.data(), DType::i64, {7});
    const AlignOutput to{TensorView(out.data(), DType::f32, {7, 6}), {}, {}};
    for (const Method method : {Method::linear, Method::previous, Method::next, Method::nearest, Method::cubic,
                                Method::angle, Method::mean, Method::min, Method::max, Method::rms}) {
        for (const double tolerance : {0.0, 1.0, 1e308}) {
            stream.method = method;
            stream.tolerance = Duration(0, tolerance);
            run(plan_align({&stream, 1}, query, {.check = false}), {&to, 1});
        }
    }
}

TEST(Align, TheResultDoesNotDependOnTheNumberOfThreads) {
    const std::int64_t rows = 64, samples = 100, targets = 90, width = 9;
    std::vector<float> values(rows * samples * width);
    std::vector<float> times(rows * samples);
    std::vector<float> at(rows * targets);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.37F * static_cast<float>(i));
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = static_cast<float>(i % samples) * 0.01F;
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<float>((i * 7919) % 1000) * 0.00101F;
    StreamView stream;
    stream.values = TensorView(values.data(), DType::f32, {rows, samples, width});
    stream.times = TensorView(times.data(), DType::f32, {rows, samples});
    stream.method = Method::cubic;
    Query query;
    query.times = TensorView(at.data(), DType::f32, {rows, targets});
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
        set_num_threads(threads);
        std::vector<float>& out = results.emplace_back(rows * targets * width);
        const AlignOutput to{TensorView(out.data(), DType::f32, {rows, targets, width}), {}, {}};
        run(plan_align({&stream, 1}, query), {&to, 1});
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace robocache
