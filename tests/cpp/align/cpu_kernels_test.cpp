// Both instruction sets give the same bits, for every dtype in and out, every method and every layout.
#include "ops/align/cpu/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/cpu_features.hpp"

namespace robocache::align_detail {
namespace {

constexpr std::int64_t num_rows = 12;
constexpr std::int64_t max_width = 300;  // more than one piece
constexpr std::int64_t stride_between_channels = 2;

bool every_fifth_is_replaced(const void*, std::int64_t row) {
    return row % 5 == 3;
}

/// Random bit patterns; for 16 bits that includes NaN, infinity and subnormals.
std::vector<char> random_bytes(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<char> bytes(count);
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

std::vector<Sample> random_samples(Method method, std::vector<OuterRows>& outer) {
    std::mt19937 random(5);
    std::uniform_int_distribution<std::int64_t> row(0, num_rows - 2);
    std::vector<Sample> samples;
    for (int i = 0; i < 40; ++i) {
        const std::int64_t a = row(random);
        Sample sample = blend_sample(a, a + 1, static_cast<double>(random()) / 4294967296.0, true);
        if (method == Method::cubic) sample.kind = Kind::cubic;
        if (is_window(method)) {
            sample.kind = Kind::window;
            sample.rows[1] = a + 2;  // one row of the two counts at least
        }
        if (i % 7 == 0 || method == Method::previous) sample.kind = Kind::row;
        if (i % 11 == 0) sample.kind = Kind::zero;
        samples.push_back(sample);
        outer.push_back({a > 0 ? a - 1 : a, a + 1, -0.0625, -0.03});
    }
    return samples;
}

/// Which NaN comes out of two NaNs is up to the compiler's order of operands; everything else must be the same bits.
std::vector<char> with_one_nan(std::vector<char> bytes, DType dtype) {
    const auto size = static_cast<std::size_t>(size_bytes(dtype));
    for (std::size_t at = 0; is_floating(dtype) && at + size <= bytes.size(); at += size) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &bytes[at], size);
        const std::uint64_t infinity = dtype == DType::f16    ? 0x7c00U
                                       : dtype == DType::bf16 ? 0x7f80U
                                       : dtype == DType::f32  ? 0x7f800000U
                                                              : 0x7ff0000000000000U;
        const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
        if ((bits & ~sign) > infinity) std::memset(&bytes[at], 0xff, size);
    }
    return bytes;
}

bool is_floating_method(Method method) {
    return method != Method::previous && method != Method::min && method != Method::max;
}

TEST(CpuKernels, BaselineAndX8664V3AgreeBitForBit) {
    if (!has_x86_64_v3()) GTEST_SKIP() << "this CPU has no AVX2, FMA and F16C";
    const std::vector<char> values = random_bytes(num_rows * max_width * stride_between_channels * 8, 1);
    for (int in = 0; in <= static_cast<int>(DType::f64); ++in) {
        for (int out = 0; out <= static_cast<int>(DType::f64); ++out) {
            const auto in_dtype = static_cast<DType>(in);
            const auto out_dtype = static_cast<DType>(out);
            if (in != out && !is_floating(out_dtype)) continue;
            for (const Method method : {Method::linear, Method::previous, Method::cubic, Method::slerp_xyzw,
                                        Method::angle, Method::mean, Method::min, Method::max, Method::rms}) {
                if (!is_floating(in_dtype) && is_floating_method(method)) continue;
                for (const std::int64_t width : {4L, 36L, max_width}) {
                    for (const std::int64_t stride : {1L, stride_between_channels}) {
                        std::vector<OuterRows> outer;
                        const std::vector<Sample> samples = random_samples(method, outer);
                        const std::int64_t out_row = width * stride * size_bytes(out_dtype);
                        std::vector<char> results[2];
                        int i = 0;
                        for (const CpuKernels* kernels : {&kernels_baseline(), &kernels_x86_64_v3()}) {
                            results[i].assign(samples.size() * static_cast<std::size_t>(out_row), 'x');
                            const RowJob job{values.data(),
                                             width * stride * size_bytes(in_dtype),
                                             stride,
                                             in_dtype,
                                             results[i].data(),
                                             out_row,
                                             stride,
                                             out_dtype,
                                             width,
                                             method,
                                             6.28,
                                             samples.data(),
                                             outer.data(),
                                             static_cast<std::int64_t>(samples.size()),
                                             &every_fifth_is_replaced,
                                             nullptr};
                            kernels->write_rows(job);
                            ++i;
                        }
                        ASSERT_EQ(with_one_nan(results[0], out_dtype), with_one_nan(results[1], out_dtype))
                            << name(in_dtype) << " to " << name(out_dtype) << ", method " << method_name(method)
                            << ", width " << width;
                    }
                }
            }
        }
    }
}

/// `count` targets searched and written in two steps, or at once past the caches, `shift` floats into aligned memory.
std::vector<float> rows_written(const CpuKernels& kernels, std::int64_t count, std::int64_t shift, bool at_once) {
    constexpr std::int64_t width = 40;
    std::vector<float> values(num_rows * width);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) * 0.37F;
    std::vector<double> times;
    for (int i = 0; i < num_rows; ++i) times.push_back(i / 2 * 0.5);  // every time twice
    std::vector<double> targets;
    for (std::int64_t k = 0; k < count; ++k) targets.push_back(static_cast<double>((k * 7) % 23) * 0.21 - 1.0);
    struct alignas(32) Line {
        float x[8];
    };
    std::vector<Line> memory(static_cast<std::size_t>(count * width / 8 + 1));
    float* out = memory[0].x + shift;
    const auto* rows = reinterpret_cast<const char*>(values.data());
    const Rules rules{{}, false, false, Outside::nan, Outside::linear};
    const PlaceJob<double> place{
        {times.data(), 1, num_rows}, targets.data(), count, Method::linear, rules, rows, width * 4, width * 8};
    std::vector<Neighbors> near(targets.size());
    std::vector<Sample> samples(targets.size());
    const RowJob write{rows,
                       width * 4,
                       1,
                       DType::f32,
                       reinterpret_cast<char*>(out),
                       width * 4,
                       1,
                       DType::f32,
                       width,
                       Method::linear,
                       6.28,
                       samples.data(),
                       nullptr,
                       count,
                       nullptr,
                       nullptr};
    if (at_once) {
        kernels.place_and_write<double>()(place, write, near.data(), samples.data());
    } else {
        kernels.place<double>()(place, near.data(), samples.data());
        kernels.write_rows(write);
    }
    return {out, out + count * width};
}

TEST(CpuKernels, RowsThatGoPastTheCachesAreTheSame) {
    for (const CpuKernels* kernels : {&kernels_baseline(), &kernels_x86_64_v3()}) {
        if (kernels == &kernels_x86_64_v3() && !has_x86_64_v3()) continue;
        for (const std::int64_t count : {1, 7, 8, 9, 64}) {  // fewer and more than are on their way at once
            for (const std::int64_t shift : {0, 4}) {        // aligned to 32 and to 16 bytes
                const std::vector<float> want = rows_written(*kernels, count, shift, false);
                const std::vector<float> got = rows_written(*kernels, count, shift, true);
                EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
                    << count << " targets, " << shift << " floats into a vector";
            }
        }
    }
}

template <class Time>
void expect_same_neighbors() {
    std::mt19937 random(3);
    for (const std::int64_t count : {1, 5, 8, 9, 10, 50, 1000}) {
        std::vector<Time> times;
        for (std::int64_t i = 0; i < count; ++i) times.push_back(static_cast<Time>(random() % (count * 2)));
        std::sort(times.begin(), times.end());
        std::vector<Time> targets;
        for (int i = 0; i < 200; ++i) targets.push_back(static_cast<Time>(random() % (count * 2 + 4)) - 2);
        if (count % 2 == 0) std::sort(targets.begin(), targets.end());
        const EpisodeTimes<Time> episode{times.data(), 1, count};
        const char row[1] = {};
        for (const CpuKernels* kernels : {&kernels_baseline(), &kernels_x86_64_v3()}) {
            if (kernels == &kernels_x86_64_v3() && !has_x86_64_v3()) continue;
            std::vector<Neighbors> near(targets.size());
            std::vector<Sample> samples(targets.size());
            const Rules rules{{}, false, false, Outside::hold, Outside::hold};
            kernels->place<Time>()({episode, targets.data(), 200, Method::linear, rules, row, 0, 1}, near.data(),
                                   samples.data());
            for (std::size_t i = 0; i < targets.size(); ++i) {
                const auto after = std::upper_bound(times.begin(), times.end(), targets[i]);
                ASSERT_EQ(near[i].left, after - times.begin() - 1) << count << " rows, target " << i;
                const auto last = after == times.end() ? after : std::upper_bound(after, times.end(), *after);
                ASSERT_EQ(near[i].right, after == times.end() ? -1 : last - times.begin() - 1);
            }
        }
    }
}

TEST(CpuKernels, TheSearchIsStdUpperBound) {
    expect_same_neighbors<float>();
    expect_same_neighbors<double>();
    expect_same_neighbors<std::int64_t>();
}

}  // namespace
}  // namespace robocache::align_detail
