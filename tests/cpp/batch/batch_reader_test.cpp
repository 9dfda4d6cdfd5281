// BatchReader as a C++ user calls it: the same bits as its three steps one after the other, and its contract.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/loader.hpp"

namespace robocache {
namespace {

using Integers = std::vector<std::int64_t>;
using Floats = std::vector<float>;

TensorView list(const Integers& x) {
    return {x.data(), DType::i64, {static_cast<std::int64_t>(x.size())}};
}
TensorView list(const std::vector<double>& x) {
    return {x.data(), DType::f64, {static_cast<std::int64_t>(x.size())}};
}

/// Two parts: one with an episode of 4 rows and an empty one, one with an episode of 3 rows. "arm" (2 channels, f32)
/// and "grip" (one number, i16); anchors are the rows of "arm".
struct Recordings {
    Floats arm[2] = {{0, 10, 1, 11, 2, 12, 3, 13}, {7, 70, 8, 80, 9, 90}};
    std::vector<std::int16_t> grip[2] = {{5, 6, 7, 8}, {-1, -2, -3}};
    Integers times[2] = {{0, 100, 200, 300}, {1000, 1100, 1200}};
    Integers offsets[2] = {{0, 4, 4}, {0, 3}};
    std::vector<double> offset{1, 20};
    std::vector<double> scale{0.5, 0.1};
    Integers deltas{-50, 0, 150};
    Integers later{0, 30};
    Integers prefix{0, 4, 4, 7};
    Integers anchors{0, 100, 200, 300, 1000, 1100, 1200};
    Integers part{0, 0, 1};
    Integers local{0, 1, 0};
    AnchorTable table{list(prefix), list(anchors), 7};
    std::vector<BatchColumn> columns{{deltas, DType::f32, true}, {later, DType::i16, false}};
    std::vector<BatchRows> rows;

    Recordings() {
        for (std::size_t p = 0; p < 2; ++p) {
            const auto count = static_cast<std::int64_t>(times[p].size());
            StreamView one;
            one.values = TensorView(arm[p].data(), DType::f32, {count, 2});
            one.times = list(times[p]);
            one.offsets = list(offsets[p]);
            StreamView two = one;
            two.values = TensorView(grip[p].data(), DType::i16, {count});
            rows.push_back({one, list(offset), list(scale)});
            rows.push_back({two, {}, {}});
        }
    }

    [[nodiscard]] BatchSource source() const { return {{&table, 1}, list(part), list(local), columns, rows}; }
};

struct Batch {
    Floats arm;
    std::vector<std::int16_t> grip;
    std::vector<std::uint8_t> arm_pad, grip_pad;
    std::int64_t size;

    explicit Batch(std::int64_t size)
        : arm(static_cast<std::size_t>(size * 6), -1.0F),
          grip(static_cast<std::size_t>(size * 2), -1),
          arm_pad(static_cast<std::size_t>(size * 3), 7),
          grip_pad(static_cast<std::size_t>(size * 2), 7),
          size(size) {}
    std::vector<BatchOutput> outputs() {
        return {
            {TensorView(arm.data(), DType::f32, {size, 3, 2}), TensorView(arm_pad.data(), DType::boolean, {size, 3})},
            {TensorView(grip.data(), DType::i16, {size, 2}), TensorView(grip_pad.data(), DType::boolean, {size, 2})}};
    }
    bool operator==(const Batch&) const = default;
};

/// sample_anchors, then align, then normalize, sample by sample.
Batch step_by_step(const Recordings& r, const SampleOrder& order, std::int64_t first, std::int64_t size) {
    Batch batch(size);
    Integers episode(static_cast<std::size_t>(size)), anchor(static_cast<std::size_t>(size));
    sample_anchors({&r.table, 1}, order, first, list(episode), list(anchor));
    for (std::int64_t b = 0; b < size; ++b) {
        const auto e = static_cast<std::size_t>(episode[static_cast<std::size_t>(b)]);
        const auto p = static_cast<std::size_t>(r.part[e]);
        for (std::size_t c = 0; c < 2; ++c) {
            BatchOutput out = batch.outputs()[c];
            const TensorView values = out.values.slice(0, b, b + 1);
            const TensorView valid = out.padding->slice(0, b, b + 1);
            const AlignOutput to{values, valid, {}};
            Query query;
            query.anchor = TensorView(&anchor[static_cast<std::size_t>(b)], DType::i64, {1});
            query.episode = TensorView(&r.local[e], DType::i64, {1});
            query.deltas = list(c == 0 ? r.deltas : r.later);
            run(plan_align({&r.rows[2 * p + c].stream, 1}, query), {&to, 1});
            auto* flags = static_cast<std::uint8_t*>(valid.data);
            for (std::int64_t j = 0; j < valid.shape[1]; ++j) flags[j] = flags[j] == 0 ? 1 : 0;
            if (c == 0) {
                const TensorView flat(values.data, DType::f32, {3, 2});
                normalize(flat, list(r.offset), list(r.scale), flat);
            }
        }
    }
    return batch;
}

TEST(BatchReader, TheBatchByHand) {
    Recordings r;
    r.columns[0].scaled = false;
    const BatchReader reader(r.source());
    SampleOrder order;
    order.shuffle = false;
    Batch batch(2);
    reader.read(order, 3, batch.outputs());  // the last row of the first part, the first of the second
    EXPECT_EQ(batch.arm, (Floats{2.5F, 12.5F, 3, 13, 3, 13, 7, 70, 7, 70, 8.5F, 85}));
    EXPECT_EQ(batch.arm_pad, (std::vector<std::uint8_t>{0, 0, 1, 1, 0, 0}));
    EXPECT_EQ(batch.grip, (std::vector<std::int16_t>{8, 8, -1, -1}));
    EXPECT_EQ(batch.grip_pad, (std::vector<std::uint8_t>{0, 1, 0, 0}));
}

TEST(BatchReader, TheSameBitsAsTheThreeStepsForEveryStretchAndRule) {
    for (const Method method : {Method::automatic, Method::previous, Method::next, Method::nearest}) {
        for (const Outside outside : {Outside::hold, Outside::nan}) {
            Recordings r;
            for (std::size_t i = 0; i < r.rows.size(); ++i) {
                StreamView& stream = r.rows[i].stream;
                stream.method = method;
                if (i % 2 == 0) stream.before = stream.after = outside;
                stream.latency = std::chrono::nanoseconds(20);
                stream.max_gap = std::chrono::nanoseconds(100);
            }
            const BatchReader reader(r.source());
            for (std::int64_t first = 0; first < 7; ++first) {
                for (std::int64_t size = 1; first + size <= 7; ++size) {
                    Batch batch(size);
                    reader.read({5, 2}, first, batch.outputs());
                    const Batch expected = step_by_step(r, {5, 2}, first, size);
                    EXPECT_EQ(std::memcmp(batch.arm.data(), expected.arm.data(), batch.arm.size() * 4), 0);
                    EXPECT_EQ(batch.grip, expected.grip);
                    EXPECT_EQ(batch.arm_pad, expected.arm_pad);
                    EXPECT_EQ(batch.grip_pad, expected.grip_pad);
                }
            }
        }
    }
}

TEST(BatchReader, AStepInMemoryCountsThroughTheEpochs) {
    const Recordings r;
    const BatchReader reader(r.source());
    std::int64_t step = 0;
    BatchSteps steps{TensorView(&step, DType::i64, {}), 3, 2, 0};
    for (; step < 9; ++step) {
        Batch told(2), asked(2);
        reader.read({5, 1234}, steps, told.outputs());
        reader.read({5, step / 3}, step % 3 * 2, asked.outputs());
        EXPECT_EQ(told, asked) << step;
    }
}

struct Index {
    Integers source, episode, anchor;

    explicit Index(std::int64_t size) : source(static_cast<std::size_t>(size), -1), episode(source), anchor(source) {}
    [[nodiscard]] BatchIndex views() const { return {list(source), list(episode), list(anchor)}; }
    bool operator==(const Index&) const = default;
};

TEST(BatchReader, TheIndexNamesEpisodesAndAnchorsAsSampleAnchorsFindsThem) {
    const Recordings r;
    const Integers sources{0, 0, 1};
    const Integers numbers{7, 9, 4};
    BatchSource source = r.source();
    source.names = EpisodeNames{list(sources), list(numbers)};
    const BatchReader reader(source);
    for (std::int64_t first = 0; first < 7; ++first) {
        for (std::int64_t size = 1; first + size <= 7; ++size) {
            Index expected(size);
            sample_anchors({&r.table, 1}, {5, 2}, first, list(expected.episode), list(expected.anchor));
            for (std::size_t b = 0; b < expected.episode.size(); ++b) {
                const auto e = static_cast<std::size_t>(expected.episode[b]);
                expected.source[b] = sources[e];
                expected.episode[b] = numbers[e];
            }
            Batch batch(size), without(size), ahead(size), told(size);
            const Index index(size), index_ahead(size), index_told(size);
            reader.read({5, 2}, first, without.outputs());
            reader.read({5, 2}, first, batch.outputs(), {}, index.views());
            reader.read_ahead({5, 2}, first, ahead.outputs(), index_ahead.views()).wait();
            const std::int64_t step = 2;
            const BatchSteps steps{TensorView(&step, DType::i64, {}), 1, 0, first};
            reader.read({5}, steps, told.outputs(), {}, index_told.views());
            EXPECT_EQ(batch, without);
            EXPECT_EQ(ahead, without);
            EXPECT_EQ(told, without);
            EXPECT_EQ(index, expected);
            EXPECT_EQ(index_ahead, expected);
            EXPECT_EQ(index_told, expected);
        }
    }
}

TEST(BatchReader, AnIndexThatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
    const Recordings r;
    const Integers numbers{7, 9, 4};
    BatchSource source = r.source();
    const auto refused = [&](const std::string& text, auto&& change) {
        const BatchReader reader(source);
        Batch batch(2);
        const Index index(2);
        BatchIndex views = index.views();
        change(views);
        try {
            reader.read({}, 0, batch.outputs(), {}, views);
            FAIL() << "expected: " << text;
        } catch (const InvalidArgument& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
        EXPECT_EQ(batch, Batch(2)) << text;
        EXPECT_EQ(index, Index(2)) << text;
    };
    refused("index must be asked for only where the source has names", [](auto&) {});
    source.names = EpisodeNames{list(numbers), list(numbers)};
    refused("index.anchor must have shape (2,), got (1,)", [](auto& i) { i.anchor = i.anchor.slice(0, 0, 1); });
    refused("index.source must have dtype int64, got float64", [](auto& i) { i.source.dtype = DType::f64; });
    source.names->episode = source.names->episode.slice(0, 0, 2);
    EXPECT_THROW(BatchReader{source}, InvalidArgument);
}

TEST(BatchReader, MovedItReadsTheSameAndPaddingIsOptional) {
    const Recordings r;
    BatchReader first(r.source());
    Batch expected(7);
    first.read({1}, 0, expected.outputs());
    BatchReader second(std::move(first));
    BatchReader third(r.source());
    third = std::move(second);
    Batch batch(7);
    std::vector<BatchOutput> outputs = batch.outputs();
    outputs[0].padding.reset();
    third.read({1}, 0, outputs);
    EXPECT_EQ(batch.arm, expected.arm);
    EXPECT_EQ(batch.grip_pad, expected.grip_pad);
    EXPECT_EQ(batch.arm_pad, std::vector<std::uint8_t>(21, 7));
    EXPECT_EQ(third.num_columns(), 2U);
    EXPECT_EQ(third.device(), Device{});
    EXPECT_EQ(shape_text(third.output(0, 5)), "(5, 3, 2)");
    EXPECT_EQ(third.output(1, 5).dtype, DType::i16);
}

template <class Change>
void expect_source_refused(const std::string& text, Change&& change) {
    Recordings r;
    BatchSource source = r.source();
    change(r, source);
    try {
        const BatchReader reader(source);
        FAIL() << "expected: " << text;
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
}

TEST(BatchReader, SourcesThatBreakTheContractAreNamed) {
    expect_source_refused("columns must be at least one", [](auto&, auto& s) { s.columns = {}; });
    expect_source_refused("rows must be 2 for each part, got 3", [](auto&, auto& s) { s.rows = s.rows.first(3); });
    expect_source_refused("tables must be 1 to 64, got 0", [](auto&, auto& s) { s.tables = {}; });
    expect_source_refused("part must have shape (3,), got (2,)",
                          [](auto&, auto& s) { s.part = s.part.slice(0, 0, 2); });
    expect_source_refused("part[1] must be from 0 to 1, got 2", [](auto& r, auto&) { r.part[1] = 2; });
    expect_source_refused("local[2] must be from 0 to", [](auto& r, auto&) { r.local[2] = -1; });
    expect_source_refused("local[2] must be below the 1 episodes of its part, got 1",
                          [](auto& r, auto&) { r.local[2] = 1; });
    expect_source_refused("columns[1].deltas must not be empty", [](auto& r, auto&) { r.columns[1].deltas = {}; });
    expect_source_refused("rows[0].stream must have offsets", [](auto& r, auto&) { r.rows[0].stream.offsets.reset(); });
    expect_source_refused("rows[2].offset must be there for a scaled column",
                          [](auto& r, auto&) { r.rows[2].offset.reset(); });
    expect_source_refused("rows[0].scale must have a size that divides the 2 elements of a row, got 0",
                          [](auto& r, auto&) { r.rows[0].scale = r.rows[0].scale->slice(0, 0, 0); });
    expect_source_refused("be floating for a scaled column, got int16",
                          [](auto& r, auto&) { r.columns[0].dtype = DType::i16; });
    expect_source_refused("rows[3].stream must be read alike in every part",
                          [](auto& r, auto&) { r.rows[3].stream.method = Method::next; });
    expect_source_refused("rows[2].values must have rows of float32", [](auto& r, auto&) {
        r.rows[2].stream.values = TensorView(r.arm[1].data(), DType::f32, {3});
        r.rows[2].offset = r.rows[2].scale = TensorView(r.offset.data(), DType::f64, {1});
    });
}

TEST(BatchReader, OutputsThatDoNotFitAreRefusedBeforeAnythingIsWritten) {
    const Recordings r;
    const BatchReader reader(r.source());
    const auto refused = [&](const std::string& text, auto&& change, std::int64_t first = 0) {
        Batch batch(2);
        std::vector<BatchOutput> outputs = batch.outputs();
        change(outputs);
        try {
            reader.read({}, first, outputs);
            FAIL() << "expected: " << text;
        } catch (const InvalidArgument& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
        EXPECT_EQ(batch, Batch(2)) << text;
    };
    refused("outputs must be 2, got 1", [](auto& o) { o.pop_back(); });
    refused("outputs[1].values must have dtype int16, got int32", [](auto& o) { o[1].values.dtype = DType::i32; });
    refused("outputs[1].values must have shape (2, 2), got (1, 2)",
            [](auto& o) { o[1].values = o[1].values.slice(0, 0, 1); });
    refused("outputs[0].padding must have shape (2, 3), got (2, 2)",
            [](auto& o) { o[0].padding = o[0].padding->slice(1, 0, 2); });
    refused("outputs[0].values must be contiguous", [](auto& o) { o[0].values.strides[0] = 12; });
    refused("first_position must leave 2 of 7 anchors, got 6", [](auto&) {}, 6);
    refused("first_position must be 0 or above, got -1", [](auto&) {}, -1);
}

/// Two features of the columns: arm relative to its second moment with grip, scaled for each source; and arm backwards.
struct Features {
    using Part = FeaturePartOf<ColumnChannels>;
    Integers source{0, 1, 1};
    Integers episode{4, 5, 6};
    std::vector<double> offset{1, 2, 3, -1, -2, -3};
    std::vector<double> scale{1, 0.5, 0.25, 3, 0.1, 7};
    std::vector<Part> joined{part(0, 0, 2), part(1, 0, 1)};
    std::vector<Part> swapped{part(0, 1, 1), part(0, 0, 1)};
    std::vector<ColumnChannels> paddings{{0, 0, -1}, {1, 0, -1}, {0, 0, 1}, {1, 0, 1}};
    std::vector<ColumnChannels> own{{0, 0, -1}};
    std::vector<BatchFeature> features{
        {joined, paddings, DType::f32, table(offset), table(scale)},
        {swapped, own, DType::f32, {}, {}},
    };

    static TensorView table(const std::vector<double>& x) { return {x.data(), DType::f64, {2, 3}}; }
    static Part part(std::size_t column, std::int64_t channel, std::int64_t count) {
        Part made;
        made.num_channels = count;
        made.values = ColumnChannels{column, channel, -1};
        return made;
    }

    Features() {
        for (std::size_t i = 0; i < 2; ++i) joined[i].from_values = ColumnChannels{i, 0, 1};
    }
    [[nodiscard]] BatchSource source_of(Recordings& r, bool hidden) const {
        r.columns[0].scaled = false;
        r.columns[1].deltas = r.deltas;
        for (BatchColumn& column : r.columns) column.hidden = hidden;
        BatchSource made = r.source();
        made.names = EpisodeNames{list(source), list(episode)};
        if (hidden) made.features = features;
        return made;
    }
};

TEST(BatchReader, FeaturesHaveTheBitsOfComposingWholeColumns) {
    for (const Outside outside : {Outside::hold, Outside::nan}) {
        Recordings r, all;
        for (std::size_t i = 0; i < 4; i += 2) {
            for (Recordings* one : {&r, &all}) one->rows[i].stream.before = one->rows[i].stream.after = outside;
        }
        const Features f;
        const BatchReader reader(f.source_of(r, true));
        const BatchReader columns(f.source_of(all, false));
        ASSERT_EQ(reader.num_outputs(), 2U);
        EXPECT_EQ(shape_text(reader.output(0, 5)), "(5, 3, 3)");
        for (std::int64_t first = 0; first < 7; ++first) {
            const std::int64_t n = 7 - first;
            const auto size = static_cast<std::size_t>(n);
            Floats arm(size * 6), joined(size * 9), swapped(size * 6), joined_too(size * 9), swapped_too(size * 6);
            std::vector<std::int16_t> grip(size * 3);
            std::vector<std::uint8_t> pads[6];
            for (auto& pad : pads) pad.assign(size * 3, 9);
            Integers source(size), episode(size), anchor(size);
            const auto pad = [&](std::size_t i) { return TensorView(pads[i].data(), DType::boolean, {n, 3}); };
            const auto floats = [&](const Floats& x, std::int64_t width) {
                return TensorView(x.data(), DType::f32, {n, 3, width});
            };
            const BatchIndex index{list(source), list(episode), list(anchor)};
            const std::vector<BatchOutput> out{{floats(joined, 3), pad(0)}, {floats(swapped, 2), pad(1)}};
            reader.read({5, 2}, first, out);
            const std::vector<BatchOutput> made{{floats(arm, 2), pad(2)},
                                                {TensorView(grip.data(), DType::i16, {n, 3}), pad(3)}};
            columns.read({5, 2}, first, made, {}, index);
            const TensorView rows[] = {made[0].values, TensorView(grip.data(), DType::i16, {n, 3, 1})};
            std::vector<FeaturePart> parts[2];
            std::vector<FeatureChannels> paddings[2];
            for (std::size_t k = 0; k < 2; ++k) {
                for (const auto& part : f.features[k].parts) {
                    FeaturePart& one = parts[k].emplace_back();
                    one.num_channels = part.num_channels;
                    one.values = FeatureChannels{rows[part.values->column], part.values->channel, -1};
                    if (part.from_values) one.from_values = FeatureChannels{rows[part.from_values->column], 0, 1};
                }
                for (const ColumnChannels& each : f.features[k].paddings) {
                    paddings[k].push_back({pad(2 + each.column), 0, each.moment});
                }
            }
            const std::vector<FeatureView> views{{parts[0], paddings[0], floats(joined_too, 3), pad(4),
                                                  f.features[0].offset, f.features[0].scale, list(source)},
                                                 {parts[1], paddings[1], floats(swapped_too, 2), pad(5), {}, {}, {}}};
            compose(views);
            EXPECT_EQ(std::memcmp(joined.data(), joined_too.data(), joined.size() * 4), 0);
            EXPECT_EQ(std::memcmp(swapped.data(), swapped_too.data(), swapped.size() * 4), 0);
            EXPECT_EQ(pads[0], pads[4]);
            EXPECT_EQ(pads[1], pads[5]);
        }
    }
}

TEST(BatchReader, FeaturesThatDoNotFitAreRefused) {
    const auto refused = [](const std::string& text, auto&& change) {
        Recordings r;
        Features f;
        BatchSource source = f.source_of(r, true);
        change(f, source);
        try {
            const BatchReader reader(source);
            FAIL() << "expected: " << text;
        } catch (const InvalidArgument& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
    };
    refused("columns must not be hidden without a feature", [](auto&, auto& s) { s.features = {}; });
    refused("features[1].column must be below 2, got 2", [](auto& f, auto&) { f.swapped[0].values->column = 2; });
    refused("features[1].values must have 1 samples, their moments and 1 channels from 2 on",
            [](auto& f, auto&) { f.swapped[0].values->channel = 2; });
    refused("features[0].from_values must have 1 samples", [](auto& f, auto&) { f.joined[0].from_values->moment = 3; });
    refused("features[1].parts must have a column each, got none", [](auto& f, auto&) { f.features[1].parts = {}; });
    refused("features[0].offset must have 3 numbers for each source", [](auto& f, auto&) {
        f.features[0].offset = f.features[0].scale = TensorView(f.offset.data(), DType::f64, {2, 2});
    });
    refused("features[0].offset must have a row for each source", [](auto&, auto& s) { s.names.reset(); });
    refused("names.source must be 0 or above, got -1", [](auto& f, auto&) { f.source[1] = -1; });
    refused("features[0].values must have a floating dtype", [](auto& f, auto&) { f.features[0].dtype = DType::i16; });
}

}  // namespace
}  // namespace robocache
