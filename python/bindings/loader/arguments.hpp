// What Python passes to the loader's operations, as the views of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "robocache/loader.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// The anchors of one source as Python gives them: AnchorTable of loader.hpp, with arrays in place of views.
struct GivenTable {
    nb::object prefix, times;
    std::int64_t num_anchors = 0;
    double period_ns = 0;
    std::int64_t quota = 1;
    nb::object slots;  // or None
};

/// SampleOrder of loader.hpp, with an array in place of a view.
struct GivenOrder {
    SampleOrder order;
    nb::object numbers;  // or None

    [[nodiscard]] SampleOrder view(TensorReader& reader, std::string_view op) const {
        SampleOrder found = order;
        if (!numbers.is_none()) found.numbers = reader.read(numbers, {op, "numbers"});
        return found;
    }
};

inline std::vector<AnchorTable> read_tables(TensorReader& reader, const nb::list& tables, std::string_view op) {
    std::vector<AnchorTable> views;
    for (const nb::handle item : tables) {
        const auto& given = nb::cast<const GivenTable&>(item);
        const std::size_t i = views.size();
        views.push_back({reader.read(given.prefix, {op, {"tables", i, "prefix"}}),
                         reader.read(given.times, {op, {"tables", i, "times"}}), given.num_anchors, given.period_ns,
                         given.quota,
                         given.slots.is_none() ? std::optional<TensorView>()
                                               : reader.read(given.slots, {op, {"tables", i, "slots"}})});
    }
    return views;
}

}  // namespace robocache::python
