// Exact quantiles of numbers that pass by once: how many lie outside of brackets that a sample gave, and those inside.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "batch/contract.hpp"
#include "core/thread_pool.hpp"

namespace robocache::loader_detail {

/// The lower and the upper tail of each channel of floating rows. A bracket [low, high] of a tail is expected to hold
/// a quantile:
///
///     lower tail   outside | low ... inside ... high |   the rest, which is only looked at
///     upper tail   the rest | low ... inside ... high | outside
///
/// Outside and both ends are counted, what is strictly inside is kept: T is the dtype of the rows.
template <class T>
class Tails {
public:
    /// brackets (2, 2, C) f64: tail, low and high, channel.
    explicit Tails(const TensorView& brackets) : num_channels_(brackets.shape[2]) {
        const auto* from = static_cast<const double*>(brackets.data);
        for (std::int64_t i = 0; i < 4 * num_channels_; ++i) ends_.push_back(static_cast<T>(from[i]));
        rows_at_once_ = std::max<std::int64_t>(1, block / std::max<std::int64_t>(1, num_channels_));
        for (const int which : {1, 2}) {  // the inner ends; few channels are repeated so that the inner loop is long
            for (std::int64_t i = 0; i < rows_at_once_ * num_channels_; ++i) {
                inner_.push_back(ends_[static_cast<std::size_t>(which * num_channels_ + i % num_channels_)]);
            }
        }
        for (std::int64_t i = 0; i < rows_at_once_ * num_channels_; ++i) {
            places_.emplace_back(static_cast<std::int32_t>(i / num_channels_),
                                 static_cast<std::int32_t>(i % num_channels_));
        }
        for (const int end : {0, 1}) {
            for (std::int64_t i = 0; i < 2 * num_channels_; ++i) {
                const auto pair = bracket(static_cast<std::size_t>(i));
                seen_.push_back(end == 0 ? pair.first : pair.second);
            }
        }
        counts_.resize(static_cast<std::size_t>(8 * num_channels_));
        inside_.resize(static_cast<std::size_t>(2 * num_channels_));
    }

    /// values (N, C), padding (N,) bool: rows that are left out; null: none. Numbers that are not finite are too.
    void add(const T* values, const bool* padding, std::int64_t num_rows) {
        const std::int64_t grain =
            std::max<std::int64_t>(rows_at_once_, (1 << 16) / std::max<std::int64_t>(1, num_channels_));
        parallel_for(num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
            Found found{std::vector<std::int64_t>(counts_.size()), std::vector<std::pair<std::size_t, T>>(1 << 10)};
            for (std::int64_t row = begin; row < end; row += rows_at_once_) {
                scan(values, padding, row, std::min(end, row + rows_at_once_), found);
            }
            const std::scoped_lock lock(mutex_);
            for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += found.counts[i];
            for (std::size_t i = 0; i < found.num_inside; ++i) {
                inside_[found.inside[i].first].push_back(found.inside[i].second);
            }
        });
    }

    /// ranks (2, R, C) i64, counted from the outer end of each tail, to values (2, R, C) f64; NaN where a rank is not
    /// in the bracket.
    void values_at(const std::int64_t* ranks, std::int64_t num_ranks, double* values) {
        parallel_for(2 * num_channels_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t place = begin; place < end; ++place) {
                const std::int64_t tail = place / num_channels_;
                for (std::int64_t r = 0; r < num_ranks; ++r) {
                    const std::int64_t at = (tail * num_ranks + r) * num_channels_ + place % num_channels_;
                    values[at] = value_at(place, ranks[at]);
                }
            }
        });
    }

private:
    static constexpr std::int64_t block = 256;  // numbers that are looked at together

    struct Found {
        std::vector<std::int64_t> counts;  // (4, 2 C): outside, at the outer end, at the inner end, inside
        std::vector<std::pair<std::size_t, T>> inside;
        std::size_t num_inside = 0;
    };

    void scan(const T* values, const bool* padding, std::int64_t begin, std::int64_t end, Found& found) const {
        const T* from = values + begin * num_channels_;
        const std::int64_t size = (end - begin) * num_channels_;
        const T* low = inner_.data();
        const T* high = low + rows_at_once_ * num_channels_;
        for (std::int64_t first = 0; first < size; first += block) {
            unsigned char marks[block] = {};
            const std::int64_t count = std::min(block, size - first);
            for (std::int64_t i = 0; i < count; ++i) {  // without a branch, so that it is vectorized
                const T x = from[first + i];
                marks[i] = static_cast<unsigned char>(!((x > low[first + i]) & (x < high[first + i])));
            }
            for (std::int64_t i = 0; i < count; i += 8) {
                std::uint64_t word;
                std::memcpy(&word, marks + i, 8);
                for (; word != 0; word &= word - 1) {  // one bit for each mark
                    const std::int64_t number = first + i + std::countr_zero(word) / 8;
                    const auto [row, channel] = places_[static_cast<std::size_t>(number)];
                    if (!padding || !padding[begin + row]) place(from[number], channel, found);
                }
            }
        }
    }

    void place(T x, std::int64_t channel, Found& found) const {
        if (!std::isfinite(x)) return;
        const auto lower = static_cast<std::size_t>(channel);
        const auto width = static_cast<std::size_t>(num_channels_);
        const bool is_low = x <= ends_[width + lower];
        const bool is_high = x >= ends_[2 * width + lower];
        count(x, is_low ? lower : width + lower, found);
        if (is_low && is_high) count(x, width + lower, found);  // brackets that overlap
    }

    /// Without a branch: which of the cases it is cannot be predicted.
    void count(T x, std::size_t place, Found& found) const {
        const auto width = static_cast<std::size_t>(num_channels_);
        const T y = place < width ? x : -x;  // so that the tail begins with the least
        const T outer = seen_[place];
        const T inner = seen_[2 * width + place];
        const int after = static_cast<int>(y > outer);
        const int at_inner = static_cast<int>(y == inner) & after;
        const int at_outer = static_cast<int>(y == outer);
        const auto where = static_cast<std::size_t>(at_outer + 3 * after - at_inner);
        ++found.counts[where * 2 * width + place];
        found.inside[found.num_inside] = {place, y};
        found.num_inside += static_cast<std::size_t>(where == 3);
        if (found.num_inside == found.inside.size()) found.inside.resize(2 * found.num_inside);
    }

    /// The ends of a bracket, seen from the outer end of its tail.
    [[nodiscard]] std::pair<T, T> bracket(std::size_t place) const {
        const auto width = static_cast<std::size_t>(num_channels_);
        if (place < width) return {ends_[place], ends_[width + place]};
        return {-ends_[2 * width + place], -ends_[width + place]};  // place - width, of (2, 2, C)
    }

    double value_at(std::int64_t number, std::int64_t rank) {
        const auto place = static_cast<std::size_t>(number);
        const auto width = 2 * static_cast<std::size_t>(num_channels_);
        const T outer = seen_[place];
        const T inner = seen_[width + place];
        std::vector<T>& inside = inside_[place];
        const double sign = number < num_channels_ ? 1.0 : -1.0;
        const auto size = static_cast<std::int64_t>(inside.size());
        std::int64_t left = rank - counts_[place];
        if (left < 0) return std::numeric_limits<double>::quiet_NaN();
        if (left < counts_[width + place]) return sign * static_cast<double>(outer);
        left -= counts_[width + place];
        if (left < size) {
            std::nth_element(inside.begin(), inside.begin() + left, inside.end());
            return sign * static_cast<double>(inside[static_cast<std::size_t>(left)]);
        }
        if (left - size < counts_[2 * width + place]) return sign * static_cast<double>(inner);
        return std::numeric_limits<double>::quiet_NaN();
    }

    std::int64_t num_channels_;
    std::int64_t rows_at_once_;
    std::vector<T> ends_;   // (2, 2, C)
    std::vector<T> seen_;   // (2, 2 C): the outer ends of both tails, then the inner ends, seen from the outer one
    std::vector<T> inner_;  // (2, rows_at_once_ * C): the end of the lower bracket, and the begin of the upper one
    std::vector<std::pair<std::int32_t, std::int32_t>> places_;  // row and channel of each of these numbers
    std::vector<std::int64_t> counts_;
    std::vector<std::vector<T>> inside_;  // of each tail and channel
    std::mutex mutex_;
};

}  // namespace robocache::loader_detail
