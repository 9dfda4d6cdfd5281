// Batches, their order, scaling and features: the kernels give the bits of the CPU.
#include "both.hpp"
#include "robocache/feature.hpp"
#include "robocache/loader.hpp"

namespace robocache::emulated {
namespace {

using Integers = std::vector<std::int64_t>;

TensorView list(const Integers& x, Device device = cpu) {
    return {x.data(), DType::i64, {static_cast<std::int64_t>(x.size())}, device};
}
TensorView list(const std::vector<double>& x) {
    return {x.data(), DType::f64, {static_cast<std::int64_t>(x.size())}};
}

/// The anchors of one dataset: the times of rows, or a regular grid; perhaps drawn by weight.
struct Table {
    Integers prefix{0}, times, slots;
    double period_ns = 0;
    std::int64_t quota = 1;

    [[nodiscard]] AnchorTable on_device(Device device) const {
        AnchorTable table{list(prefix, device), list(times, device), prefix.back(), period_ns, quota};
        if (!slots.empty()) table.slots = list(slots, device);
        return table;
    }
};

struct Column {
    Integers deltas;
    DType stored = DType::f32;
    DType given = DType::f32;
    std::int64_t width = 1;
    bool scaled = false;
    bool pads = true;
    Method method = Method::linear;
    Outside before = Outside::hold, after = Outside::hold;
    std::chrono::nanoseconds latency{0}, tolerance{0};
    bool has_max_gap = false;
};

/// Rows of one column in one part.
struct Rows {
    Memory values;
    Integers times, offsets{0};
    std::vector<double> offset, scale;
    StreamView view;
};

struct Dataset {
    std::vector<Table> tables;
    Integers part, local, source, number;
    std::vector<Column> columns;
    std::vector<Rows> rows;  // part * columns + column
    SampleOrder order;
    Integers numbers;
    std::int64_t num_samples = 0;

    explicit Dataset(Random& random) {
        const std::int64_t num_columns = random.integer(1, 4);
        const bool copies = random.chance(0.4);  // windows that are copied as they are
        for (std::int64_t c = 0; c < num_columns; ++c) columns.push_back(make_column(random, copies));
        const std::int64_t num_tables = random.one_of<std::int64_t>({1, 1, 2, 3});
        std::vector<Integers> starts, lengths;  // of episodes, by part
        for (std::int64_t t = 0; t < num_tables; ++t) {
            Table table;
            const std::int64_t period = random.one_of<std::int64_t>({20'000'000, 33'333'333});
            const bool regular = random.chance(0.4);
            const std::int64_t num_parts = random.integer(1, 2);
            for (std::int64_t p = 0; p < num_parts; ++p) {
                starts.emplace_back();
                lengths.emplace_back();
                const std::int64_t num_episodes = random.integer(1, 4);
                for (std::int64_t e = 0; e < num_episodes; ++e) {
                    const std::int64_t anchors =
                        t == 0 && p == 0 && e == 0 ? random.integer(1, 60) : random.integer(0, 60);
                    const std::int64_t start = random.integer(-1000, 1000) * 1'000'000;
                    starts.back().push_back(start);
                    lengths.back().push_back(anchors * period);
                    part.push_back(static_cast<std::int64_t>(starts.size()) - 1);
                    local.push_back(e);
                    source.push_back(t);
                    number.push_back(random.integer(0, 99));
                    table.prefix.push_back(table.prefix.back() + anchors);
                    if (regular)
                        table.times.push_back(start);
                    else
                        for (std::int64_t k = 0; k < anchors; ++k)
                            table.times.push_back(start + k * period + random.integer(0, 3));
                }
            }
            if (table.prefix.back() == 0) {  // every table has an anchor
                table.prefix.back() = 1;
                if (!regular) table.times.push_back(starts.back().back());
            }
            if (regular) table.period_ns = static_cast<double>(period) + random.one_of({0.0, 1.0 / 3});
            table.quota = random.integer(1, 5);
            if (random.chance(0.3)) {
                std::vector<double> weights;
                for (std::int64_t k = 0; k < table.prefix.back(); ++k)
                    weights.push_back(random.chance(0.3) ? 0 : random.real(0, 2));
                weights[0] += 0.1;
                table.slots.resize(weights.size());
                make_alias_table(list(weights), list(table.slots));
            }
            tables.push_back(std::move(table));
        }
        for (std::size_t p = 0; p < starts.size(); ++p) {
            for (const Column& column : columns) rows.push_back(make_rows(random, column, starts[p], lengths[p]));
        }
        order.seed = static_cast<std::uint64_t>(random.integer(0, 1000));
        order.epoch = random.integer(0, 4);
        order.shuffle = random.chance(0.8);
        num_samples = tables[0].prefix.back();
        if (num_tables > 1 || random.chance(0.2)) order.epoch_size = num_samples = random.integer(1, 200);
        if (random.chance(0.2)) {
            std::int64_t all = 0;
            for (const Table& table : tables) all += table.prefix.back();
            for (std::int64_t k = 0; k < 150; ++k) numbers.push_back(random.integer(0, all - 1));
            num_samples = 150;
            order.epoch_size = 0;
        }
    }

    [[nodiscard]] SampleOrder order_on(Device device) const {
        SampleOrder moved = order;
        if (!numbers.empty()) moved.numbers = list(numbers, device);
        return moved;
    }

    [[nodiscard]] BatchReader reader(Device device) const {
        std::vector<AnchorTable> moved;
        for (const Table& table : tables) moved.push_back(table.on_device(device));
        std::vector<BatchColumn> described;
        for (const Column& c : columns) described.push_back({c.deltas, c.given, c.scaled});
        std::vector<BatchRows> all;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            StreamView view = rows[i].view;
            view.values = on(view.values, device);
            view.times = on(view.times, device);
            view.offsets = on(view.offsets, device);
            all.push_back({view, {}, {}});
            if (columns[i % columns.size()].scaled) {
                all.back().offset = list(rows[i].offset);
                all.back().scale = list(rows[i].scale);
            }
        }
        BatchSource from{moved, list(part), list(local), described, all};
        from.names = EpisodeNames{list(source), list(number)};
        return BatchReader(from);
    }

private:
    static Column make_column(Random& random, bool copies) {
        Column column;
        const std::int64_t count = random.one_of<std::int64_t>({1, 2, 5, 17, 40});
        const std::int64_t step = random.one_of<std::int64_t>({20'000'000, 33'333'333, 7'000'000});
        for (std::int64_t j = 0; j < count; ++j)
            column.deltas.push_back((j - count / 3) * step + (random.chance(0.1) ? 1 : 0));
        column.stored = random.one_of({DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64, DType::u8,
                                       DType::i16, DType::i32, DType::i64});
        const bool floating = is_floating(column.stored);
        column.given = random.chance(0.5) ? column.stored : random.one_of({DType::f32, DType::bf16, DType::f16});
        const bool computed = floating || column.stored == DType::u8;  // others are copied on a GPU
        if (!computed) column.given = column.stored;
        column.scaled = is_floating(column.given) && computed && random.chance(0.4);
        column.width = random.one_of<std::int64_t>({1, 2, 3, 7, 8, 16, 32, 40});
        column.method = floating && random.chance(0.6)
                            ? Method::linear
                            : random.one_of({Method::previous, Method::nearest, Method::next});
        if (copies) {
            column.stored = column.given = random.one_of({DType::f32, DType::bf16});
            column.scaled = false;
            column.width = random.one_of<std::int64_t>({8, 16, 32});
        }
        if (random.chance(0.2) && floating) column.before = column.after = Outside::nan;
        if (random.chance(0.3)) column.latency = std::chrono::nanoseconds(random.integer(-20'000'000, 20'000'000));
        if (random.chance(0.5)) column.tolerance = std::chrono::nanoseconds(random.integer(0, 1000));
        column.has_max_gap = random.chance(0.3);
        column.pads = random.chance(0.8);
        return column;
    }

    static Rows make_rows(Random& random, const Column& column, const Integers& starts, const Integers& lengths) {
        Rows rows;
        const std::int64_t period = random.one_of<std::int64_t>({20'000'000, 2'000'000, 33'333'333, 100'000'000});
        const std::int64_t kind = random.integer(0, 4);
        for (std::size_t e = 0; e < starts.size(); ++e) {
            const std::int64_t count =
                random.chance(0.1) ? 0 : std::min<std::int64_t>(lengths[e] / period + random.integer(1, 4), 500);
            std::int64_t t = starts[e];
            for (std::int64_t i = 0; i < count; ++i) {
                rows.times.push_back(kind == 0 ? starts[e] + i * period : t);
                if (kind == 1)
                    t += random.integer(0, 2 * period);
                else if (kind == 2)
                    t += random.chance(0.1) ? 0 : period;
                else if (kind == 3)
                    t += i == count / 2 ? 30 * period : period;
                else
                    t += period;
            }
            rows.offsets.push_back(static_cast<std::int64_t>(rows.times.size()));
        }
        const auto num_rows = static_cast<std::int64_t>(rows.times.size());
        const std::int64_t item = size_bytes(column.stored);
        rows.values = Memory(num_rows * column.width * item);
        for (std::int64_t i = 0; i < num_rows * column.width; ++i) {
            put_random(random, column.stored, static_cast<char*>(rows.values.data()) + i * item, random.chance(0.1));
        }
        for (std::int64_t c = 0; c < column.width; ++c) {
            rows.offset.push_back(random.real(-1, 1));
            rows.scale.push_back(random.real(0.1, 3));
        }
        rows.view.values = TensorView(rows.values.data(), column.stored, {num_rows, column.width});
        rows.view.times = list(rows.times);
        rows.view.offsets = list(rows.offsets);
        rows.view.method = column.method;
        rows.view.before = column.before;
        rows.view.after = column.after;
        rows.view.latency = column.latency;
        rows.view.tolerance = column.tolerance;
        if (column.has_max_gap) rows.view.max_gap = std::chrono::nanoseconds(random.integer(0, 3 * period));
        return rows;
    }
};

/// Values, paddings and index of a batch.
std::vector<Memory> read(const Dataset& data, Device device, std::int64_t first, std::int64_t size, std::int64_t step) {
    const BatchReader reader = data.reader(device);
    std::vector<Memory> memories;
    std::vector<BatchOutput> outputs;
    for (std::size_t c = 0; c < data.columns.size(); ++c) {
        BatchOutput output{reader.output(c, size), {}};
        memories.push_back(memory_of(output.values));
        output.values.data = memories.back().data();
        if (data.columns[c].pads) {
            output.padding =
                TensorView(static_cast<void*>(nullptr), DType::boolean, {size, output.values.shape[1]}, device);
            memories.push_back(memory_of(*output.padding));
            output.padding->data = memories.back().data();
        }
        outputs.push_back(output);
    }
    BatchIndex index;
    for (TensorView* view : {&index.source, &index.episode, &index.anchor}) {
        *view = TensorView(static_cast<void*>(nullptr), DType::i64, {size}, device);
        memories.push_back(memory_of(*view));
        view->data = memories.back().data();
    }
    if (step < 0) {
        reader.read(data.order_on(device), first, outputs, {}, index);
    } else {
        reader.read(data.order_on(device), BatchSteps{TensorView(&step, DType::i64, {}, device), 3, 1, first}, outputs,
                    {}, index);
    }
    return memories;
}

void expect_the_same(const std::vector<Memory>& a, const std::vector<Memory>& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(difference(a[i], b[i]), "") << "result " << i << ", " << what;
}

class BatchOnTheEmulatedGpu : public testing::TestWithParam<int> {};

TEST_P(BatchOnTheEmulatedGpu, HasTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 40)) {
        Random random(seed);
        choose_gpu(random);
        const Dataset data(random);
        const std::int64_t size = random.integer(1, std::min<std::int64_t>(data.num_samples, 150));
        const std::int64_t first = random.integer(0, data.num_samples - size);
        // Positions of a step: step % 3 + first, so there must be two more.
        const bool told = data.numbers.empty() && first + size + 2 <= data.num_samples && random.chance(0.3);
        const std::int64_t step = told ? random.integer(0, 8) : -1;
        expect_the_same(
            read(data, cpu, first, size, step), read(data, gpu, first, size, step),
            "seed " + std::to_string(seed) + ", batch of " + std::to_string(size) + (told ? ", a step in memory" : ""));
        if (testing::Test::HasFailure()) return;
    }
}

TEST_P(BatchOnTheEmulatedGpu, NormalizesToTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 30)) {
        Random random(seed);
        choose_gpu(random);
        const DType from = random.one_of({DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32,
                                          DType::i64, DType::u64, DType::boolean});
        const DType to = random.one_of({DType::f32, DType::f64, DType::bf16, DType::f16});
        const std::int64_t rows = random.integer(0, 40);
        const std::int64_t width = random.integer(1, 20);
        std::vector<double> offset, scale;
        for (std::int64_t c = 0; c < width; ++c) {
            offset.push_back(random.real(-2, 2));
            scale.push_back(random.real(-3, 3));
        }
        const Memory values(rows * width * size_bytes(from));
        for (std::int64_t k = 0; k < rows * width; ++k) {
            put_random(random, from, static_cast<char*>(values.data()) + k * size_bytes(from), random.chance(0.2));
        }
        std::vector<Memory> results[2];
        for (const Device device : {cpu, gpu}) {
            TensorView out(static_cast<void*>(nullptr), to, {rows, width}, device);
            results[device == gpu].push_back(memory_of(out));
            out.data = results[device == gpu][0].data();
            normalize(TensorView(values.data(), from, {rows, width}, device), on(list(offset), device),
                      on(list(scale), device), out);
        }
        expect_the_same(results[0], results[1],
                        std::string("seed ") + std::to_string(seed) + ": " + name(from) + " to " + name(to));
    }
}

/// Parts of every kind, from columns that hold a position, a quaternion and some numbers.
TEST_P(BatchOnTheEmulatedGpu, ComposesFeaturesToTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 40)) {
        Random random(seed);
        choose_gpu(random);
        const std::int64_t size = random.integer(1, 30);
        const std::int64_t moments = random.integer(1, 9);
        const std::int64_t width = random.integer(8, 14);
        const DType dtype = random.one_of({DType::f32, DType::f64, DType::bf16, DType::f16});
        const DType out_dtype = random.one_of({DType::f32, DType::f64, DType::bf16, DType::f16});
        const Memory rows(size * moments * width * size_bytes(dtype));
        for (std::int64_t k = 0; k < size * moments * width; ++k) {
            put_random(random, dtype, static_cast<char*>(rows.data()) + k * size_bytes(dtype), random.chance(0.1));
        }
        if (random.chance(0.2)) std::memset(rows.data(), 0, static_cast<std::size_t>(rows.size() / 2));  // no rotations
        const Memory padded(size * moments);
        for (std::int64_t k = 0; k < size * moments; ++k)
            static_cast<std::uint8_t*>(padded.data())[k] = random.chance(0.2) ? 1 : 0;
        const TensorView view(rows.data(), dtype, {size, moments, width});
        const auto form = [&] { return static_cast<RotationForm>(random.integer(0, 6)); };
        const auto stored = [&] {
            return random.one_of({RotationForm::quaternion_xyzw, RotationForm::quaternion_wxyz});
        };
        std::vector<FeaturePart> parts;
        std::int64_t channels = 0;
        const std::int64_t num_parts = random.integer(1, 3);
        for (std::int64_t p = 0; p < num_parts; ++p) {
            FeaturePart part;
            part.math = static_cast<FeatureMath>(random.integer(0, 3));
            const bool relative = random.chance(0.5);
            const std::int64_t anchor = random.integer(0, moments - 1);
            const auto at = [&](std::int64_t channel, std::int64_t moment) {
                return FeatureChannels{view, channel, moment};
            };
            if (part.math == FeatureMath::values || part.math == FeatureMath::angles) {
                part.num_channels = random.integer(1, 8);
                part.period = part.math == FeatureMath::angles ? random.one_of({360.0, 6.283185307179586}) : 0;
                part.values = at(0, -1);
                if (relative) part.from_values = at(random.integer(0, width - part.num_channels), anchor);
                channels += part.num_channels;
            } else {
                part.stored = stored();
                part.form = form();
                part.turn = at(width - 4, random.chance(0.2) ? anchor : -1);
                if (relative) part.from_turn = at(random.integer(0, width - 4), anchor);
                if (part.math == FeatureMath::pose) {
                    part.values = at(0, -1);
                    if (relative) part.from_values = at(3, anchor);
                    channels += 3;
                }
                channels += num_channels(part.form);
            }
            parts.push_back(part);
        }
        const std::vector<FeatureChannels> paddings{
            {TensorView(padded.data(), DType::boolean, {size, moments, 1}), 0, -1}};
        const std::int64_t num_sources = random.integer(1, 3);
        std::vector<double> offset, scale;
        for (std::int64_t k = 0; k < num_sources * channels; ++k) {
            offset.push_back(random.real(-1, 1));
            scale.push_back(random.real(0.2, 2));
        }
        Integers sources;
        for (std::int64_t b = 0; b < size; ++b) sources.push_back(random.integer(0, num_sources - 1));
        const bool scaled = random.chance(0.5);
        std::vector<Memory> results[2];
        for (const Device device : {cpu, gpu}) {
            const auto moved = [&](std::optional<FeatureChannels> c) {
                if (c) c->rows = on(c->rows, device);
                return c;
            };
            std::vector<FeaturePart> there = parts;
            for (FeaturePart& part : there) {
                part.values = moved(part.values);
                part.turn = moved(part.turn);
                part.from_values = moved(part.from_values);
                part.from_turn = moved(part.from_turn);
            }
            std::vector<FeatureChannels> pads = paddings;
            pads[0].rows = TensorView(padded.data(), DType::boolean, {size, moments}, device);
            FeatureView feature;
            feature.parts = there;
            feature.paddings = pads;
            feature.values = TensorView(static_cast<void*>(nullptr), out_dtype, {size, moments, channels}, device);
            feature.padding = TensorView(static_cast<void*>(nullptr), DType::boolean, {size, moments}, device);
            for (TensorView* to : {&feature.values, &feature.padding}) {
                results[device == gpu].push_back(memory_of(*to));
                to->data = results[device == gpu].back().data();
            }
            if (scaled) {
                feature.offset = TensorView(offset.data(), DType::f64, {num_sources, channels}, device);
                feature.scale = TensorView(scale.data(), DType::f64, {num_sources, channels}, device);
                feature.source = list(sources, device);
            }
            compose({&feature, 1});
        }
        expect_the_same(results[0], results[1], "seed " + std::to_string(seed));
        if (testing::Test::HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BatchOnTheEmulatedGpu, testing::Range(0, 5));

}  // namespace
}  // namespace robocache::emulated
