// The CPU kernels of decode: both instruction sets give the same bytes, for values that no encoder writes too.
#include "ops/decode/cpu/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_features.hpp"
#include "core/numeric.hpp"
#include "ops/decode/contract/idct.hpp"
#include "ops/decode/jpeg/annex_k.hpp"
#include "robocache/tensor.hpp"

namespace robocache::decode_detail {
namespace {

class DecodeKernels : public testing::Test {
protected:
    void SetUp() override {
        if (!has_x86_64_v3()) GTEST_SKIP() << "this CPU has no AVX2, FMA, F16C and BMI2";
    }
    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
    std::vector<std::uint8_t> bytes(std::size_t count) {
        std::vector<std::uint8_t> made(count);
        for (auto& byte : made) byte = static_cast<std::uint8_t>(random_());
        return made;
    }

    std::mt19937 random_{7};
    const CpuKernels& plain_ = kernels_baseline();
    const CpuKernels& avx2_ = kernels_x86_64_v3();
};

/// A block as a kernel decodes it, and the scan behind it.
struct DecodedBlock {
    explicit DecodedBlock(const std::vector<std::uint8_t>& scan, std::size_t at, int predictor_before)
        : bits{0, scan.data() + at, 0}, predictor(predictor_before) {}
    BlockLane lane() { return {bits, predictor, block, positions}; }
    /// Bits that were read: readers may be different numbers of bytes ahead.
    [[nodiscard]] std::int64_t position() const {
        return 8 * static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(bits.next)) - bits.num_bits;
    }

    ScanBits bits;
    int predictor;
    int positions = 0;
    std::int16_t block[num_coefficients] = {};
};

void expect_same(const DecodedBlock& expected, const DecodedBlock& found, const std::string& what) {
    EXPECT_EQ(expected.position(), found.position()) << what;
    EXPECT_EQ(expected.predictor, found.predictor) << what;
    EXPECT_EQ(expected.positions, found.positions) << what;
    EXPECT_EQ(std::memcmp(expected.block, found.block, sizeof found.block), 0) << what;
}

/// Codes of an encoder for few symbols, or for all of them, in random order.
std::vector<std::uint8_t> random_codes(std::mt19937& random) {
    std::vector<std::uint8_t> codes(max_code_bits);
    std::uint32_t room = 1;  // codes that are left at this length
    std::vector<std::uint8_t> symbols;
    for (int length = 1; length <= max_code_bits; ++length) {
        room *= 2;
        const std::uint32_t count = std::min<std::uint32_t>(random() % (room / 2 + 1), 20);
        codes[static_cast<std::size_t>(length - 1)] = static_cast<std::uint8_t>(count);
        room -= count;
        for (std::uint32_t i = 0; i < count; ++i) {
            const auto run = static_cast<std::uint8_t>(random() % 3 == 0 ? random() % 16 : random() % 2);
            const auto size = static_cast<std::uint8_t>(random() % 4 == 0 ? random() % 16 : random() % 4);
            symbols.push_back(static_cast<std::uint8_t>(run << 4 | size));
        }
    }
    codes.insert(codes.end(), symbols.begin(), symbols.begin() + std::min<std::ptrdiff_t>(std::ssize(symbols), 256));
    return codes;
}

TEST_F(DecodeKernels, PairsAndTurnsGiveTheBlocksOfSingleCodes) {
    std::vector<std::uint32_t> steps(num_coefficients);
    for (std::size_t k = 0; k < num_coefficients; ++k) {
        steps[k] = static_cast<std::uint32_t>(natural_order[k]) << 16 | static_cast<std::uint32_t>(1 + below(255));
    }
    for (int table = 0; table < 300; ++table) {
        const bool is_standard = table % 3 == 0;
        const std::vector<std::uint8_t> codes =
            is_standard ? std::vector<std::uint8_t>(luma_ac.begin(), luma_ac.end()) : random_codes(random_);
        HuffmanTable dc{};
        HuffmanTable ac{};
        build_table(luma_dc.data(), luma_dc.size(), dc);
        build_table(codes.data(), codes.size(), ac);
        PairTable pairs{};
        build_pairs(ac, pairs);
        std::vector<std::uint8_t> scan = bytes(1024 + 512);  // any bits are codes, or end a block by a fault
        const BlockTables alone{dc, ac, nullptr, steps.data()};
        const BlockTables by_pairs{dc, ac, &pairs, steps.data()};
        for (std::size_t at = 0; at < 1024; at += 7) {
            const std::string what = "table " + std::to_string(table) + ", byte " + std::to_string(at);
            DecodedBlock expected(scan, at, -300);
            DecodedBlock other(scan, 1024 - at, 7);
            const BlockFault fault = plain_.decode_block(alone, expected.lane());
            const BlockFault other_fault = plain_.decode_block(alone, other.lane());
            for (const CpuKernels* kernels : {&plain_, &avx2_}) {
                DecodedBlock found(scan, at, -300);
                ASSERT_EQ(kernels->decode_block(by_pairs, found.lane()), fault) << what;
                expect_same(expected, found, what);
                DecodedBlock first(scan, at, -300);
                DecodedBlock second(scan, 1024 - at, 7);
                const BlockFault any = kernels->decode_two_blocks(by_pairs, first.lane(), second.lane());
                ASSERT_EQ(any, fault != BlockFault::none ? fault : other_fault) << what;
                expect_same(expected, first, what + ", first of two");
                expect_same(other, second, what + ", second of two");
            }
            ASSERT_FALSE(HasFailure());
        }
    }
}

/// MCUs of two blocks with their own tables, as a kernel skips them.
struct SkippedMcus {
    SkippedMcus(const std::vector<std::uint8_t>& scan, std::size_t at, std::size_t size, const HuffmanTable& dc,
                const HuffmanTable& ac, const SkipTable& skips)
        : bits{0, scan.data() + at, 0} {
        lane.bits = &bits;
        lane.end = scan.data() + size;
        lane.num_blocks = 2;
        lane.blocks[0] = {&dc, &ac, &skips, 0};
        lane.blocks[1] = {&dc, &ac, &skips, 2};
        lane.num_mcus = 5;
    }
    [[nodiscard]] std::int64_t position() const {
        return 8 * static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(bits.next)) - bits.num_bits;
    }

    ScanBits bits;
    SkipLane lane{};
};

TEST_F(DecodeKernels, SkippedMcusEndWhereDecodedOnesDo) {
    const std::vector<std::uint32_t> steps(num_coefficients, 1);
    int num_whole = 0;
    for (int table = 0; table < 200; ++table) {
        const bool is_standard = table % 3 == 0;
        const std::vector<std::uint8_t> codes =
            is_standard ? std::vector<std::uint8_t>(luma_ac.begin(), luma_ac.end()) : random_codes(random_);
        HuffmanTable dc{};
        HuffmanTable ac{};
        build_table(luma_dc.data(), luma_dc.size(), dc);
        build_table(codes.data(), codes.size(), ac);
        SkipTable skips{};
        build_skips(ac, skips);
        constexpr std::size_t size = 4096;
        std::vector<std::uint8_t> scan = bytes(size);
        scan.resize(size + 512);  // zeros
        for (std::size_t at = 0; at < size; at += 61) {
            const std::string what = "table " + std::to_string(table) + ", byte " + std::to_string(at);
            const auto expected = [&](std::size_t begin, std::int64_t& position, int& first, int& third) {
                ScanBits bits{0, scan.data() + begin, 0};
                std::int16_t block[num_coefficients] = {};
                int positions = 0;
                for (int i = 0; i < 10; ++i) {
                    int& predictor = i % 2 == 0 ? first : third;
                    const BlockTables tables{dc, ac, nullptr, steps.data()};
                    if (plain_.decode_block(tables, {bits, predictor, block, positions}) != BlockFault::none) {
                        return false;
                    }
                    position =
                        8 * static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(bits.next)) - bits.num_bits;
                    if (position >
                        8 * static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(scan.data() + size))) {
                        return false;
                    }
                }
                return true;
            };
            const auto expect = [&](const SkippedMcus& found, std::size_t begin, const std::string& which) {
                std::int64_t position = 0;
                int first = 0;
                int third = 0;
                const bool is_whole = expected(begin, position, first, third);
                ASSERT_EQ(found.lane.has_fault, !is_whole) << which;
                if (!is_whole) return;
                ++num_whole;
                EXPECT_EQ(found.lane.num_mcus, 0U) << which;
                EXPECT_EQ(found.position(), position) << which;
                EXPECT_EQ(found.lane.predictors[0], first) << which;
                EXPECT_EQ(found.lane.predictors[2], third) << which;
            };
            for (const CpuKernels* kernels : {&plain_, &avx2_}) {
                SkippedMcus alone(scan, at, size, dc, ac, skips);
                kernels->skip_mcus(alone.lane);
                expect(alone, at, what);
                SkippedMcus first(scan, at, size, dc, ac, skips);
                SkippedMcus second(scan, size - at - 1, size, dc, ac, skips);
                while (!first.lane.has_fault && !second.lane.has_fault && first.lane.num_mcus > 0 &&
                       second.lane.num_mcus > 0) {
                    kernels->skip_mcus_of_two(first.lane, second.lane);
                }
                for (SkippedMcus* lane : {&first, &second}) {
                    if (!lane->lane.has_fault && lane->lane.num_mcus > 0) kernels->skip_mcus(lane->lane);
                }
                expect(first, at, what + ", first of two");
                expect(second, size - at - 1, what + ", second of two");
            }
            ASSERT_FALSE(HasFailure());
        }
    }
    EXPECT_GT(num_whole, 1000);
}

TEST_F(DecodeKernels, InverseDctAgreesForAnyCoefficients) {
    for (int i = 0; i < 20'000; ++i) {
        alignas(32) std::int16_t block[64] = {};
        const bool is_first_row = i % 5 == 0;
        const int range = i % 3 == 0 ? 65536 : 2048;
        const int count = below(65);
        for (int k = 0; k < count; ++k) {
            block[below(is_first_row ? 8 : 64)] = static_cast<std::int16_t>(below(range) - range / 2);
        }
        std::uint8_t out[2][8 * 16] = {};
        plain_.inverse_dct(block, is_first_row, out[0], 16);
        avx2_.inverse_dct(block, is_first_row, out[1], 16);
        ASSERT_EQ(std::memcmp(out[0], out[1], sizeof out[0]), 0) << "block " << i;
    }
}

TEST_F(DecodeKernels, RowsAgreeForAnyWidth) {
    for (int width = 1; width < 200; ++width) {
        const auto size = static_cast<std::size_t>(width);
        const auto y = bytes(size);
        const auto cb = bytes(size);
        const auto cr = bytes(size);
        std::vector<std::uint8_t> out[2];
        std::vector<std::int16_t> sums(size + 2);
        for (auto& sum : sums) sum = static_cast<std::int16_t>(below(4 * 255 + 1));
        int i = 0;
        for (const CpuKernels* kernels : {&plain_, &avx2_}) {
            auto& all = out[i++];
            all.assign(12 * size, 0);
            kernels->color_row(y.data(), cb.data(), cr.data(), width, all.data());
            kernels->spread_h2v2(sums.data() + 1, width, all.data() + 3 * size);
            kernels->split_row(all.data(), width, all.data() + 5 * size, all.data() + 6 * size, all.data() + 7 * size);
            // h2v1 has samples, not sums of rows.
            std::vector<std::int16_t> samples(size + 2);
            for (std::size_t x = 0; x < size + 2; ++x) samples[x] = static_cast<std::int16_t>(sums[x] / 4);
            kernels->spread_h2v1(samples.data() + 1, width, all.data() + 8 * size);
        }
        ASSERT_EQ(out[0], out[1]) << "width " << width;
    }
}

TEST_F(DecodeKernels, ResizingAgrees) {
    for (int i = 0; i < 300; ++i) {
        const int in_width = 1 + below(300);
        const int out_width = 1 + below(100);
        const int num_groups = 1 + below(4);
        std::vector<int> first;
        std::vector<int> count;
        std::vector<TapGroup> groups(static_cast<std::size_t>(out_width * num_groups));
        for (int x = 0; x < out_width; ++x) {
            first.push_back(below(in_width));
            count.push_back(1 + below(std::min(num_groups * taps_per_group, in_width - first.back())));
            for (int t = 0; t < count.back(); ++t) {
                const int weight = below((1 << 22) / count.back() + 1);
                TapGroup& group = groups[static_cast<std::size_t>(x * num_groups + t / taps_per_group)];
                group.high[t % taps_per_group] = static_cast<std::int16_t>(weight >> low_weight_bits);
                group.low[t % taps_per_group] = static_cast<std::int16_t>(weight & ((1 << low_weight_bits) - 1));
            }
        }
        const auto rows = bytes(2 * (3 * static_cast<std::size_t>(in_width) + row_slack));
        const std::uint8_t* second = rows.data() + 3 * static_cast<std::size_t>(in_width) + row_slack;
        const RowWeights weights{first.data(), count.data(), groups.data(), num_groups, out_width};
        std::vector<std::uint8_t> out[2];
        int k = 0;
        for (const CpuKernels* kernels : {&plain_, &avx2_}) {
            auto& made = out[k++];
            made.assign(6 * static_cast<std::size_t>(out_width), 0);
            // One behind the other: nothing may be written behind a row.
            kernels->resize_rows_3(weights,
                                   {{rows.data(), second}, {made.data(), made.data() + 3 * std::ptrdiff_t{out_width}}});
        }
        ASSERT_EQ(out[0], out[1]) << in_width << " to " << out_width;
    }
}

TEST_F(DecodeKernels, FinishedValuesAgree) {
    const auto row = bytes(77);
    for (int i = 0; i < 200; ++i) {
        const float scale = std::ldexp(static_cast<float>(below(1 << 24) + 1), -24 - below(20));
        const float offset = std::ldexp(static_cast<float>(below(1 << 24) - (1 << 23)), -below(30));
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            std::vector<std::uint32_t> bits(256);
            for (int x = 0; x < 256; ++x) {
                const float value = std::fma(static_cast<float>(x), scale, offset);
                auto& to = bits[static_cast<std::size_t>(x)];
                if (dtype == DType::f32) std::memcpy(&to, &value, 4);
                if (dtype == DType::f16) to = to_half(value).bits;
                if (dtype == DType::bf16) to = to_bfloat16(value).bits;
            }
            const Finish finish{scale, offset, bits.data()};
            std::vector<float> wide[2] = {std::vector<float>(77), std::vector<float>(77)};
            std::vector<std::uint16_t> narrow[2] = {std::vector<std::uint16_t>(77), std::vector<std::uint16_t>(77)};
            int k = 0;
            for (const CpuKernels* kernels : {&plain_, &avx2_}) {
                if (dtype == DType::f32) kernels->finish_f32(row.data(), 77, finish, wide[k].data());
                if (dtype == DType::f16) kernels->finish_f16(row.data(), 77, finish, narrow[k].data());
                if (dtype == DType::bf16) kernels->finish_bf16(row.data(), 77, finish, narrow[k].data());
                ++k;
            }
            ASSERT_EQ(wide[0], wide[1]);
            ASSERT_EQ(narrow[0], narrow[1]);
        }
    }
}

}  // namespace
}  // namespace robocache::decode_detail
