// Features as Python describes them: FeaturePart and FeatureRows, for a Composer and for a BatchReader.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "robocache/feature.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// Column, channel, moment (-1: that of the output).
using GivenChannels = std::vector<std::int64_t>;

struct GivenPart {
    FeatureMath math;
    std::int64_t num_channels;
    double period;
    RotationForm stored, form;
    std::optional<GivenChannels> values, turn, from_values, from_turn;
};

struct GivenFeature {
    std::vector<GivenPart> parts;
    std::vector<std::pair<std::int64_t, std::int64_t>> paddings;  // column, moment
    std::string dtype;
    std::vector<std::int64_t> row;  // the shape of a row
    std::int64_t num_moments;
    nb::object offset, scale;              // (S, D) f64 on the device, or None
    nb::object values_like, padding_like;  // empty arrays that outputs are made like

    int traverse(visitproc visit, void* arg) const {
        for (const nb::object* object : {&offset, &scale, &values_like, &padding_like}) Py_VISIT(object->ptr());
        return 0;
    }

    /// Values and padding of a batch, empty.
    [[nodiscard]] TensorView values(std::int64_t batch_size, DType known_dtype) const {
        TensorView made;
        made.dtype = known_dtype;
        made.rank = static_cast<int>(row.size()) + 2;
        made.shape[0] = batch_size;
        made.shape[1] = num_moments;
        for (std::size_t d = 0; d < row.size(); ++d) made.shape[d + 2] = row[d];
        return made;
    }
    [[nodiscard]] TensorView padding(std::int64_t batch_size) const {
        TensorView made = values(batch_size, DType::boolean);
        made.rank = 2;
        return made;
    }
};

/// `array` as (B, T, C), without gaps.
inline TensorView as_rows(TensorView view) {
    std::int64_t channels = 1;
    for (int d = 2; d < view.rank; ++d) channels *= view.shape[d];
    return TensorView(view.data, view.dtype, {view.shape[0], view.shape[1], channels}, view.device);
}

}  // namespace robocache::python
