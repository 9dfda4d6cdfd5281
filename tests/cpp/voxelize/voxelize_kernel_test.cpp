// The math of voxelize that both backends share.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/voxelize/contract/kernel.hpp"

namespace robocache {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(VoxelizeKernel, KeysOfAnUnboundedGridKeepTheOrderOfCells) {
    using namespace voxelize_detail;
    EXPECT_EQ(key_bits(1).axis_bits, 21);
    EXPECT_EQ(key_bits(2).axis_bits, 20);
    EXPECT_EQ(key_bits(17).axis_bits, 19);
    for (const std::int64_t clouds : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1000}}) {
        const KeyBits bits = key_bits(clouds);
        const std::int64_t edge = std::int64_t{1} << (bits.axis_bits - 1);
        std::uint64_t last = 0;
        for (const Cell& cell : {Cell{-edge, -edge, -edge}, Cell{-1, edge - 1, 0}, Cell{0, -1, 5}, Cell{0, 0, -1},
                                 Cell{0, 0, 0}, Cell{edge - 1, edge - 1, edge - 1}}) {
            const std::uint64_t key = pack_key(bits, clouds - 1, cell);
            Cell back{};
            EXPECT_EQ(unpack_key(bits, key, back), clouds - 1);
            EXPECT_EQ(back.x, cell.x);
            EXPECT_EQ(back.y, cell.y);
            EXPECT_EQ(back.z, cell.z);
            EXPECT_TRUE(key > last || cell.x == -edge);
            last = key;
        }
    }
}

TEST(VoxelizeKernel, ExtremesOrderEveryFloat) {
    using namespace voxelize_detail;
    const float ordered[] = {-infinity, -1, -1e-42F, -0.0F, 0.0F, 1e-42F, 1, infinity};
    for (std::size_t i = 0; i < std::size(ordered); ++i) {
        for (const bool want_max : {false, true}) {
            const std::uint32_t key = extreme_key(ordered[i], want_max);
            EXPECT_NE(key, 0U);
            EXPECT_LT(key, extreme_key(nan, want_max));
            EXPECT_EQ(std::signbit(extreme_value(key, want_max)), std::signbit(ordered[i]));
            EXPECT_EQ(extreme_value(key, want_max), ordered[i]);
            if (i > 0) EXPECT_EQ(key > extreme_key(ordered[i - 1], want_max), want_max);
        }
    }
    EXPECT_TRUE(std::isnan(extreme_value(extreme_key(-nan, false), false)));
}

/// Around every face of the grid, at distances of a few units in the last place, and anywhere.
TEST(VoxelizeKernel, QuickCellsAreExactCells) {
    using namespace voxelize_detail;
    std::mt19937 random(7);
    std::uniform_real_distribution<float> anywhere(-60.0F, 60.0F);
    for (const float size : {0.1F, 0.05F, 0.075F, 0.3F, 1.0F / 3.0F, 1.0F, 1e-3F, 7.7F, 1e-15F, 1e15F}) {
        for (const float origin : {0.0F, -10.0F, -0.05F, 1e-3F, 54.3F}) {
            const CellGrid<float> cells{{origin, 0, 0}, {size, 1, 1}, {0, 0, 0}, {1000, 3, 5}};
            QuickGrid quick{{origin, 0, 0}, {size, 1, 1}, {}, {}, {1000, 3, 5}};
            for (int a = 0; a < 3; ++a) ASSERT_TRUE(make_quick(cells.size[a], quick.less[a], quick.more[a]));
            int settled = 0;
            const auto check = [&](float x) {
                const float p[3] = {x, 2.5F, 3.5F};
                Cell cell{};
                const std::int64_t shape[3] = {1000, 3, 5};
                const std::int64_t expected = find_cell(cells, p, cell) ? linear_index(shape, 0, cell) : dropped_point;
                const std::int32_t found = index_quickly(quick, p);
                settled += found == unsettled ? 0 : 1;
                ASSERT_EQ(found == unsettled ? settle_index(quick, p) : found, expected)
                    << "x " << x << " origin " << origin << " size " << size;
            };
            for (int k = -3; k < 1005; ++k) {
                float p = origin + static_cast<float>(k) * size;
                for (int step = 0; step < 4; ++step) p = std::nextafter(p, -INFINITY);
                for (int step = 0; step < 9; ++step) {
                    check(p);
                    p = std::nextafter(p, INFINITY);
                }
            }
            settled = 0;
            int inside = 0;
            for (int k = 0; k < 2000; ++k) {
                const float x = origin + anywhere(random) * size;
                check(x);
                inside += is_within(place(x, origin, size), 0.0F, 1000.0F) ? 1 : 0;
            }
            if (origin == 0.0F) EXPECT_GT(settled, inside * 9 / 10) << "size " << size;
            for (const float p : {0.0F, -0.0F, 1e-45F, -1e-45F, 1e38F, -1e38F, 4194304.5F, 1e9F}) check(p);
            for (const float p : {INFINITY, -INFINITY, NAN}) check(p);
        }
    }
    float less = 0;
    float more = 0;
    for (const float size : {1e-40F, 3e38F, 0.0F, -1.0F, NAN}) EXPECT_FALSE(make_quick(size, less, more));
}

}  // namespace
}  // namespace robocache
