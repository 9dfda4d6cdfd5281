// The options of decode_images, from the arguments of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "decode/arguments.hpp"
#include "robocache/decode.hpp"

namespace robocache::python {

using GivenSize = std::optional<std::array<std::int64_t, 2>>;
using MeanAndDeviation = std::optional<std::pair<std::array<float, 3>, std::array<float, 3>>>;

/// (N, 4) int32, (N,) uint8, (N, 3) float32, or None.
struct GivenEdits {
    nanobind::handle crops, flips, colors;
};
struct GivenStyle {
    GivenSize size;
    std::string_view filter, layout, dtype;
    MeanAndDeviation normalize;
    int channels;
};

template <class T>
T choice(std::string_view op, const char* argument, std::string_view given, std::pair<std::string_view, T> first,
         std::pair<std::string_view, T> second) {
    if (given == first.first) return first.second;
    if (given == second.first) return second.second;
    fail(op, argument, "be '" + std::string(first.first) + "' or '" + std::string(second.first) + "'",
         "'" + std::string(given) + "'");
}

/// `host` keeps what the options refer to.
inline DecodeOptions read_options(std::string_view op, TensorReader& host, const GivenEdits& edits,
                                  const GivenStyle& style) {
    DecodeOptions options;
    options.op = op;
    options.size = style.size;
    options.filter = choice<ResizeFilter>(op, "filter", style.filter, {"bilinear", ResizeFilter::bilinear},
                                          {"area", ResizeFilter::area});
    options.layout =
        choice<PictureLayout>(op, "layout", style.layout, {"HWC", PictureLayout::hwc}, {"CHW", PictureLayout::chw});
    options.dtype = dtype_from_name(style.dtype, {op, "dtype"});
    options.channels = style.channels;
    if (style.normalize) options.normalize = Normalization{style.normalize->first, style.normalize->second};
    if (!edits.crops.is_none()) options.crops = host_rows<CropBox>(host, edits.crops, {op, "crop"}, DType::i32, 4);
    if (!edits.flips.is_none()) options.flips = host_vector<std::uint8_t>(host, edits.flips, {op, "flip"}, DType::u8);
    if (!edits.colors.is_none()) {
        options.colors = host_rows<ColorFactors>(host, edits.colors, {op, "color"}, DType::f32, 3);
    }
    return options;
}

}  // namespace robocache::python
