// Large batches on the CPU: whatever the number of threads, and from several at once. The sanitizers watch.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/interrupt.hpp"
#include "robocache/loader.hpp"
#include "robocache/threads.hpp"

namespace robocache {
namespace {

constexpr std::int64_t width = 48;
constexpr std::int64_t ms = 1'000'000;

TensorView list(const std::vector<std::int64_t>& x) {
    return {x.data(), DType::i64, {static_cast<std::int64_t>(x.size())}};
}

/// Episodes of `lengths` rows, 10 ms apart, every seventh row twice. Memory without a byte to spare, for ASan.
struct Rows {
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int64_t> times;
    std::vector<float> values;

    explicit Rows(const std::vector<std::int64_t>& lengths) {
        for (const std::int64_t length : lengths) {
            for (std::int64_t row = 0; row < length; ++row) times.push_back((row - row / 7) * 10 * ms);
            offsets.push_back(offsets.back() + length);
        }
        times.shrink_to_fit();
        values.resize(times.size() * width);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    }

    [[nodiscard]] StreamView stream(Method method) const {
        StreamView view;
        view.values = TensorView(values.data(), DType::f32, {static_cast<std::int64_t>(times.size()), width});
        view.times = list(times);
        view.offsets = list(offsets);
        view.method = method;
        return view;
    }
};

/// Episodes 0 and 2 are in the first part, the others in the second. Their rows are the anchors.
struct Recordings {
    Rows parts[2] = {Rows({120, 300}), Rows({0, 1, 77})};
    std::vector<std::int64_t> part{0, 1, 0, 1, 1};
    std::vector<std::int64_t> local{0, 0, 1, 1, 2};
    std::vector<std::int64_t> prefix{0};
    std::vector<std::int64_t> anchors;
    std::vector<std::int64_t> on_rows;
    std::vector<std::int64_t> between{-25 * ms, 3 * ms, 4 * ms, 500 * ms};
    std::vector<double> offset = std::vector<double>(width, 0.25);
    std::vector<double> scale = std::vector<double>(width, 3.0);

    Recordings() {
        for (std::size_t e = 0; e < part.size(); ++e) {
            const Rows& rows = parts[part[e]];
            const std::int64_t* bounds = &rows.offsets[static_cast<std::size_t>(local[e])];
            anchors.insert(anchors.end(), rows.times.begin() + bounds[0], rows.times.begin() + bounds[1]);
            prefix.push_back(static_cast<std::int64_t>(anchors.size()));
        }
        for (std::int64_t k = -2; k < 14; ++k) on_rows.push_back(k * 10 * ms);
    }

    [[nodiscard]] AnchorTable table() const {
        return {list(prefix), list(anchors), static_cast<std::int64_t>(anchors.size())};
    }

    /// One column of every method: on the rows where it is linear.
    [[nodiscard]] BatchReader reader(const std::vector<Method>& methods) const {
        const AnchorTable anchor_table = table();
        std::vector<BatchColumn> columns;
        std::vector<BatchRows> rows;
        for (const Rows& each : parts) {
            for (const Method method : methods) {
                const TensorView numbers[2] = {{offset.data(), DType::f64, {width}},
                                               {scale.data(), DType::f64, {width}}};
                rows.push_back({each.stream(method), numbers[0], numbers[1]});
                if (&each == &parts[0]) columns.push_back({deltas(method), DType::f32, method == Method::cubic});
            }
        }
        return BatchReader({{&anchor_table, 1}, list(part), list(local), columns, rows});
    }

    [[nodiscard]] const std::vector<std::int64_t>& deltas(Method method) const {
        return method == Method::linear ? on_rows : between;
    }
};

struct Batch {
    std::vector<float> values;
    std::vector<std::uint8_t> padding;
    BatchOutput views;

    Batch(std::int64_t count, std::int64_t num_targets)
        : values(static_cast<std::size_t>(count * num_targets * width), -1.0F),
          padding(static_cast<std::size_t>(count * num_targets), 7),
          views{{values.data(), DType::f32, {count, num_targets, width}},
                TensorView(padding.data(), DType::boolean, {count, num_targets})} {}
};

/// Sample by sample: sample_anchors, align, normalize.
void expect_one_after_the_other(const Recordings& given, Method method, const Batch& batch, std::int64_t count) {
    const AnchorTable table = given.table();
    const std::vector<std::int64_t>& deltas = given.deltas(method);
    const auto num_targets = static_cast<std::int64_t>(deltas.size());
    std::vector<std::int64_t> episode(static_cast<std::size_t>(count));
    std::vector<std::int64_t> anchor(episode);
    sample_anchors({&table, 1}, {9, 2}, 0, {episode.data(), DType::i64, {count}}, {anchor.data(), DType::i64, {count}});
    for (std::size_t b = 0; b < episode.size(); ++b) {
        const auto e = static_cast<std::size_t>(episode[b]);
        const StreamView stream = given.parts[given.part[e]].stream(method);
        Query query;
        query.anchor = TensorView(&anchor[b], DType::i64, {1});
        query.episode = TensorView(&given.local[e], DType::i64, {1});
        query.deltas = list(deltas);
        Batch one(1, num_targets);
        const AlignOutput output{one.views.values, one.views.padding, {}};
        run(plan_align({&stream, 1}, query), {&output, 1});
        if (method == Method::cubic) {
            const TensorView flat(one.values.data(), DType::f32, {num_targets, width});
            normalize(flat, {given.offset.data(), DType::f64, {width}}, {given.scale.data(), DType::f64, {width}},
                      flat);
        }
        for (std::size_t i = 0; i < one.values.size(); ++i) {
            ASSERT_EQ(batch.values[b * one.values.size() + i], one.values[i]) << b << " " << i;
        }
        for (std::size_t j = 0; j < one.padding.size(); ++j) {
            ASSERT_EQ(batch.padding[b * one.padding.size() + j], one.padding[j] ^ 1) << b << " " << j;
        }
    }
}

TEST(BatchReaderOnThreads, IsTheThreeOperationsOneAfterTheOther) {
    const Recordings given;
    const std::vector<Method> methods{Method::linear, Method::cubic, Method::mean, Method::nearest};
    const BatchReader reader = given.reader(methods);
    const auto all = static_cast<std::int64_t>(given.anchors.size());
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{33}, all}) {
        for (const int threads : {1, 4}) {
            set_num_threads(threads);
            std::vector<Batch> batches;
            std::vector<BatchOutput> outputs;
            for (const Method method : methods) {
                batches.emplace_back(count, static_cast<std::int64_t>(given.deltas(method).size()));
                outputs.push_back(batches.back().views);
            }
            outputs[1].padding.reset();  // nobody has to ask
            batches[1].padding.clear();
            reader.read({9, 2}, 0, outputs);
            for (std::size_t m = 0; m < methods.size(); ++m) {
                if (m == 1) batches[m].padding = batches[2].padding;  // of the same moments
                expect_one_after_the_other(given, methods[m], batches[m], count);
            }
        }
    }
}

TEST(BatchReaderOnThreads, IsReadBySeveralThreadsAtOnce) {
    const Recordings given;
    const BatchReader reader = given.reader({Method::linear});
    const auto count = static_cast<std::int64_t>(given.anchors.size());
    std::vector<Batch> batches(4, Batch(count, static_cast<std::int64_t>(given.on_rows.size())));
    std::vector<std::thread> threads;
    for (Batch& batch : batches) {
        batch.views.values.data = batch.values.data();
        batch.views.padding->data = batch.padding.data();
        threads.emplace_back([&] { reader.read({9, 2}, 0, {&batch.views, 1}); });
    }
    for (std::thread& thread : threads) thread.join();
    expect_one_after_the_other(given, Method::linear, batches[0], count);
    for (const Batch& batch : batches) {
        EXPECT_EQ(batch.values, batches[0].values);
        EXPECT_EQ(batch.padding, batches[0].padding);
    }
}

TEST(BatchReaderOnThreads, AnInterruptEndsARead) {
    struct Interrupted {};
    const Recordings given;
    const BatchReader reader = given.reader({Method::linear});
    const auto count = static_cast<std::int64_t>(given.anchors.size());
    Batch batch(count, static_cast<std::int64_t>(given.on_rows.size()));
    set_num_threads(1);  // else the other threads may be done before the caller looks
    {
        const detail::InterruptScope scope([] { throw Interrupted(); }, std::chrono::nanoseconds(0));
        EXPECT_THROW(reader.read({9, 2}, 0, {&batch.views, 1}), Interrupted);
    }
    reader.read({9, 2}, 0, {&batch.views, 1});
    expect_one_after_the_other(given, Method::linear, batch, count);
}

TEST(BatchReaderOnThreads, ReadsAheadWhileTheCallerGoesOn) {
    const Recordings given;
    const BatchReader reader = given.reader({Method::linear});
    const auto count = static_cast<std::int64_t>(given.anchors.size());
    const auto num_targets = static_cast<std::int64_t>(given.on_rows.size());
    for (const int threads : {1, 2, 4}) {
        set_num_threads(threads);
        for (int turn = 0; turn < 20; ++turn) {
            std::vector<std::unique_ptr<Batch>> batches;
            std::vector<PendingBatch> pending;
            for (int i = 0; i < 5; ++i) {
                batches.push_back(std::make_unique<Batch>(count, num_targets));
                pending.push_back(reader.read_ahead({9, 2}, 0, {&batches.back()->views, 1}));
            }
            pending.erase(pending.begin() + 1);  // dropped: whatever it has written, nobody writes to it any more
            batches.erase(batches.begin() + 1);
            Batch meanwhile(count, num_targets);
            reader.read({9, 2}, 0, {&meanwhile.views, 1});
            for (std::size_t i = 0; i < pending.size(); ++i) {
                pending[i].wait();
                EXPECT_TRUE(pending[i].is_done());
                EXPECT_EQ(batches[i]->values, meanwhile.values);
                EXPECT_EQ(batches[i]->padding, meanwhile.padding);
            }
            if (turn == 0) expect_one_after_the_other(given, Method::linear, meanwhile, count);
        }
    }
}

}  // namespace
}  // namespace robocache
