// The memory of a BatchReader on the GPU: what is in it and where.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "batch/cuda/reader.hpp"

namespace robocache::loader_detail {

/// Host memory that becomes device memory in one copy.
class Image {
public:
    /// Room for `count` of T; returns where it begins.
    template <class T>
    std::size_t reserve(std::size_t count) {
        constexpr std::size_t alignment = 256;
        bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
        const std::size_t at = bytes_.size();
        bytes_.resize(at + std::max<std::size_t>(count, 1) * sizeof(T));
        return at;
    }
    template <class T>
    std::size_t add(const std::vector<T>& items) {
        const std::size_t at = reserve<T>(items.size());
        if (!items.empty()) std::memcpy(bytes_.data() + at, items.data(), items.size() * sizeof(T));
        return at;
    }
    template <class T>
    void write(std::size_t at, const T& item) {
        std::memcpy(bytes_.data() + at, &item, sizeof(T));
    }
    [[nodiscard]] const std::vector<char>& bytes() const { return bytes_; }

private:
    std::vector<char> bytes_;
};

[[noreturn]] inline void refuse(std::size_t column, const std::string& why) {
    throw Unsupported("BatchReader: columns[" + std::to_string(column) + "] on CUDA: " + why);
}

/// From row to row, in every part.
inline std::int64_t row_bytes(const BatchPlan& plan, std::size_t c) {
    std::int64_t bytes = 0;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const align_detail::StreamPlan& s = plan.rows_of(p, c).stream;
        if (s.num_rows < 2) continue;
        if (bytes != 0 && bytes != s.value_row_stride) refuse(c, "parts whose rows are not equally far apart");
        bytes = s.value_row_stride;
    }
    if (bytes != 0) return bytes;
    return plan.columns[c].num_channels * size_bytes(plan.rows_of(0, c).stream.values_dtype);
}

/// How many pairs of offset and scale are kept of every part: all channels as often as it takes to fill items of up to
/// 8 elements, and as other parts that tell more of them.
inline std::size_t num_pairs(const BatchPlan& plan, std::size_t c) {
    std::size_t count = 8;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        count = std::lcm(count, std::max<std::size_t>(plan.rows_of(p, c).offset.size(), 1));
    }
    return count;
}

/// Them in the type that the kernel computes in.
template <class Compute>
std::vector<Compute> pairs_of(const RowsPlan& rows, std::size_t count) {
    std::vector<Compute> pairs;
    if (rows.offset.empty()) return pairs;
    for (std::size_t i = 0; i < count; ++i) {
        pairs.push_back(static_cast<Compute>(rows.offset[i % rows.offset.size()]));
        pairs.push_back(static_cast<Compute>(rows.scale[i % rows.scale.size()]));
    }
    return pairs;
}

inline bool same_times(const BatchPlan& plan, std::size_t a, std::size_t b) {
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const align_detail::StreamPlan& x = plan.rows_of(p, a).stream;
        const align_detail::StreamPlan& y = plan.rows_of(p, b).stream;
        if (x.times != y.times || x.offsets != y.offsets || x.num_rows != y.num_rows ||
            x.num_episodes != y.num_episodes) {
            return false;
        }
    }
    return true;
}

/// DeviceColumn::near_deltas.
inline std::vector<double> near_deltas_of(const BatchPlan& plan, std::size_t c) {
    constexpr std::int64_t most = std::int64_t{1} << 50;
    const auto is_near = [](std::int64_t t) { return t <= most && t >= -most; };
    const bool counted = is_near(plan.rows[c].stream.latency.ns) && row_bytes(plan, c) <= INT32_MAX;
    std::vector<double> deltas;
    for (const std::int64_t delta : plan.columns[c].deltas) {
        deltas.push_back(counted && is_near(delta) ? static_cast<double>(delta) : std::nan(""));
    }
    return deltas;
}

/// Where everything lies in the memory of a reader: what the host writes, in one copy, and behind it what the device
/// makes.
struct BatchLayout {
    explicit BatchLayout(const BatchPlan& plan) {
        part = image.add(plan.part);
        local = image.add(plan.local);
        names = image.add(plan.names);
        tables = image.reserve<TablePlan>(plan.tables.size());
        rows = image.reserve<PartRows>(plan.rows.size());
        offsets = image.reserve<PartOffsets>(plan.rows.size());
        const std::size_t num_columns = plan.columns.size();
        for (const ColumnPlan& column : plan.columns) deltas.push_back(image.add(column.deltas));
        for (std::size_t c = 0; c < num_columns; ++c) near_deltas.push_back(image.add(near_deltas_of(plan, c)));
        for (std::size_t i = 0; i < plan.rows.size(); ++i) {
            const bool in_double = plan.columns[i % num_columns].written == DType::f64;
            const std::size_t count = num_pairs(plan, i % num_columns);
            scales.push_back(in_double ? image.add(pairs_of<double>(plan.rows[i], count))
                                       : image.add(pairs_of<float>(plan.rows[i], count)));
        }
        bytes = image.bytes().size();
        for (const TablePlan& table : plan.tables) {
            buckets.push_back(behind(static_cast<std::size_t>(num_buckets(table)) * sizeof(Bucket)));
        }
        for (std::size_t c = 0; c < num_columns; ++c) {
            std::size_t like = 0;
            while (like < c && !same_times(plan, like, c)) ++like;
            is_first.push_back(like == c);
            episodes.push_back(like < c ? episodes[like] : behind(plan.part.size() * sizeof(EpisodeIndex)));
        }
    }

    Image image;
    std::size_t part = 0;
    std::size_t local = 0;
    std::size_t names = 0;
    std::size_t tables = 0;
    // of each column in each part
    std::size_t rows = 0;
    std::size_t offsets = 0;
    std::vector<std::size_t> scales;
    // of each column
    std::vector<std::size_t> deltas;
    std::vector<std::size_t> near_deltas;
    std::vector<std::size_t> episodes;  // columns that have the same times share them
    std::vector<bool> is_first;         // of the columns that share them
    // of each table
    std::vector<std::size_t> buckets;
    std::size_t bytes = 0;

private:
    std::size_t behind(std::size_t more) {
        const std::size_t at = (bytes + 255) / 256 * 256;
        bytes = at + more;
        return at;
    }
};

}  // namespace robocache::loader_detail
