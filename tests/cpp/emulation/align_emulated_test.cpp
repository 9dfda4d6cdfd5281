// align and its gradient: the kernels give the bits of the CPU.
#include "both.hpp"
#include "robocache/align.hpp"

namespace robocache::emulated {
namespace {

/// Times of one episode, not decreasing: regular, jittered, in packets, with duplicates or a dropout.
std::vector<std::int64_t> episode_times(Random& random, std::int64_t count) {
    std::vector<std::int64_t> times;
    const std::int64_t kind = random.integer(0, 5);
    const std::int64_t period = random.one_of<std::int64_t>({1, 1'000'000, 33'333'333, 20'000'000});
    std::int64_t t = random.integer(-5, 5) * period;
    for (std::int64_t i = 0; i < count; ++i) {
        times.push_back(t);
        std::int64_t gap = period;
        if (kind == 1) gap = random.integer(1, 2 * period);
        if (kind == 2) gap = i % 8 == 7 ? 8 * period : random.integer(0, 1);
        if (kind == 3 && random.chance(0.2)) gap = 0;
        if (kind == 4 && i == count / 2) gap = 200 * period;
        if (kind == 5) gap = random.chance(0.5) ? 0 : random.integer(0, 3 * period);
        t += gap;
    }
    return times;
}

void put_times(DType dtype, const std::vector<std::int64_t>& ns, const Memory& memory) {
    for (std::size_t i = 0; i < ns.size(); ++i) {
        const double seconds = static_cast<double>(ns[i]) / 1e9;
        if (dtype == DType::i64) static_cast<std::int64_t*>(memory.data())[i] = ns[i];
        if (dtype == DType::f64) static_cast<double*>(memory.data())[i] = seconds;
        if (dtype == DType::f32) static_cast<float*>(memory.data())[i] = static_cast<float>(seconds);
    }
}

Memory times_memory(DType dtype, const std::vector<std::int64_t>& ns) {
    Memory memory(static_cast<std::int64_t>(ns.size()) * size_bytes(dtype));
    put_times(dtype, ns, memory);
    return memory;
}

/// Memory and views of one stream; the views are on the CPU.
struct Stream {
    Memory values, times, offsets;
    std::vector<ChannelRange> ranges;
    StreamView view;
    std::vector<std::int64_t> times_ns;
};

DType random_dtype(Random& random, bool floating) {
    if (floating) return random.one_of({DType::f32, DType::bf16, DType::f16, DType::f64});
    return random.one_of({DType::boolean, DType::u8, DType::i16, DType::u32, DType::i32, DType::i64, DType::u64});
}

Method random_method(Random& random, bool floating, std::int64_t width) {
    while (true) {
        const auto traits = method_traits();
        const auto& method =
            traits[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(traits.size()) - 1))];
        const bool fits =
            (floating || method.takes_integers) && (method.family != MethodFamily::quaternion || width % 4 == 0);
        const bool is_short = method.family == MethodFamily::row || method.method == Method::linear;
        if (fits && (is_short || random.chance(0.3))) return method.method;
    }
}

bool is_window(Method method) {
    return method == Method::mean || method == Method::min || method == Method::max || method == Method::rms;
}

Stream make_stream(Random& random, DType time, std::int64_t num_episodes, std::int64_t most_rows, Method method_wanted,
                   bool any_method) {
    Stream stream;
    const bool ragged = num_episodes == 1 ? random.chance(0.3) : random.chance(0.5);
    const bool single = num_episodes == 1 && !ragged && random.chance(0.5);
    const std::int64_t dense_rows = random.integer(random.chance(0.1) ? 0 : 1, most_rows);
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t e = 0; e < num_episodes; ++e) {
        const std::int64_t rows = ragged ? (random.chance(0.15) ? 0 : random.integer(1, most_rows)) : dense_rows;
        const auto times = episode_times(random, rows);
        stream.times_ns.insert(stream.times_ns.end(), times.begin(), times.end());
        offsets.push_back(static_cast<std::int64_t>(stream.times_ns.size()));
    }
    const bool floating = !any_method || random.chance(0.75);
    const DType dtype = random_dtype(random, floating);
    const std::int64_t width = random.one_of<std::int64_t>({1, 2, 3, 4, 7, 8, 14, 16, 32, 33, 64, 80});
    const auto num_rows = static_cast<std::int64_t>(stream.times_ns.size());
    const std::int64_t item = size_bytes(dtype);
    const std::int64_t gap = random.chance(0.15) ? random.integer(1, 3) : 0;  // elements between rows
    stream.values = Memory(num_rows * (width + gap) * item);
    for (std::int64_t i = 0; i < num_rows * (width + gap); ++i) {
        put_random(random, dtype, static_cast<char*>(stream.values.data()) + i * item, random.chance(0.3));
    }
    stream.times = times_memory(time, stream.times_ns);
    stream.offsets = Memory((num_episodes + 1) * 8);
    std::memcpy(stream.offsets.data(), offsets.data(), offsets.size() * 8);
    StreamView& view = stream.view;
    if (ragged || single) {
        view.values = TensorView(stream.values.data(), dtype, {num_rows, width + gap}).slice(1, 0, width);
        view.times = TensorView(stream.times.data(), time, {num_rows});
        if (ragged) view.offsets = TensorView(stream.offsets.data(), DType::i64, {num_episodes + 1});
    } else {
        view.values =
            TensorView(stream.values.data(), dtype, {num_episodes, dense_rows, width + gap}).slice(2, 0, width);
        view.times = TensorView(stream.times.data(), time, {num_episodes, dense_rows});
    }
    view.method = any_method ? random_method(random, floating, width) : method_wanted;
    if (any_method && width >= 8 && random.chance(0.2)) {
        for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{4}}) {
            Method method = random_method(random, floating, 4);
            while (is_window(method) != is_window(view.method)) method = random_method(random, floating, 4);
            stream.ranges.push_back({begin, begin + 4, method});
        }
        view.ranges = stream.ranges;
    }
    if (random.chance(0.3)) view.latency = std::chrono::nanoseconds(random.integer(-30'000'000, 30'000'000));
    if (random.chance(0.3)) view.max_gap = std::chrono::nanoseconds(random.integer(0, 60'000'000));
    if (random.chance(0.3)) view.tolerance = std::chrono::nanoseconds(random.integer(0, 2'000'000));
    const auto outside = [&] {
        const bool extends = floating && view.method == Method::linear && stream.ranges.empty();
        const Outside rule = random.one_of({Outside::hold, Outside::nan, Outside::linear});
        if (rule == Outside::linear && !extends) return Outside::hold;
        return rule == Outside::nan && !floating ? Outside::hold : rule;
    };
    view.before = outside();
    view.after = outside();
    view.outside_valid = random.chance(0.3);
    if (floating && random.chance(0.2)) view.dtype = random.one_of({DType::f32, DType::bf16, DType::f16, DType::f64});
    return stream;
}

/// A call: streams, query, and where its results go on one device.
struct Case {
    std::vector<Stream> streams;
    Memory times, anchor, deltas, episode;
    Query query;
    std::int64_t num_targets = 0;

    explicit Case(Random& random, bool any_method = true, Method method = Method::linear) {
        const DType time = random.one_of({DType::i64, DType::i64, DType::f64, DType::f32});
        const std::int64_t num_episodes = random.one_of<std::int64_t>({1, 2, 3, 9});
        const std::int64_t most_rows = random.one_of<std::int64_t>({1, 4, 20, 90, 700});
        const std::int64_t num_streams = random.one_of<std::int64_t>({1, 1, 1, 2, 4});
        for (std::int64_t i = 0; i < num_streams; ++i) {
            streams.push_back(make_stream(random, time, num_episodes, most_rows, method, any_method));
        }
        bool sorted = false;
        for (const Stream& s : streams) {
            sorted = sorted || is_window(s.view.method);
            for (const ChannelRange& range : s.ranges) sorted = sorted || is_window(range.method);
        }
        std::int64_t rows = num_episodes;
        if (random.chance(0.4)) {
            rows = random.integer(0, 12);
            std::vector<std::int64_t> numbers;
            for (std::int64_t b = 0; b < rows; ++b) numbers.push_back(random.integer(0, num_episodes - 1));
            episode = Memory(rows * 8);
            if (rows > 0) std::memcpy(episode.data(), numbers.data(), numbers.size() * 8);
            query.episode = TensorView(episode.data(), DType::i64, {rows});
        }
        num_targets = random.one_of<std::int64_t>({0, 1, 2, 5, 31, 32, 33, 64, 100, 257});
        std::vector<std::int64_t> all{0};
        for (const Stream& s : streams) all.insert(all.end(), s.times_ns.begin(), s.times_ns.end());
        const auto [low, high] = std::minmax_element(all.begin(), all.end());
        const std::int64_t margin = (*high - *low) / 5 + 10;
        const auto moment = [&] {
            if (random.chance(0.4))
                return all[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(all.size()) - 1))];
            return random.integer(*low - margin, *high + margin);
        };
        const std::int64_t form = random.integer(0, 2);
        if (form == 2) {
            std::vector<std::int64_t> anchors, steps;
            for (std::int64_t b = 0; b < rows; ++b) anchors.push_back(moment());
            for (std::int64_t j = 0; j < num_targets; ++j)
                steps.push_back(random.integer(-margin / 4 - 1, margin / 4 + 1));
            if (sorted) std::sort(steps.begin(), steps.end());
            anchor = times_memory(time, anchors);
            deltas = times_memory(time, steps);
            query.anchor = TensorView(anchor.data(), time, {rows});
            query.deltas = TensorView(deltas.data(), time, {num_targets});
        } else {
            std::vector<std::int64_t> targets;
            const std::int64_t count = form == 0 ? rows : 1;
            for (std::int64_t b = 0; b < count; ++b) {
                std::vector<std::int64_t> row;
                for (std::int64_t j = 0; j < num_targets; ++j) row.push_back(moment());
                if (sorted || random.chance(0.5)) std::sort(row.begin(), row.end());
                targets.insert(targets.end(), row.begin(), row.end());
            }
            times = times_memory(time, targets);
            query.times = form == 0 ? TensorView(times.data(), time, {rows, num_targets})
                                    : TensorView(times.data(), time, {num_targets});
        }
    }

    [[nodiscard]] std::vector<StreamView> views(Device device) const {
        std::vector<StreamView> views;
        for (const Stream& s : streams) {
            StreamView view = s.view;
            view.ranges = s.ranges;
            view.values = on(view.values, device);
            view.times = on(view.times, device);
            view.offsets = on(view.offsets, device);
            views.push_back(view);
        }
        return views;
    }
    [[nodiscard]] Query query_on(Device device) const {
        return {on(query.times, device), on(query.anchor, device), on(query.deltas, device), on(query.episode, device)};
    }
};

std::string describe(const Case& c) {
    std::string text;
    for (const Stream& s : c.streams) {
        text += std::string(method_name(s.view.method)) + " of " + name(s.view.values.dtype) + " " +
                shape_text(s.view.values) + " with times in " + name(s.view.times.dtype) + "; ";
    }
    return text + std::to_string(c.num_targets) + " targets";
}

/// Values, masks and indices of a call.
std::vector<Memory> results(const Case& c, Device device) {
    const auto views = c.views(device);
    const AlignPlan plan = plan_align(views, c.query_on(device), {.check = true});
    std::vector<Memory> memories;
    std::vector<AlignOutput> outputs;
    for (std::size_t i = 0; i < views.size(); ++i) {
        AlignOutput output = plan.output(i);
        for (TensorView* view : {&output.values, &*output.valid, &*output.index}) {
            memories.push_back(memory_of(*view));
            view->data = memories.back().data();
        }
        outputs.push_back(output);
    }
    const Memory workspace(plan.workspace_bytes());
    run(plan, outputs, {workspace.data(), workspace.size()});
    return memories;
}

void expect_the_same(const std::vector<Memory>& a, const std::vector<Memory>& b, std::uint64_t seed,
                     const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(difference(a[i], b[i]), "") << "result " << i << ", seed " << seed << ": " << what;
    }
}

class AlignOnTheEmulatedGpu : public testing::TestWithParam<int> {};

TEST_P(AlignOnTheEmulatedGpu, HasTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 60)) {
        Random random(seed);
        choose_gpu(random);
        const Case c(random);
        expect_the_same(results(c, cpu), results(c, gpu), seed, describe(c));
        if (testing::Test::HasFailure()) return;
    }
}

/// Sums of gradients of several targets have no order on a GPU: they are compared within their rounding.
TEST_P(AlignOnTheEmulatedGpu, HasTheGradientOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 25)) {
        Random random(seed);
        choose_gpu(random);
        const Case c(random, false, random.one_of({Method::linear, Method::previous, Method::nearest, Method::next}));
        std::vector<std::vector<double>> sums[2];
        std::vector<Memory> gradients;
        for (const Device device : {cpu, gpu}) {
            const auto views = c.views(device);
            const AlignPlan plan = plan_align(views, c.query_on(device), {.check = false});
            std::vector<std::optional<AlignGradient>> all;
            std::vector<Memory> memories;
            for (std::size_t s = 0; s < views.size(); ++s) {
                if (s % 4 == 3) {  // no gradient is requested
                    all.emplace_back();
                    memories.emplace_back();
                    continue;
                }
                AlignGradient gradient;
                gradient.output = plan.output(s).values;
                gradient.output.dtype = DType::f32;
                if (device == cpu) {
                    gradients.resize(views.size());
                    gradients[s] = memory_of(gradient.output);
                    for (std::int64_t k = 0; k < gradient.output.num_elements(); ++k) {
                        static_cast<float*>(gradients[s].data())[k] = static_cast<float>(random.integer(-8, 8));
                    }
                }
                gradient.output.data = gradients[s].data();
                const bool wide = views[s].values.dtype == DType::f64;
                const TensorView& v = views[s].values;
                gradient.values = v.rank == 3 ? TensorView(static_cast<void*>(nullptr), wide ? DType::f64 : DType::f32,
                                                           {v.shape[0], v.shape[1], v.shape[2]}, device)
                                              : TensorView(static_cast<void*>(nullptr), wide ? DType::f64 : DType::f32,
                                                           {v.shape[0], v.shape[1]}, device);
                memories.emplace_back(gradient.values.num_elements() * size_bytes(gradient.values.dtype),
                                      std::uint8_t{0});
                gradient.values.data = memories.back().data();
                all.emplace_back(gradient);
            }
            run_backward(plan, all);
            for (std::size_t s = 0; s < views.size(); ++s) {
                std::vector<double> numbers;
                if (all[s]) {
                    const std::int64_t count = all[s]->values.num_elements();
                    for (std::int64_t k = 0; k < count; ++k) {
                        numbers.push_back(all[s]->values.dtype == DType::f64
                                              ? static_cast<double*>(memories[s].data())[k]
                                              : static_cast<double>(static_cast<float*>(memories[s].data())[k]));
                    }
                }
                sums[device == gpu].push_back(numbers);
            }
        }
        for (std::size_t s = 0; s < c.streams.size(); ++s) {
            ASSERT_EQ(sums[0][s].size(), sums[1][s].size());
            double largest = 1;
            for (const double x : sums[0][s]) largest = std::max(largest, std::fabs(x));
            for (std::size_t k = 0; k < sums[0][s].size(); ++k) {
                ASSERT_NEAR(sums[0][s][k], sums[1][s][k], 1e-5 * largest) << "seed " << seed << ": " << describe(c);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AlignOnTheEmulatedGpu, testing::Range(0, 6));

}  // namespace
}  // namespace robocache::emulated
