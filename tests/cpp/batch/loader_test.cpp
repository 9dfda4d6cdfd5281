// The loader's operations as a C++ user calls them: the order of docs/loader.md restated, the contract, the batch in
// one go against its three steps.
#include "robocache/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "batch/rounds.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace {

using Integers = std::vector<std::int64_t>;

TensorView list(const Integers& x) {
    return {x.data(), DType::i64, {static_cast<std::int64_t>(x.size())}};
}
TensorView list(const std::vector<double>& x) {
    return {x.data(), DType::f64, {static_cast<std::int64_t>(x.size())}};
}

template <class Call>
void expect_refused(const std::string& text, Call&& call) {
    try {
        call();
        FAIL() << "expected: " << text;
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
}

// ---- the order, as docs/loader.md has it ----------------------------------------------------------------------------

constexpr std::uint64_t g = 0x9e3779b97f4a7c15U;

std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    x ^= x >> 31;
    return x;
}

std::uint64_t key(std::uint64_t seed, std::uint64_t pass, std::uint64_t what) {
    return mix(mix(mix(seed + g) + pass * g + 1) + what * g + 2);
}

std::uint64_t permute(std::uint64_t x, std::uint64_t count, std::uint64_t key) {
    int bits = 0;
    while (bits < 64 && (count - 1) >> bits != 0) ++bits;
    const std::uint64_t low_size = std::uint64_t{1} << (bits / 2);
    const std::uint64_t high_size = std::uint64_t{1} << (bits - bits / 2);
    do {
        std::uint64_t low = x % low_size;
        std::uint64_t high = x / low_size;
        for (std::uint64_t r = 1; r <= 8; ++r) {
            if (r % 2 == 1) {
                high ^= mix(low ^ (key + r * g)) % high_size;
            } else {
                low ^= mix(high ^ (key + r * g)) % low_size;
            }
        }
        x = high * low_size + low;
    } while (x >= count);
    return x;
}

struct Drawn {
    Integers episode, anchor;
};

/// Anchors that are their own numbers: `count` of them in one episode.
Drawn draw(std::int64_t count, const SampleOrder& order, std::int64_t first = 0, std::int64_t size = -1) {
    const Integers prefix{0, count};
    Integers times(static_cast<std::size_t>(count));
    std::iota(times.begin(), times.end(), 0);
    const AnchorTable table{list(prefix), list(times), count};
    const auto n = static_cast<std::size_t>(size < 0 ? count - first : size);
    Drawn drawn{Integers(n, -7), Integers(n, -7)};
    sample_anchors({&table, 1}, order, first, list(drawn.episode), list(drawn.anchor));
    return drawn;
}

TEST(SampleAnchors, TheOrderOfAnEpochIsTheOneInTheGuide) {
    for (const std::int64_t count : {1, 2, 3, 5, 16, 17, 100, 1000, 4097}) {
        for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{12345}, ~std::uint64_t{0}}) {
            const Drawn drawn = draw(count, {seed, 7});
            Integers sorted = drawn.anchor;
            std::sort(sorted.begin(), sorted.end());
            for (std::int64_t i = 0; i < count; ++i) {
                const auto n = static_cast<std::size_t>(i);
                EXPECT_EQ(sorted[n], i);
                EXPECT_EQ(drawn.episode[n], 0);
                const std::uint64_t expected =
                    permute(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(count), key(seed, 7, 1));
                ASSERT_EQ(static_cast<std::uint64_t>(drawn.anchor[n]), expected) << count << " " << seed << " " << i;
            }
        }
    }
}

TEST(Rounds, WorkedOutAheadTheyAreTheSamePermutation) {
    std::uint64_t random = 1;
    for (int bits = 0; bits <= loader_detail::Rounds::most_bits; ++bits) {
        for (int turn = 0; turn < 200; ++turn) {
            const std::uint64_t seed = random = loader_detail::mix(random + loader_detail::golden);
            const std::uint64_t half = bits == 0 ? 0 : std::uint64_t{1} << (bits - 1);
            const std::uint64_t count = bits == 0 ? 1 : half + 1 + seed % half;  // bit_width(count - 1) == bits
            const std::uint64_t x = loader_detail::mix(seed) % count;
            ASSERT_EQ(loader_detail::permute(x, count, bits, loader_detail::Rounds(seed)),
                      loader_detail::permute(x, count, bits, seed))
                << bits << " " << count << " " << x;
        }
    }
}

TEST(SampleAnchors, AnyStretchIsThatStretchAndNotShuffledIsAscending) {
    const Drawn whole = draw(1000, {3, 1});
    const Drawn part = draw(1000, {3, 1}, 123, 456);
    EXPECT_TRUE(std::equal(part.anchor.begin(), part.anchor.end(), whole.anchor.begin() + 123));
    EXPECT_TRUE(draw(1000, {3, 1}, 1000, 0).anchor.empty());
    SampleOrder order{3, 1};
    order.shuffle = false;
    const Drawn plain = draw(1000, order);
    EXPECT_TRUE(std::is_sorted(plain.anchor.begin(), plain.anchor.end()));
}

TEST(SampleAnchors, RegularAnchorsBeginWithTheirEpisodeAndEmptyEpisodesAreNeverDrawn) {
    const Integers prefix{0, 0, 3, 3, 5, 5};
    const Integers firsts{-1, 1000, -1, 2000, -1};
    const AnchorTable table{list(prefix), list(firsts), 5, 2.5};
    Drawn drawn{Integers(5), Integers(5)};
    SampleOrder order;
    order.shuffle = false;
    sample_anchors({&table, 1}, order, 0, list(drawn.episode), list(drawn.anchor));
    EXPECT_EQ(drawn.episode, (Integers{1, 1, 1, 3, 3}));
    EXPECT_EQ(drawn.anchor, (Integers{1000, 1002, 1005, 2000, 2002}));  // 2.5 is rounded to even
}

TEST(SampleAnchors, AMixtureDrawsItsQuotasOutOfEveryBlockAndCountsOnThroughEpochs) {
    const Integers counts{3, 10};
    const Integers quotas{5, 11};
    const std::int64_t block = 16;
    const std::int64_t epoch_size = 40;
    std::vector<Integers> prefixes, times;
    std::vector<AnchorTable> tables;
    for (std::size_t i = 0; i < 2; ++i) {
        prefixes.push_back({0, counts[i]});
        times.emplace_back(static_cast<std::size_t>(counts[i]));
        std::iota(times[i].begin(), times[i].end(), static_cast<std::int64_t>(i) * 100);
    }
    for (std::size_t i = 0; i < 2; ++i) {
        tables.push_back({list(prefixes[i]), list(times[i]), counts[i], 0, quotas[i]});
    }
    Integers per_table(2);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        Drawn drawn{Integers(40), Integers(40)};
        sample_anchors(tables, {9, epoch, epoch_size}, 0, list(drawn.episode), list(drawn.anchor));
        for (std::int64_t p = 0; p < epoch_size; ++p) {
            const std::int64_t position = epoch * epoch_size + p;
            const auto number = static_cast<std::uint64_t>(position / block);
            auto slot = static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(position % block),
                                                          static_cast<std::uint64_t>(block), key(9, number, 0)));
            const std::size_t i = slot < quotas[0] ? 0 : 1;
            slot -= i == 0 ? 0 : quotas[0];
            const std::int64_t before = position / block * quotas[i] + slot;
            const auto turn = static_cast<std::uint64_t>(before / counts[i]);
            const auto anchor =
                static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(before % counts[i]),
                                                  static_cast<std::uint64_t>(counts[i]), key(9, turn, i + 1)));
            EXPECT_EQ(drawn.episode[static_cast<std::size_t>(p)], static_cast<std::int64_t>(i));
            EXPECT_EQ(drawn.anchor[static_cast<std::size_t>(p)], anchor + static_cast<std::int64_t>(i) * 100);
            ++per_table[i];
        }
    }
    EXPECT_EQ(per_table, (Integers{50, 110}));  // ten blocks
}

TEST(SampleAnchors, ATableWhoseEpochHasAnotherSizeIsGoneThroughAgainAndAgain) {
    const std::int64_t count = 10;
    for (const std::int64_t epoch_size : {3, 7, 25}) {
        Integers all;
        for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
            const Drawn drawn = draw(count, {5, epoch, epoch_size}, 0, epoch_size);
            all.insert(all.end(), drawn.anchor.begin(), drawn.anchor.end());
        }
        for (std::int64_t position = 0; position < 40 * epoch_size; ++position) {
            const auto turn = static_cast<std::uint64_t>(position / count);
            const std::uint64_t expected =
                permute(static_cast<std::uint64_t>(position % count), count, key(5, turn, 1));
            EXPECT_EQ(static_cast<std::uint64_t>(all[static_cast<std::size_t>(position)]), expected);
        }
    }
    EXPECT_EQ(draw(count, {5, 3, count}).anchor, draw(count, {5, 3}).anchor);
}

TEST(SampleAnchors, WhatBreaksTheContractIsNamedAndNothingIsWritten) {
    const Integers prefix{0, 4};
    const Integers times{0, 1, 2, 3};
    Drawn out{Integers(2, -7), Integers(2, -7)};
    const AnchorTable good{list(prefix), list(times), 4};
    const auto refused = [&](const std::string& text, const AnchorTable& table, SampleOrder order = {},
                             std::int64_t first = 0) {
        expect_refused(text, [&] { sample_anchors({&table, 1}, order, first, list(out.episode), list(out.anchor)); });
    };
    const auto changed = [&](auto&& change) {
        AnchorTable table = good;
        change(table);
        return table;
    };
    refused("tables[0].num_anchors must be at least 1, got 0", changed([](auto& t) { t.num_anchors = 0; }));
    refused("prefix must rise from 0 to 5, got 0 to 4", changed([&](auto& t) {
                t.num_anchors = 5;
                t.period_ns = 1;
                t.times = TensorView(times.data(), DType::i64, {1});
            }));
    refused("times must have shape (1,), got (4,)", changed([](auto& t) { t.period_ns = 1; }));
    refused("period_ns must be 0 or above, got nan", changed([](auto& t) { t.period_ns = std::nan(""); }));
    refused("times must have dtype int64, got float64", changed([](auto& t) { t.times.dtype = DType::f64; }));
    refused("times must be contiguous, got a stride of 2", changed([](auto& t) { t.times.strides[0] = 2; }));
    refused("quota must be 1 to 16777216, got 0", changed([](auto& t) { t.quota = 0; }));
    refused("first_position must leave 2 of 4 anchors, got 3", good, {}, 3);
    refused("first_position must be 0 or above, got -1", good, {}, -1);
    refused("epoch must be 0 or above, got -1", good, {0, -1});
    const std::vector<AnchorTable> many(max_anchor_tables + 1, good);
    expect_refused("tables must be 1 to 64, got 65",
                   [&] { sample_anchors(many, {}, 0, list(out.episode), list(out.anchor)); });
    expect_refused("tables must be 1 to 64, got 0",
                   [&] { sample_anchors({}, {}, 0, list(out.episode), list(out.anchor)); });
    expect_refused("epoch_size must hold all positions asked for, 2, got 1",
                   [&] { sample_anchors({many.data(), 2}, {0, 0, 1}, 0, list(out.episode), list(out.anchor)); });
    expect_refused("epoch must count fewer than 2^63 positions", [&] {
        sample_anchors({many.data(), 2}, {0, INT64_MAX / 2, 4}, 0, list(out.episode), list(out.anchor));
    });
    EXPECT_EQ(out.episode, (Integers{-7, -7}));
    EXPECT_EQ(out.anchor, (Integers{-7, -7}));
}

TEST(SampleAnchors, AMixtureTakesAsManyTablesAsItSays) {
    const Integers prefix{0, 1};
    const Integers times{5};
    const std::vector<AnchorTable> tables(max_anchor_tables, AnchorTable{list(prefix), list(times), 1});
    Drawn out{Integers(64), Integers(64)};
    sample_anchors(tables, {1, 0, 64}, 0, list(out.episode), list(out.anchor));
    std::sort(out.episode.begin(), out.episode.end());
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out.episode[i], static_cast<std::int64_t>(i));
}

// ---- normalize ------------------------------------------------------------------------------------------------------

TEST(Normalize, EachChannelIsShiftedAndScaledInFloatAndRoundedOnce) {
    const std::vector<float> values{1.1F, -2.2F, 3e8F, 0.1F, 5.5F, -1e-8F};
    const std::vector<double> offset{0.3, -1.7, 2.9};
    const std::vector<double> scale{1.9, 0.7, 3.1};
    std::vector<float> out(6);
    const TensorView from(values.data(), DType::f32, {2, 3});
    normalize(from, list(offset), list(scale), TensorView(out.data(), DType::f32, {2, 3}));
    std::vector<double> wide(6);
    normalize(from, list(offset), list(scale), TensorView(wide.data(), DType::f64, {2, 3}));
    for (std::size_t i = 0; i < 6; ++i) {
        const float expected = (values[i] - static_cast<float>(offset[i % 3])) * static_cast<float>(scale[i % 3]);
        EXPECT_EQ(out[i], expected);
        EXPECT_EQ(wide[i], static_cast<double>(expected));
    }
}

TEST(Normalize, WideIntegersAreComputedInDoubleAndBytesInFloat) {
    const Integers wide{(std::int64_t{1} << 53) - 1, -5};
    const std::vector<std::uint8_t> bytes{0, 255};
    const std::vector<double> offset{1};
    const std::vector<double> scale{1.0 / 3};
    std::vector<double> out(2);
    const TensorView to(out.data(), DType::f64, {2, 1});
    normalize(TensorView(wide.data(), DType::i64, {2, 1}), list(offset), list(scale), to);
    EXPECT_EQ(out, (std::vector<double>{static_cast<double>(wide[0] - 1) / 1 * (1.0 / 3), -6 * (1.0 / 3)}));
    normalize(TensorView(bytes.data(), DType::u8, {2, 1}), list(offset), list(scale), to);
    const auto third = static_cast<float>(1.0 / 3);
    EXPECT_EQ(out, (std::vector<double>{static_cast<double>(-1.0F * third), static_cast<double>(254.0F * third)}));
}

TEST(Normalize, InPlaceAndEmptyAreFine) {
    std::vector<float> values{1, 2, 3, 4};
    const std::vector<double> offset{1, 2};
    const std::vector<double> scale{2, 10};
    const TensorView view(values.data(), DType::f32, {2, 2});
    normalize(view, list(offset), list(scale), view);
    EXPECT_EQ(values, (std::vector<float>{0, 0, 4, 20}));
    const TensorView nothing(static_cast<void*>(nullptr), DType::f32, {0, 2});
    EXPECT_NO_THROW(normalize(nothing, list(offset), list(scale), nothing));
}

TEST(Normalize, WhatBreaksTheContractIsNamed) {
    std::vector<float> values(4, 1.0F);
    const std::vector<double> two{1, 1};
    const std::vector<double> three{1, 1, 1};
    const TensorView good(values.data(), DType::f32, {2, 2});
    const auto refused = [&](const std::string& text, const TensorView& from, const std::vector<double>& offset,
                             const TensorView& to) {
        expect_refused(text, [&] { normalize(from, list(offset), list(two), to); });
        EXPECT_EQ(values, std::vector<float>(4, 1.0F));
    };
    refused("values must have 2 dimensions", TensorView(values.data(), DType::f32, {4}), two, good);
    refused("out must have shape (2, 2), got (1, 2)", good, two, TensorView(values.data(), DType::f32, {1, 2}));
    refused("out must have a floating dtype, got int32", good, two, TensorView(values.data(), DType::i32, {2, 2}));
    refused("offset must have shape (2,), got (3,)", good, three, good);
    refused("where it is the values", TensorView(values.data(), DType::f16, {2, 2}), two, good);
    TensorView columns = good;
    columns.strides[0] = 1;
    columns.strides[1] = 2;
    refused("values must be contiguous", columns, two, good);
}

}  // namespace
}  // namespace robocache
