// The picture index for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

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

/// pixels: (N, 4) int32 of height, width, channels, PixelFormat, or None.
PictureIndex make_index(std::string_view op, nb::handle bytes, nb::handle offsets, std::int32_t every,
                        bool entry_points, std::int64_t max_pixels, nb::handle pixels) {
    TensorReader reader;
    const HostPictures pictures = read_pictures(reader, op, bytes, offsets);
    PictureIndexOptions options;
    options.op = op;
    options.every = every;
    options.entry_points = entry_points;
    options.max_pixels = max_pixels;
    if (!pixels.is_none()) options.pixels = host_rows<PixelShape>(reader, pixels, {op, "pixels"}, DType::i32, 4);
    const Unlocked unlocked;
    return index_pictures(pictures.bytes, pictures.offsets, options);
}

/// One PictureKind per picture, as bytes.
nb::bytes kinds_of(std::string_view op, nb::handle bytes, nb::handle offsets) {
    TensorReader reader;
    const HostPictures pictures = read_pictures(reader, op, bytes, offsets);
    std::vector<char> kinds;
    for (std::size_t i = 0; i + 1 < pictures.offsets.size(); ++i) {
        const std::int64_t begin = pictures.offsets[i];
        const std::int64_t end = pictures.offsets[i + 1];
        const bool is_inside = begin >= 0 && begin <= end && end <= static_cast<std::int64_t>(pictures.bytes.size());
        const auto kind = !is_inside ? PictureKind::unknown
                                     : picture_kind(pictures.bytes.subspan(static_cast<std::size_t>(begin),
                                                                           static_cast<std::size_t>(end - begin)));
        kinds.push_back(static_cast<char>(kind));
    }
    return nb::bytes(kinds.data(), kinds.size());
}

using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;
using SizeArray = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>;

/// (N, 2): height, width.
SizeArray sizes_of(const PictureIndex& index) {
    const auto count = static_cast<std::size_t>(index.num_pictures());
    auto* sizes = new std::int32_t[2 * count];
    const nb::capsule owner(sizes, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
    for (std::size_t i = 0; i < count; ++i) {
        sizes[2 * i] = index.height(static_cast<std::int64_t>(i));
        sizes[2 * i + 1] = index.width(static_cast<std::int64_t>(i));
    }
    return SizeArray(sizes, {count, 2}, owner);
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
        .def_prop_ro("sizes", &sizes_of, nb::rv_policy::reference)  // the array has its owner
        .def_prop_ro(
            "bytes",
            [](nb::handle_t<PictureIndex> self) {
                const auto bytes = nb::cast<const PictureIndex&>(self).bytes();
                return ByteArray(bytes.data(), {bytes.size()}, self);
            },
            nb::rv_policy::reference);
    m.def("index_pictures", &make_index, nb::arg("op"), nb::arg("bytes"), nb::arg("offsets"), nb::arg("every"),
          nb::arg("entry_points"), nb::arg("max_pixels"), nb::arg("pixels").none() = nb::none());
    m.def("picture_kinds", &kinds_of, nb::arg("op"), nb::arg("bytes"), nb::arg("offsets"));
}

}  // namespace robocache::python
