// The loader's operations for Python.
#include "robocache/loader.hpp"

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "bindings.hpp"
#include "core/cuda/memory.hpp"
#include "decode/arguments.hpp"
#include "loader/arguments.hpp"
#include "unlocked.hpp"

namespace robocache::python {
namespace {

void sample(const nb::list& tables, const GivenOrder& order, std::int64_t first_position, nb::handle episode,
            nb::handle anchor) {
    TensorReader reader;
    const TensorView episode_view = reader.read(episode, {"sample_anchors", "episode"}, Access::write);
    const TensorView anchor_view = reader.read(anchor, {"sample_anchors", "anchor"}, Access::write);
    const std::vector<AnchorTable> views = read_tables(reader, tables, "sample_anchors");
    const SampleOrder order_view = order.view(reader, "sample_anchors");
    const Unlocked unlocked;
    sample_anchors(views, order_view, first_position, episode_view, anchor_view, reader.stream());
    if (reader.must_wait()) wait_for_stream(episode_view.device.index, reader.stream());
}

void alias_table(nb::handle weights, nb::handle slots) {
    TensorReader reader;
    const TensorView weights_view = reader.read(weights, {"make_alias_table", "weights"});
    const TensorView slots_view = reader.read(slots, {"make_alias_table", "slots"}, Access::write);
    const Unlocked unlocked;
    make_alias_table(weights_view, slots_view);
}

void scale_channels(nb::handle values, nb::handle offset, nb::handle scale, nb::handle out) {
    TensorReader reader;
    const TensorView in = reader.read(values, {"normalize", "values"});
    const TensorView offset_view = reader.read(offset, {"normalize", "offset"});
    const TensorView scale_view = reader.read(scale, {"normalize", "scale"});
    const TensorView out_view = reader.read(out, {"normalize", "out"}, Access::write);
    const Unlocked unlocked;
    normalize(in, offset_view, scale_view, out_view, reader.stream());
    if (reader.must_wait()) wait_for_stream(in.device.index, reader.stream());
}

/// ranges: (N, 3) int64 of part, begin, end.
void gather(const nb::list& parts, nb::handle ranges, nb::handle out) {
    constexpr const char* op = "gather_bytes";
    TensorReader reader;
    std::vector<std::span<const std::uint8_t>> views;
    views.reserve(nb::len(parts));
    for (std::size_t i = 0; i < nb::len(parts); ++i) {
        views.push_back(host_vector<std::uint8_t>(reader, parts[i], {op, {"parts", i, ""}}, DType::u8));
    }
    const auto range_views = host_rows<ByteRange>(reader, ranges, {op, "ranges"}, DType::i64, 3);
    const auto into = host_vector<std::uint8_t>(reader, out, {op, "out"}, DType::u8);
    const Unlocked unlocked;
    gather_bytes(views, range_views, {const_cast<std::uint8_t*>(into.data()), into.size()});
}

}  // namespace

void bind_loader(nb::module_& m) {
    nb::class_<GivenOrder>(m, "SampleOrder")
        .def(
            "__init__",
            [](GivenOrder* self, std::uint64_t seed, std::int64_t epoch, std::int64_t epoch_size, bool shuffle,
               nb::object numbers) { new (self) GivenOrder{{seed, epoch, epoch_size, shuffle}, std::move(numbers)}; },
            nb::arg("seed"), nb::arg("epoch"), nb::arg("epoch_size"), nb::arg("shuffle"),
            nb::arg("numbers").none() = nb::none());
    nb::class_<GivenTable>(m, "AnchorTable")
        .def(
            "__init__",
            [](GivenTable* self, nb::object prefix, nb::object times, std::int64_t num_anchors, double period_ns,
               std::int64_t quota, nb::object slots) {
                new (self)
                    GivenTable{std::move(prefix), std::move(times), num_anchors, period_ns, quota, std::move(slots)};
            },
            nb::arg("prefix"), nb::arg("times"), nb::arg("num_anchors"), nb::arg("period_ns"), nb::arg("quota"),
            nb::arg("slots").none() = nb::none())
        .def_ro("prefix", &GivenTable::prefix)
        .def_ro("times", &GivenTable::times)
        .def_ro("num_anchors", &GivenTable::num_anchors)
        .def_ro("period_ns", &GivenTable::period_ns)
        .def_ro("quota", &GivenTable::quota)
        .def_ro("slots", &GivenTable::slots);
    m.def("make_alias_table", &alias_table, nb::arg("weights"), nb::arg("slots"));
    m.def("sample_anchors", &sample, nb::arg("tables"), nb::arg("order"), nb::arg("first_position"), nb::arg("episode"),
          nb::arg("anchor"));
    m.def("gather_bytes", &gather, nb::arg("parts"), nb::arg("ranges"), nb::arg("out"));
    m.def("normalize", &scale_channels, nb::arg("values"), nb::arg("offset"), nb::arg("scale"), nb::arg("out"));
}

}  // namespace robocache::python
