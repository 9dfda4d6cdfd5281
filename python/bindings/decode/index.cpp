// The picture index for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "decode/arguments.hpp"
#include "robocache/decode.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// Encoded pictures on the host.
struct HostPictures {
    std::span<const std::uint8_t> bytes;
    std::span<const std::int64_t> offsets;
};

HostPictures read_pictures(TensorReader& reader, std::string_view op, nb::handle bytes, nb::handle offsets) {
    return {host_vector<std::uint8_t>(reader, bytes, {op, "bytes"}, DType::u8),
            host_vector<std::int64_t>(reader, offsets, {op, "offsets"}, DType::i64)};
}

/// The pictures that are read; None: all.
std::optional<std::span<const std::int64_t>> read_rows(TensorReader& reader, std::string_view op, nb::handle rows) {
    if (rows.is_none()) return std::nullopt;
    return host_vector<std::int64_t>(reader, rows, {op, "rows"}, DType::i64);
}

/// pixels: (N, 4) int32 of height, width, channels, PixelFormat, or None.
PictureIndex make_index(std::string_view op, nb::handle bytes, nb::handle offsets, std::int32_t every,
                        bool entry_points, std::int64_t max_pixels, nb::handle pixels, nb::handle rows) {
    TensorReader reader;
    const HostPictures pictures = read_pictures(reader, op, bytes, offsets);
    PictureIndexOptions options;
    options.op = op;
    options.every = every;
    options.entry_points = entry_points;
    options.max_pixels = max_pixels;
    if (!pixels.is_none()) options.pixels = host_rows<PixelShape>(reader, pixels, {op, "pixels"}, DType::i32, 4);
    options.rows = read_rows(reader, op, rows);
    const Unlocked unlocked;
    return index_pictures(pictures.bytes, pictures.offsets, options);
}

/// One PictureKind per picture, as bytes.
nb::bytes kinds_of(std::string_view op, nb::handle bytes, nb::handle offsets, nb::handle rows) {
    TensorReader reader;
    const HostPictures pictures = read_pictures(reader, op, bytes, offsets);
    PictureIndexOptions options;
    options.op = op;
    options.rows = read_rows(reader, op, rows);
    const std::vector<PictureKind> kinds = picture_kinds(pictures.bytes, pictures.offsets, options);
    return nb::bytes(kinds.data(), kinds.size());
}

void unfilter(nb::handle filtered, std::int64_t height, std::int64_t pixel_bytes, nb::handle out) {
    TensorReader reader;
    const auto in = host_vector<std::uint8_t>(reader, filtered, {"unfilter_png", "filtered"}, DType::u8);
    const auto into = host_vector<std::uint8_t>(reader, out, {"unfilter_png", "out"}, DType::u8);
    const Unlocked unlocked;
    unfilter_png(in, height, pixel_bytes, {const_cast<std::uint8_t*>(into.data()), into.size()});
}

using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;
using ShapeArray = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>;

/// (N, 3): height, width, channels; of all pictures, or of these.
ShapeArray shapes_of(const PictureIndex& index, nb::handle rows) {
    TensorReader reader;
    const auto picked = read_rows(reader, "PictureIndex", rows);
    const std::size_t count = picked ? picked->size() : static_cast<std::size_t>(index.num_pictures());
    auto shapes = std::make_unique<std::int32_t[]>(3 * count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t picture = picked ? (*picked)[i] : static_cast<std::int64_t>(i);
        shapes[3 * i] = index.height(picture);
        shapes[3 * i + 1] = index.width(picture);
        shapes[3 * i + 2] = index.channels(picture);
    }
    const nb::capsule owner(shapes.get(), [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
    return ShapeArray(shapes.release(), {count, 3}, owner);
}

/// (height, width, channels), or None.
nb::object shape_of(std::string_view op, nb::handle bytes) {
    TensorReader reader;
    const auto shape = jpeg_shape(host_vector<std::uint8_t>(reader, bytes, {op, "bytes"}, DType::u8));
    if (!shape) return nb::none();
    return nb::make_tuple(shape->height, shape->width, shape->channels);
}

}  // namespace

void bind_picture_index(nb::module_& m) {
    nb::class_<PictureIndex>(m, "PictureIndex")
        .def_static(
            "from_bytes",
            [](nb::handle bytes) {
                TensorReader reader;
                return PictureIndex::from_bytes(
                    host_vector<std::uint8_t>(reader, bytes, {"PictureIndex", "bytes"}, DType::u8));
            },
            nb::arg("bytes"))
        .def_static(
            "join",
            [](const nb::list& parts, nb::handle rows) {
                TensorReader reader;
                std::vector<const PictureIndex*> indexes;
                for (nb::handle part : parts) indexes.push_back(&nb::cast<const PictureIndex&>(part));
                std::optional<std::span<const std::int64_t>> picked;
                if (!rows.is_none()) {
                    picked = host_vector<std::int64_t>(reader, rows, {"PictureIndex", "rows"}, DType::i64);
                }
                return PictureIndex::join(indexes, picked);
            },
            nb::arg("parts"), nb::arg("rows").none() = nb::none())
        .def_prop_ro("num_pictures", &PictureIndex::num_pictures)
        .def_prop_ro("num_entry_points", &PictureIndex::num_entry_points)
        .def("shapes_of", &shapes_of, nb::arg("rows").none() = nb::none(),
             nb::rv_policy::reference)  // the array has its owner
        .def_prop_ro(
            "bytes",
            [](nb::handle_t<PictureIndex> self) {
                const auto bytes = nb::cast<const PictureIndex&>(self).bytes();
                return ByteArray(bytes.data(), {bytes.size()}, self);
            },
            nb::rv_policy::reference);
    m.def("index_pictures", &make_index, nb::arg("op"), nb::arg("bytes"), nb::arg("offsets"), nb::arg("every"),
          nb::arg("entry_points"), nb::arg("max_pixels"), nb::arg("pixels").none() = nb::none(),
          nb::arg("rows").none() = nb::none());
    m.def("unfilter_png", &unfilter, nb::arg("filtered"), nb::arg("height"), nb::arg("pixel_bytes"), nb::arg("out"));
    m.def(
        "jpeg_bits",
        [](std::string_view op, nb::handle bytes) {
            TensorReader reader;
            return jpeg_bits(host_vector<std::uint8_t>(reader, bytes, {op, "bytes"}, DType::u8));
        },
        nb::arg("op"), nb::arg("bytes"));
    m.def("jpeg_shape", &shape_of, nb::arg("op"), nb::arg("bytes"));
    m.def("picture_kinds", &kinds_of, nb::arg("op"), nb::arg("bytes"), nb::arg("offsets"),
          nb::arg("rows").none() = nb::none());
}

}  // namespace robocache::python
