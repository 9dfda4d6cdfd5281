// voxelize by plain loops: what the library's answers are compared with.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "robocache/voxelize.hpp"

namespace robocache::reference {

using CellKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;  // cloud, x, y, z

struct Cloud {
    std::vector<float> points;          // (N, 3)
    std::vector<float> features;        // (N, channels)
    std::vector<std::int64_t> offsets;  // empty: one cloud
    std::int64_t channels = 0;

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(points.size() / 3); }
    [[nodiscard]] std::int64_t num_clouds() const {
        return offsets.empty() ? 1 : static_cast<std::int64_t>(offsets.size()) - 1;
    }
    [[nodiscard]] std::int64_t cloud_of(std::int64_t i) const {
        std::int64_t b = 0;
        while (!offsets.empty() && offsets[static_cast<std::size_t>(b) + 1] <= i) ++b;
        return b;
    }
    [[nodiscard]] PointsView view() const {
        PointsView view;
        view.points = TensorView(points.data(), DType::f32, {size(), 3});
        if (!offsets.empty()) {
            view.offsets = TensorView(offsets.data(), DType::i64, {static_cast<std::int64_t>(offsets.size())});
        }
        if (channels > 0) view.features = TensorView(features.data(), DType::f32, {size(), channels});
        return view;
    }
};

/// Points inside and outside [-1, 1.1], some not finite, features of both signs, a few of them special.
inline Cloud random_cloud(std::int64_t count, std::int64_t channels, std::int64_t num_clouds, unsigned seed,
                          bool special_features = false) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> place(-1.0F, 1.1F);
    std::normal_distribution<float> value;
    Cloud cloud;
    cloud.channels = channels;
    const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              -0.0F,
                              1e38F,
                              1e-42F};
    for (std::int64_t i = 0; i < count * 3; ++i) {
        cloud.points.push_back(random() % 200 == 0 ? specials[random() % 3] : place(random));
    }
    for (std::int64_t i = 0; i < count * channels; ++i) {
        cloud.features.push_back(special_features && random() % 20 == 0 ? specials[random() % 6] : value(random));
    }
    if (num_clouds > 1) {
        cloud.offsets.push_back(0);
        for (std::int64_t b = 1; b < num_clouds; ++b) {
            // One cloud in four is empty.
            cloud.offsets.push_back(b % 4 == 1 ? cloud.offsets.back() : count * b / num_clouds);
        }
        cloud.offsets.push_back(count);
    }
    return cloud;
}

struct Cells {
    std::map<CellKey, std::vector<std::int64_t>> points;  // of each occupied cell, in input order
    std::vector<std::int64_t> dropped;                    // by cloud
    std::vector<CellKey> cell_of;                         // of each point; cloud -1: none
};

inline Cells find_cells(const Cloud& cloud, const VoxelGrid& grid) {
    Cells cells;
    cells.dropped.assign(static_cast<std::size_t>(cloud.num_clouds()), 0);
    const bool unbounded = grid.shape[0] == 0;
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        const std::int64_t b = cloud.cloud_of(i);
        float c[3];
        bool in = true;
        for (int a = 0; a < 3; ++a) {
            const float p = cloud.points[static_cast<std::size_t>(i * 3 + a)];
            c[a] = std::floor((p - static_cast<float>(grid.origin[static_cast<std::size_t>(a)])) /
                              static_cast<float>(grid.size[static_cast<std::size_t>(a)]));
            const float low = unbounded ? -0x1p20F : 0.0F;
            const float limit = unbounded ? 0x1p20F : static_cast<float>(grid.shape[static_cast<std::size_t>(a)]);
            in = in && c[a] >= low && c[a] < limit;
        }
        cells.cell_of.emplace_back(-1, 0, 0, 0);
        if (!in) {
            ++cells.dropped[static_cast<std::size_t>(b)];
            continue;
        }
        const CellKey key{b, static_cast<std::int64_t>(c[0]), static_cast<std::int64_t>(c[1]),
                          static_cast<std::int64_t>(c[2])};
        cells.points[key].push_back(i);
        cells.cell_of.back() = key;
    }
    return cells;
}

inline bool is_below(float a, float b) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

/// Channel c of a cell with these points, by the rules of docs/voxelize.md; sums as deterministic=true makes them.
inline float reduce(const Cloud& cloud, const std::vector<std::int64_t>& points, std::int64_t c, Reduction reduction) {
    std::vector<float> x;
    for (const std::int64_t i : points) x.push_back(cloud.features[static_cast<std::size_t>(i * cloud.channels + c)]);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    bool has_nan = false;
    bool plus = false;
    bool minus = false;
    float largest = 0;
    for (const float v : x) {
        has_nan = has_nan || std::isnan(v);
        plus = plus || v == infinity;
        minus = minus || v == -infinity;
        largest = std::max(largest, std::fabs(v));
    }
    if (has_nan) return nan;
    if (reduction == Reduction::min || reduction == Reduction::max) {
        float best = x[0];
        for (const float v : x) best = (reduction == Reduction::min ? is_below(v, best) : is_below(best, v)) ? v : best;
        return best;
    }
    if (plus || minus) return plus && minus ? nan : (plus ? infinity : -infinity);
    if (largest == 0) return 0;
    int e = 0;
    std::frexp(static_cast<double>(largest), &e);
    int log2_n = 0;
    while ((std::size_t{1} << log2_n) < x.size()) ++log2_n;
    const int k = 62 - e - log2_n;
    long long sum = 0;
    for (const float v : x) sum += std::llrint(std::ldexp(static_cast<double>(v), k));
    const double back = std::ldexp(static_cast<double>(sum), -k);
    return static_cast<float>(reduction == Reduction::mean ? back / static_cast<double>(x.size()) : back);
}

}  // namespace robocache::reference
