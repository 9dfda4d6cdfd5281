// Samples by weight and samples by given numbers, as a C++ user calls them: sample_anchors and BatchReader.
#include "batch/order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/loader.hpp"

namespace robocache {
namespace {

using Integers = std::vector<std::int64_t>;
using Weights = std::vector<double>;

constexpr double two_32 = 4294967296.0;

TensorView list(const Integers& x) {
    return {x.data(), DType::i64, {static_cast<std::int64_t>(x.size())}};
}
TensorView list(const Weights& x) {
    return {x.data(), DType::f64, {static_cast<std::int64_t>(x.size())}};
}

template <class Call>
void expect_refused(const std::string& text, Call&& call) {
    try {
        call();
        FAIL() << "expected: " << text;
    } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()), text);
    }
}

Integers slots_of(const Weights& weights) {
    Integers slots(weights.size(), -7);
    make_alias_table(list(weights), list(slots));
    return slots;
}

/// One episode per anchor, so that the episode is the number of the anchor and its time is first_time + number.
struct Anchors {
    Integers prefix, times, slots;

    explicit Anchors(std::size_t count, std::int64_t first_time = 0, const Weights& weights = {})
        : prefix(count + 1), times(count) {
        std::iota(prefix.begin(), prefix.end(), 0);
        std::iota(times.begin(), times.end(), first_time);
        if (!weights.empty()) slots = slots_of(weights);
    }
    [[nodiscard]] AnchorTable table(std::int64_t quota = 1) const {
        AnchorTable table{list(prefix), list(times), static_cast<std::int64_t>(times.size()), 0, quota};
        if (!slots.empty()) table.slots = list(slots);
        return table;
    }
};

struct Drawn {
    Integers episode, anchor;
    bool operator==(const Drawn&) const = default;
};

Drawn draw(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t first, std::int64_t size) {
    Drawn drawn{Integers(static_cast<std::size_t>(size), -7), Integers(static_cast<std::size_t>(size), -7)};
    sample_anchors(tables, order, first, list(drawn.episode), list(drawn.anchor));
    return drawn;
}
Drawn draw(const AnchorTable& table, const SampleOrder& order, std::int64_t first, std::int64_t size) {
    return draw(std::span(&table, 1), order, first, size);
}

/// The same positions, read in pieces of one size.
Drawn draw_in_pieces(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t size,
                     std::int64_t piece) {
    Drawn all;
    for (std::int64_t first = 0; first < size; first += piece) {
        const Drawn part = draw(tables, order, first, std::min(piece, size - first));
        all.episode.insert(all.episode.end(), part.episode.begin(), part.episode.end());
        all.anchor.insert(all.anchor.end(), part.anchor.begin(), part.anchor.end());
    }
    return all;
}

Integers counts_of(const Integers& numbers, std::size_t count) {
    Integers counts(count);
    for (const std::int64_t number : numbers) ++counts.at(static_cast<std::size_t>(number));
    return counts;
}

/// Counts of independent draws are binomial: each within five standard deviations, and exactly 0 for weight 0.
void expect_frequencies(const Integers& counts, const Weights& weights) {
    const auto size = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const double p = weights[i] / sum;
        EXPECT_LE(std::abs(static_cast<double>(counts[i]) - size * p), 5 * std::sqrt(size * p * (1 - p)))
            << "anchor " << i << ": " << counts[i] << " of " << size << ", expected " << size * p;
    }
}

// ---- the alias table ------------------------------------------------------------------------------------------------

/// How many of the N * 2^32 equally likely outcomes of a draw give each anchor.
std::vector<std::uint64_t> shares_of(const Integers& slots) {
    std::vector<std::uint64_t> shares(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const loader_detail::AliasSlot slot = loader_detail::slot_of(slots[i]);
        shares[i] += slot.threshold;
        shares.at(slot.alias) += (std::uint64_t{1} << 32) - slot.threshold;
    }
    return shares;
}

TEST(MakeAliasTable, EachShareIsTheWeightOverTheSumToOneOutcome) {
    Weights uneven(1000);
    for (std::size_t i = 0; i < uneven.size(); ++i) uneven[i] = i % 7 == 0 ? 0 : static_cast<double>(i * i % 911 + 1);
    for (const Weights& weights : {Weights{5}, Weights{1, 1}, Weights{0, 1, 2, 3, 0, 10}, Weights{0, 0, 0.25}, uneven,
                                   Weights(1000, 0.1), Weights{1e308, 1e308, 5e307}, Weights{3e-320, 1e-320}}) {
        const double largest = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (const double weight : weights) sum += weight / largest;
        const std::vector<std::uint64_t> shares = shares_of(slots_of(weights));
        const auto all = two_32 * static_cast<double>(weights.size());
        for (std::size_t i = 0; i < weights.size(); ++i) {
            if (weights[i] == 0) {
                EXPECT_EQ(shares[i], 0U) << i;
            }
            // 0.01: rounding of the expected share itself, which has up to 42 bits here
            EXPECT_LE(std::abs(static_cast<double>(shares[i]) - weights[i] / largest / sum * all), 1.01)
                << weights.size() << " weights, anchor " << i;
        }
    }
}

TEST(MakeAliasTable, AWeightTooSmallForAShareHasOneOutcome) {
    Weights weights(1000, 1e-300);
    weights[500] = 1;
    const std::vector<std::uint64_t> shares = shares_of(slots_of(weights));
    for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(shares[i], i == 500 ? (std::uint64_t{1000} << 32) - 999 : 1U) << i;
    }
}

TEST(MakeAliasTable, WeightsThatBreakTheContractAreNamedAndNothingIsWritten) {
    const auto refused = [](const std::string& text, const Weights& weights, std::size_t num_slots) {
        Integers slots(num_slots, -7);
        expect_refused("make_alias_table: " + text, [&] { make_alias_table(list(weights), list(slots)); });
        EXPECT_EQ(slots, Integers(num_slots, -7)) << text;
    };
    const double infinity = std::numeric_limits<double>::infinity();
    refused("weights[1] must be finite and 0 or above, got nan", {1, std::nan(""), 1}, 3);
    refused("weights[2] must be finite and 0 or above, got -0.5", {1, 2, -0.5}, 3);
    refused("weights[0] must be finite and 0 or above, got inf", {infinity, 1}, 2);
    refused("weights[0] must be finite and 0 or above, got -inf", {-infinity, 1}, 2);
    refused("weights must have one that is above 0, got none", {0, 0, 0}, 3);
    refused("weights must be 1 to 2147483647 numbers, got 0", {}, 0);
    refused("slots must have shape (3,), got (2,)", {1, 2, 3}, 2);
    refused("slots must have shape (3,), got (4,)", {1, 2, 3}, 4);

    const Weights weights{1, 2};
    Integers slots(2, -7);
    expect_refused("make_alias_table: weights must have dtype float64, got int64",
                   [&] { make_alias_table(list(slots), list(slots)); });
    expect_refused("make_alias_table: slots must have dtype int64, got float64",
                   [&] { make_alias_table(list(weights), list(weights)); });
    expect_refused("make_alias_table: weights must have 1 dimension, got shape (1, 2)",
                   [&] { make_alias_table(TensorView(weights.data(), DType::f64, {1, 2}), list(slots)); });
    EXPECT_EQ(slots, Integers(2, -7));
}

// ---- samples by weight ----------------------------------------------------------------------------------------------

const Weights few{0, 1, 2, 3, 0, 10};

TEST(SamplesByWeight, FrequenciesFollowTheWeightsAndWeightZeroIsNeverDrawn) {
    const Anchors anchors(few.size(), 0, few);
    const std::int64_t size = 200000;
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
        expect_frequencies(counts_of(draw(anchors.table(), {seed, 0, size}, 0, size).anchor, few.size()), few);
    }
}

TEST(SamplesByWeight, FrequenciesFollowTheWeightsOverEpochsOfTheSizeOfTheTable) {
    const Anchors anchors(few.size(), 0, few);
    const auto size = static_cast<std::int64_t>(few.size());
    Integers all;
    for (std::int64_t epoch = 0; epoch < 20000; ++epoch) {
        const Drawn drawn = draw(anchors.table(), {3, epoch}, 0, size);
        all.insert(all.end(), drawn.anchor.begin(), drawn.anchor.end());
    }
    expect_frequencies(counts_of(all, few.size()), few);
}

TEST(SamplesByWeight, ADrawIsTheOneInTheGuide) {
    __extension__ using Wide = unsigned __int128;
    constexpr std::uint64_t g = 0x9e3779b97f4a7c15U;
    Weights weights(1001);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 13);
    const Anchors anchors(weights.size(), 0, weights);
    const std::uint64_t seed = 9;
    for (const std::int64_t epoch : {0, 1, 77}) {
        const Drawn drawn = draw(anchors.table(), {seed, epoch}, 0, 1001);
        const std::uint64_t key = loader_detail::key_of(seed, static_cast<std::uint64_t>(epoch), 1);
        for (std::size_t p = 0; p < weights.size(); ++p) {
            const Wide x = Wide{loader_detail::mix(key + (p + 1) * g)} * weights.size();
            const auto i = static_cast<std::size_t>(x >> 64);
            const auto r = static_cast<std::uint32_t>(x >> 32);
            const auto slot = static_cast<std::uint64_t>(anchors.slots[i]);
            const std::uint64_t expected = r < slot >> 32 ? i : slot & 0xffffffffU;
            ASSERT_EQ(static_cast<std::uint64_t>(drawn.anchor[p]), expected) << epoch << " " << p;
            ASSERT_EQ(drawn.episode[p], drawn.anchor[p]);
        }
    }
}

TEST(SamplesByWeight, AnySplitOfThePositionsGivesTheSameSamples) {
    Weights weights(5000);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 5);
    const Anchors one(weights.size(), 0, weights);
    const Anchors two(300, 10000);
    const std::vector<AnchorTable> single{one.table()};
    const std::vector<AnchorTable> mixture{one.table(3), two.table(2)};
    for (const auto& [tables, order] :
         {std::pair(single, SampleOrder{11, 2}), std::pair(single, SampleOrder{11, 2, 7000}),
          std::pair(mixture, SampleOrder{11, 2, 5000})}) {
        const Drawn whole = draw(tables, order, 0, 5000);
        for (const std::int64_t piece : {1, 7, 64, 4999}) {
            EXPECT_EQ(draw_in_pieces(tables, order, 5000, piece), whole) << "pieces of " << piece;
        }
    }
}

TEST(SamplesByWeight, SeedsAndEpochsDifferAndShuffleIsIgnored) {
    const Anchors anchors(1000, 0, Weights(1000, 1.0));
    const Drawn drawn = draw(anchors.table(), {1, 1}, 0, 1000);
    EXPECT_NE(draw(anchors.table(), {2, 1}, 0, 1000), drawn);
    EXPECT_NE(draw(anchors.table(), {1, 2}, 0, 1000), drawn);
    EXPECT_EQ(draw(anchors.table(), {1, 1, 0, false}, 0, 1000), drawn);
    const Integers counts = counts_of(drawn.anchor, 1000);
    EXPECT_GT(*std::max_element(counts.begin(), counts.end()), 1);  // with replacement
}

TEST(SamplesByWeight, InAMixtureTheQuotasStayAndTheWeightsDecideWithinTheirTable) {
    const Anchors weighted(few.size(), 0, few);
    const Anchors plain(10, 100);
    const std::vector<AnchorTable> tables{weighted.table(3), plain.table(1)};
    const std::int64_t size = 80000;
    Integers first, second;
    for (const std::int64_t anchor : draw(tables, {5, 0, size}, 0, size).anchor) {
        anchor < 100 ? first.push_back(anchor) : second.push_back(anchor - 100);
    }
    EXPECT_EQ(first.size(), 60000U);
    expect_frequencies(counts_of(first, few.size()), few);
    EXPECT_EQ(counts_of(second, 10), Integers(10, 2000));  // without weights: each anchor once per pass
}

TEST(SamplesByWeight, SlotsThatDoNotFitTheTableAreNamedAndNothingIsWritten) {
    const Anchors anchors(4, 0, {1, 2, 3, 4});
    const auto refused = [&](const std::string& text, const TensorView& slots) {
        AnchorTable table = anchors.table();
        table.slots = slots;
        Drawn out{Integers(2, -7), Integers(2, -7)};
        expect_refused("sample_anchors: " + text,
                       [&] { sample_anchors({&table, 1}, {}, 0, list(out.episode), list(out.anchor)); });
        EXPECT_EQ(out, (Drawn{Integers(2, -7), Integers(2, -7)})) << text;
    };
    const Integers three = slots_of({1, 2, 3});
    const Weights floating(4, 1.0);
    const Integers outside{0, 1, 4, 3};  // an alias of 4 in a table of 4
    refused("tables[0].slots must have shape (4,), got (3,)", list(three));
    refused("tables[0].slots must have dtype int64, got float64", list(floating));
    refused("tables[0].slots must have aliases below 4, got 4", list(outside));
}

// ---- samples by given numbers ---------------------------------------------------------------------------------------

SampleOrder by_numbers(const Integers& numbers) {
    SampleOrder order{7, 3};
    order.numbers = list(numbers);
    return order;
}

TEST(SamplesByNumber, AreExactlyTheNumbersInTheirOrder) {
    const Integers numbers{4, 0, 0, 9, 4, 1, 8, 9, 9, 2, 3, 7, 5};  // repeated, and more than there are anchors
    const auto size = static_cast<std::int64_t>(numbers.size());
    const Anchors anchors(10, 100);
    const Anchors weighted(10, 100, Weights{1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    for (const Anchors* table : {&anchors, &weighted}) {  // numbers replace weights too
        const Drawn drawn = draw(table->table(), by_numbers(numbers), 0, size);
        EXPECT_EQ(drawn.episode, numbers);
        for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(drawn.anchor[i], 100 + numbers[i]);
    }
    EXPECT_EQ(draw(anchors.table(), by_numbers(numbers), 3, 4).episode, (Integers{9, 4, 1, 8}));
    EXPECT_TRUE(draw(anchors.table(), by_numbers(numbers), size, 0).episode.empty());
}

TEST(SamplesByNumber, CountThroughAllTablesAndEmptyEpisodes) {
    const Integers prefix{0, 0, 3, 3, 5};
    const Integers times{10, 11, 12, 20, 21};
    const Anchors second(2, 100);
    const std::vector<AnchorTable> tables{{list(prefix), list(times), 5}, second.table()};
    const Integers numbers{6, 5, 4, 3, 2, 1, 0};
    const Drawn drawn = draw(tables, by_numbers(numbers), 0, 7);
    EXPECT_EQ(drawn.anchor, (Integers{101, 100, 21, 20, 12, 11, 10}));
    EXPECT_EQ(drawn.episode, (Integers{5, 4, 3, 3, 1, 1, 1}));
}

TEST(SamplesByNumber, AnySplitOfThePositionsGivesTheSameSamples) {
    const Anchors one(700), two(300, 10000);
    const std::vector<AnchorTable> tables{one.table(), two.table()};
    Integers numbers(3000);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i * 337 % 1000);
    const Drawn whole = draw(tables, by_numbers(numbers), 0, 3000);
    EXPECT_EQ(whole.episode, numbers);
    for (const std::int64_t piece : {1, 7, 64, 2999}) {
        EXPECT_EQ(draw_in_pieces(tables, by_numbers(numbers), 3000, piece), whole) << "pieces of " << piece;
    }
}

TEST(SamplesByNumber, NumbersThatBreakTheContractAreNamedAndNothingIsWritten) {
    const Anchors one(3), two(2);
    const std::vector<AnchorTable> tables{one.table(), two.table()};
    const auto refused = [&](const std::string& text, const TensorView& numbers, std::int64_t first = 0) {
        SampleOrder order;
        order.numbers = numbers;
        Drawn out{Integers(2, -7), Integers(2, -7)};
        expect_refused("sample_anchors: " + text,
                       [&] { sample_anchors(tables, order, first, list(out.episode), list(out.anchor)); });
        EXPECT_EQ(out, (Drawn{Integers(2, -7), Integers(2, -7)})) << text;
    };
    const Integers above{0, 5, 1}, below{-1, 0, 1}, good{0, 4, 1};
    const Weights floating(3);
    refused("numbers[1] must be from 0 to 4, got 5", list(above));
    refused("numbers[0] must be from 0 to 4, got -1", list(below));
    refused("numbers must have 4 entries, got (3,)", list(good), 2);
    refused("first_position must be 0 or above, got -1", list(good), -1);
    refused("numbers must have dtype int64, got float64", list(floating));
    EXPECT_EQ(draw(tables, by_numbers(below), 1, 2).episode, (Integers{0, 1}));  // only what is read is checked
}

// ---- the same through BatchReader -----------------------------------------------------------------------------------

/// The index of a batch that BatchReader reads from episodes of one row each.
Drawn read_index(const AnchorTable& table, const SampleOrder& order, std::int64_t first, std::int64_t size) {
    const auto count = static_cast<std::size_t>(table.num_anchors);
    const Integers part(count, 0), deltas{0};
    Integers local(count);
    std::iota(local.begin(), local.end(), 0);
    const BatchColumn column{deltas, DType::i64, false};
    StreamView stream;
    stream.values = table.times;
    stream.times = table.times;
    stream.offsets = table.prefix;
    stream.method = Method::previous;
    const BatchRows rows{stream, {}, {}};
    BatchSource source{{&table, 1}, list(part), list(local), {&column, 1}, {&rows, 1}};
    source.names = EpisodeNames{list(part), list(local)};
    Drawn drawn{Integers(static_cast<std::size_t>(size), -7), Integers(static_cast<std::size_t>(size), -7)};
    Integers values(drawn.anchor.size(), -7), sources(drawn.anchor.size(), -7);
    const BatchOutput output{TensorView(values.data(), DType::i64, {size, 1}), {}};
    BatchReader(source).read(order, first, {&output, 1}, {},
                             BatchIndex{list(sources), list(drawn.episode), list(drawn.anchor)});
    EXPECT_EQ(values, drawn.anchor);  // each row holds its own time
    return drawn;
}

TEST(BatchReaderOrder, SamplesByWeightAndByNumberAreThoseOfSampleAnchors) {
    Weights weights(500);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 4);
    const Anchors anchors(weights.size(), 1000, weights);
    Integers numbers(500);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i * i % 500);
    for (const SampleOrder& order : {SampleOrder{1, 4}, SampleOrder{1, 4, 800}, by_numbers(numbers)}) {
        for (const auto& [first, size] : {std::pair{0, 500}, std::pair{123, 77}, std::pair{499, 1}}) {
            EXPECT_EQ(read_index(anchors.table(), order, first, size), draw(anchors.table(), order, first, size))
                << first << " " << size;
        }
    }
}

TEST(BatchReaderOrder, NumbersOutOfRangeAreRefused) {
    const Anchors anchors(4);
    const Integers numbers{3, 4};
    expect_refused("BatchReader: numbers[1] must be from 0 to 3, got 4",
                   [&] { (void)read_index(anchors.table(), by_numbers(numbers), 0, 2); });
}

}  // namespace
}  // namespace robocache
