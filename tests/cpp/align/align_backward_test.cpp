// run_backward as a C++ program calls it: weights by hand, accumulation, refusals, threads, and the adjoint of align.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "robocache/robocache.hpp"

namespace robocache {
namespace {

/// One episode with a row every 10 ns, asked before, at, between and after its rows.
struct Ramp {
    std::vector<std::int64_t> times{0, 10, 20, 30};
    std::vector<std::int64_t> targets{-5, 0, 5, 30, 35};
    std::vector<float> output{1, 10, 100, 1000, 10000};
    std::vector<float> sums = std::vector<float>(4, 0.0F);

    StreamView stream() {
        StreamView view;
        view.values = TensorView(static_cast<void*>(nullptr), DType::f32, {1, 4});  // its data is not read
        view.times = TensorView(times.data(), DType::i64, {1, 4});
        return view;
    }
    Query query() {
        Query q;
        q.times = TensorView(targets.data(), DType::i64, {1, 5});
        return q;
    }
    AlignGradient gradient() {
        return {TensorView(output.data(), DType::f32, {1, 5}), TensorView(sums.data(), DType::f32, {1, 4})};
    }
    void run(const StreamView& stream) {
        const std::optional<AlignGradient> to = gradient();
        robocache::run_backward(plan_align({&stream, 1}, query()), {&to, 1});
    }
    template <class Exception>
    void expect_refused(const StreamView& stream, const AlignGradient& to, const std::string& text) {
        const std::optional<AlignGradient> given = to;
        try {
            robocache::run_backward(plan_align({&stream, 1}, query()), {&given, 1});
            FAIL() << "expected: " << text;
        } catch (const Exception& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
        EXPECT_EQ(sums, std::vector<float>(4, 0.0F)) << text;
    }
};

TEST(AlignBackward, GoesBackByTheWeightsOfTheRows) {
    Ramp r;
    r.run(r.stream());
    EXPECT_EQ(r.sums, (std::vector<float>{1 + 10 + 50, 50, 0, 1000 + 10000}));
}

TEST(AlignBackward, AddsToWhatIsThere) {
    Ramp r;
    r.sums = {7, 0, 0, 0};
    r.run(r.stream());
    r.run(r.stream());
    EXPECT_EQ(r.sums, (std::vector<float>{7 + 122, 100, 0, 22000}));
}

TEST(AlignBackward, ExtrapolationHasTheWeightsOfItsLine) {
    Ramp r;
    StreamView stream = r.stream();
    stream.after = Outside::linear;
    r.run(stream);
    EXPECT_EQ(r.sums, (std::vector<float>{61, 50, -5000, 1000 + 15000}));
}

TEST(AlignBackward, NanTargetsBringNothingBack) {
    Ramp r;
    StreamView stream = r.stream();
    stream.before = stream.after = Outside::nan;
    stream.latency = std::chrono::nanoseconds(1);
    stream.method = Method::previous;
    r.run(stream);
    EXPECT_EQ(r.sums, (std::vector<float>{110, 0, 0, 0}));
}

TEST(AlignBackward, EpisodesWithoutRowsBringNothingBack) {
    Ramp r;
    const std::vector<std::int64_t> offsets{0, 0, 4};
    const std::vector<std::int64_t> episode{0};
    StreamView stream = r.stream();
    stream.values.rank = stream.times.rank = 1;
    stream.values.shape[0] = stream.times.shape[0] = 4;
    stream.values.strides[0] = stream.times.strides[0] = 1;
    stream.offsets = TensorView(offsets.data(), DType::i64, {3});
    Query query = r.query();
    query.episode = TensorView(episode.data(), DType::i64, {1});
    const std::optional<AlignGradient> to =
        AlignGradient{TensorView(r.output.data(), DType::f32, {1, 5}), TensorView(r.sums.data(), DType::f32, {4})};
    run_backward(plan_align({&stream, 1}, query), {&to, 1});
    EXPECT_EQ(r.sums, std::vector<float>(4, 0.0F));
}

TEST(AlignBackward, AMeanIsSharedByItsWindowAndNotByRowsThatARepeatedTimeReplaced) {
    const std::vector<double> times{0, 1, 1, 2, 3}, targets{0.5, 2.5};
    const std::vector<double> output{6, 60};
    std::vector<double> sums(5);
    StreamView stream;
    stream.values = TensorView(sums.data(), DType::f64, {5});
    stream.times = TensorView(times.data(), DType::f64, {5});
    stream.method = Method::mean;
    Query query;
    query.times = TensorView(targets.data(), DType::f64, {2});
    const std::optional<AlignGradient> to =
        AlignGradient{TensorView(output.data(), DType::f64, {1, 2}), TensorView(sums.data(), DType::f64, {5})};
    run_backward(plan_align({&stream, 1}, query), {&to, 1});  // windows [-0.5, 1.5) and [1.5, 3.5)
    EXPECT_EQ(sums, (std::vector<double>{3, 0, 3, 30, 30}));
}

TEST(AlignBackward, AnRmsIsSharedByTheValuesOfItsWindow) {
    const std::vector<double> times{0, 1, 1, 2, 3}, targets{0.5, 2.5};
    const std::vector<float> values{3, 100, 4, 0, 0};
    const std::vector<double> output{10, 60};
    std::vector<float> sums(5);
    StreamView stream;
    stream.values = TensorView(values.data(), DType::f32, {5});
    stream.times = TensorView(times.data(), DType::f64, {5});
    stream.method = Method::rms;
    Query query;
    query.times = TensorView(targets.data(), DType::f64, {2});
    const std::optional<AlignGradient> to =
        AlignGradient{TensorView(output.data(), DType::f64, {1, 2}), TensorView(sums.data(), DType::f32, {5})};
    run_backward(plan_align({&stream, 1}, query), {&to, 1});
    const double rms = std::sqrt(12.5);  // of 3 and 4; the other window has only zeros
    EXPECT_FLOAT_EQ(sums[0], static_cast<float>(10 * 3 / (2 * rms)));
    EXPECT_FLOAT_EQ(sums[2], static_cast<float>(10 * 4 / (2 * rms)));
    EXPECT_EQ(sums[1], 0);
    EXPECT_EQ(sums[3], 0);
    EXPECT_EQ(sums[4], 0);
}

TEST(AlignBackward, StreamsWithoutAGradientAreOnlyPassedOver) {
    Ramp r;
    StreamView streams[2] = {r.stream(), r.stream()};
    streams[0].method = Method::slerp_wxyz;
    streams[0].values = TensorView(static_cast<void*>(nullptr), DType::f32, {1, 4, 4});
    const std::optional<AlignGradient> to[2] = {std::nullopt, r.gradient()};
    run_backward(plan_align(streams, r.query()), to);
    EXPECT_EQ(r.sums, (std::vector<float>{61, 50, 0, 11000}));
}

TEST(AlignBackward, MethodsWithoutAGradientAreNamed) {
    for (const Method method : {Method::angle, Method::min, Method::max}) {
        Ramp r;
        StreamView stream = r.stream();
        stream.method = method;
        r.expect_refused<Unsupported>(stream, r.gradient(), "streams[0].method must be linear, previous, next");
        r.expect_refused<Unsupported>(
            stream, r.gradient(),
            "backend='torch', which has one for every method), got " + std::string(method_name(method)));
    }
}

TEST(AlignBackward, RefusesWhatDoesNotFit) {
    Ramp r;
    AlignGradient to = r.gradient();
    to.output.shape[1] = 4;
    r.expect_refused<InvalidArgument>(r.stream(), to, "gradients[0].output must have shape (1, 5), got (1, 4)");
    to = r.gradient();
    to.values.dtype = DType::f16;
    r.expect_refused<InvalidArgument>(r.stream(), to, "gradients[0].values must have dtype float32, got float16");
    to = r.gradient();
    to.values.shape[1] = 3;
    r.expect_refused<InvalidArgument>(r.stream(), to, "gradients[0].values must have shape (1, 4), got (1, 3)");
    to = r.gradient();
    to.values.strides[1] = 0;
    r.expect_refused<InvalidArgument>(r.stream(), to, "gradients[0].values must not overlap itself");
    to = r.gradient();
    to.output.device = {DeviceType::cuda, 0};
    r.expect_refused<InvalidArgument>(r.stream(), to, "gradients[0].output must be on cpu, got cuda:0");
    StreamView stream = r.stream();
    stream.values.dtype = DType::i32;
    r.expect_refused<InvalidArgument>(stream, r.gradient(), "streams[0].values must be floating to have a gradient");
    stream = r.stream();
    stream.values.dtype = DType::f64;
    r.expect_refused<InvalidArgument>(stream, r.gradient(), "gradients[0].values must have dtype float64");
}

TEST(AlignBackward, UncheckedNonsenseStaysInsideTheMemory) {  // ASan and TSan watch
    std::vector<double> times{5, std::nan(""), -1e300, std::numeric_limits<double>::infinity(), 0, 5, 5, -7};
    std::vector<float> sums(8 * 300);
    std::vector<double> targets{-1e308, std::nan(""), 5, 5.5, 1e308, 0};
    std::vector<std::int64_t> offsets{3, -5, 100, 2, 8};
    std::vector<std::int64_t> episode(140);
    for (std::size_t b = 0; b < episode.size(); ++b) episode[b] = static_cast<std::int64_t>(b % 7) - 1;
    std::vector<float> output(140 * 6 * 300, 1.0F);
    StreamView stream;
    stream.values = TensorView(sums.data(), DType::f32, {8, 300});
    stream.times = TensorView(times.data(), DType::f64, {8});
    stream.offsets = TensorView(offsets.data(), DType::i64, {5});
    Query query;
    query.times = TensorView(targets.data(), DType::f64, {6});
    query.episode = TensorView(episode.data(), DType::i64, {140});
    const std::optional<AlignGradient> to = AlignGradient{TensorView(output.data(), DType::f32, {140, 6, 300}),
                                                          TensorView(sums.data(), DType::f32, {8, 300})};
    set_num_threads(4);
    for (const Method method :
         {Method::linear, Method::previous, Method::next, Method::nearest, Method::cubic, Method::mean, Method::rms}) {
        stream.method = method;
        run_backward(plan_align({&stream, 1}, query), {&to, 1});
    }
}

/// align is linear in the values, and run_backward its adjoint: <align(x), g> = <x, run_backward(g)>. The same holds
/// for rms, which is homogeneous of degree 1 (Euler).
struct Batch {
    std::int64_t rows = 40, samples = 30, targets = 60, width = 130;
    std::vector<double> values = wave(rows * samples * width, 0.37);
    std::vector<double> output = wave(rows * targets * width, 0.73);
    std::vector<double> times = std::vector<double>(static_cast<std::size_t>(rows * samples));
    std::vector<double> at = std::vector<double>(static_cast<std::size_t>(rows * targets));
    std::vector<std::int64_t> episode = std::vector<std::int64_t>(static_cast<std::size_t>(rows));

    Batch() {
        for (std::size_t i = 0; i < times.size(); ++i) times[i] = 0.1 * static_cast<double>(i % 30 / 2 * 2 + i % 3);
        for (std::size_t i = 0; i < times.size(); i += 30) std::sort(&times[i], &times[i] + 30);
        for (std::size_t i = 0; i < at.size(); ++i) at[i] = 0.06 * static_cast<double>(i % 60) - 0.2;
        for (std::size_t b = 0; b < episode.size(); ++b) episode[b] = static_cast<std::int64_t>(b * b % 11);
    }
    static std::vector<double> wave(std::int64_t count, double step) {
        std::vector<double> result(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < result.size(); ++i) result[i] = std::sin(step * static_cast<double>(i));
        return result;
    }
    StreamView stream(Method method) {
        StreamView view;
        view.values = TensorView(values.data(), DType::f64, {rows, samples, width});
        view.times = TensorView(times.data(), DType::f64, {rows, samples});
        view.method = method;
        if (method == Method::linear || method == Method::cubic) view.before = view.after = Outside::linear;
        return view;
    }
    Query query(bool shared) {
        Query q;
        q.times = TensorView(at.data(), DType::f64, {rows, targets});
        if (shared) q.episode = TensorView(episode.data(), DType::i64, {rows});
        return q;
    }
    std::vector<double> backward(Method method, bool shared) {
        std::vector<double> sums(values.size());
        const StreamView view = stream(method);
        const std::optional<AlignGradient> to =
            AlignGradient{TensorView(output.data(), DType::f64, {rows, targets, width}),
                          TensorView(sums.data(), DType::f64, {rows, samples, width})};
        run_backward(plan_align({&view, 1}, query(shared)), {&to, 1});
        return sums;
    }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

constexpr Method differentiable[] = {Method::linear, Method::previous, Method::next, Method::nearest,
                                     Method::cubic,  Method::mean,     Method::rms};

TEST(AlignBackward, IsTheAdjointOfAlign) {
    Batch batch;
    for (const Method method : differentiable) {
        for (const bool shared : {false, true}) {
            std::vector<double> aligned(batch.output.size());
            const StreamView view = batch.stream(method);
            const AlignOutput to{
                TensorView(aligned.data(), DType::f64, {batch.rows, batch.targets, batch.width}), {}, {}};
            run(plan_align({&view, 1}, batch.query(shared)), {&to, 1});
            const double there = dot(aligned, batch.output);
            const double back = dot(batch.values, batch.backward(method, shared));
            EXPECT_NEAR(there, back, 1e-9 * (std::abs(there) + 1)) << method_name(method) << shared;
        }
    }
}

TEST(AlignBackward, TheResultDoesNotDependOnTheNumberOfThreads) {
    Batch batch;
    for (const Method method : differentiable) {
        for (const bool shared : {false, true}) {
            set_num_threads(1);
            const std::vector<double> alone = batch.backward(method, shared);
            for (const int threads : {2, 5}) {
                set_num_threads(threads);
                EXPECT_EQ(alone, batch.backward(method, shared)) << method_name(method) << threads;
            }
        }
    }
}

TEST(AlignBackward, OneEpisodeForAllRowsIsSplitByChannels) {
    Batch batch;
    StreamView view = batch.stream(Method::cubic);
    view.values = TensorView(batch.values.data(), DType::f64, {batch.samples, batch.width});
    view.times = TensorView(batch.times.data(), DType::f64, {batch.samples});
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 2, 5}) {
        set_num_threads(threads);
        std::vector<double>& sums = results.emplace_back(static_cast<std::size_t>(batch.samples * batch.width));
        const std::optional<AlignGradient> to =
            AlignGradient{TensorView(batch.output.data(), DType::f64, {batch.rows, batch.targets, batch.width}),
                          TensorView(sums.data(), DType::f64, {batch.samples, batch.width})};
        run_backward(plan_align({&view, 1}, batch.query(false)), {&to, 1});
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace robocache
