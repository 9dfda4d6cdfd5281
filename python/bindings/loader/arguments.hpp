// What Python passes to the loader's operations, as the views of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "robocache/loader.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// (seed, epoch, epoch_size, shuffle).
using Order = std::tuple<std::uint64_t, std::int64_t, std::int64_t, bool>;

inline SampleOrder order_of(const Order& order) {
    const auto& [seed, epoch, epoch_size, shuffle] = order;
    return {seed, epoch, epoch_size, shuffle};
}

/// tables: (prefix, times, num_anchors, period_ns, quota).
inline std::vector<AnchorTable> read_tables(TensorReader& reader, const nb::sequence& tables, std::string_view op) {
    std::vector<AnchorTable> views;
    for (const nb::handle item : tables) {
        const auto fields = nb::cast<std::tuple<nb::object, nb::object, std::int64_t, double, std::int64_t>>(item);
        const auto& [prefix, times, num_anchors, period_ns, quota] = fields;
        const std::size_t i = views.size();
        views.push_back({reader.read(prefix, {op, {"tables", i, "prefix"}}),
                         reader.read(times, {op, {"tables", i, "times"}}), num_anchors, period_ns, quota});
    }
    return views;
}

}  // namespace robocache::python
