// Alias tables: weights to integers whose sum is known exactly, and these to slots (Walker, Vose).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "batch/contract.hpp"

namespace robocache {
namespace loader_detail {
namespace {

constexpr std::string_view op = "make_alias_table";
constexpr std::uint64_t unit = std::uint64_t{1} << 32;  // of a slot

struct Largest {
    double weight = 0;
    double sum = 0;  // of all weights, each divided by the largest one
};

Largest checked(const double* weights, std::int64_t count) {
    Largest largest;
    for (std::int64_t i = 0; i < count; ++i) {
        if (!(weights[i] >= 0) || std::isinf(weights[i])) {
            fail(op, ArgumentName("weights", static_cast<std::size_t>(i), ""), "be finite and 0 or above",
                 number_text(weights[i]));
        }
        largest.weight = std::max(largest.weight, weights[i]);
    }
    if (!(largest.weight > 0)) fail(op, "weights", "have one that is above 0", "none");
    double lost = 0;  // compensated: every weight counts, however many there are
    for (std::int64_t i = 0; i < count; ++i) {
        const double x = weights[i] / largest.weight - lost;
        const double sum = largest.sum + x;
        lost = (sum - largest.sum) - x;
        largest.sum = sum;
    }
    return largest;
}

/// Adds `missing` to the parts, or takes it away where it is below 0: the same from each that can spare it.
void spread(std::vector<std::uint64_t>& parts, std::int64_t missing) {
    const bool takes = missing < 0;
    auto left = static_cast<std::uint64_t>(takes ? -missing : missing);
    while (left > 0) {
        const auto can_change = [&](std::uint64_t part) { return takes ? part > 1 : part > 0; };
        const auto num = static_cast<std::uint64_t>(std::count_if(parts.begin(), parts.end(), can_change));
        const std::uint64_t each = (left + num - 1) / num;
        for (std::uint64_t& part : parts) {
            if (!can_change(part)) continue;
            const std::uint64_t change = std::min({each, left, takes ? part - 1 : left});
            part = takes ? part - change : part + change;
            left -= change;
        }
    }
}

/// Parts of count * unit in all; at least 1 for every weight above 0.
std::vector<std::uint64_t> integer_parts(const double* weights, std::int64_t count) {
    const Largest largest = checked(weights, count);
    const std::uint64_t all = static_cast<std::uint64_t>(count) * unit;
    std::vector<std::uint64_t> parts(static_cast<std::size_t>(count));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const double part = weights[i] / largest.weight / largest.sum * static_cast<double>(all);
        parts[i] = std::max<std::uint64_t>(static_cast<std::uint64_t>(part), weights[i] > 0 ? 1 : 0);
        sum += parts[i];
    }
    spread(parts, static_cast<std::int64_t>(all - sum));
    return parts;
}

std::int64_t packed(std::uint64_t threshold, std::size_t alias) {
    return static_cast<std::int64_t>(threshold << 32 | alias);
}

/// Parts below a unit are filled up from parts above it until every slot has one unit.
void fill_slots(std::vector<std::uint64_t> parts, std::int64_t* slots) {
    std::vector<std::uint32_t> below;
    std::vector<std::uint32_t> above;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        slots[i] = packed(unit - 1, i);  // all its own
        if (parts[i] < unit) below.push_back(static_cast<std::uint32_t>(i));
        if (parts[i] > unit) above.push_back(static_cast<std::uint32_t>(i));
    }
    while (!below.empty()) {  // then there is one above: their mean is a unit
        const std::uint32_t small = below.back();
        const std::uint32_t large = above.back();
        below.pop_back();
        slots[small] = packed(parts[small], large);
        parts[large] -= unit - parts[small];
        if (parts[large] > unit) continue;
        above.pop_back();
        if (parts[large] < unit) below.push_back(large);
    }
}

}  // namespace
}  // namespace loader_detail

using namespace loader_detail;

void make_alias_table(const TensorView& weights, const TensorView& slots) {
    require_list(op, "weights", weights, DType::f64, Device{});
    require_list(op, "slots", slots, DType::i64, Device{});
    const std::int64_t count = weights.shape[0];
    if (count < 1 || count > INT32_MAX) fail(op, "weights", "be 1 to 2147483647 numbers", std::to_string(count));
    require_size(op, "slots", slots, count);
    fill_slots(integer_parts(static_cast<const double*>(weights.data), count), static_cast<std::int64_t*>(slots.data));
}

}  // namespace robocache
