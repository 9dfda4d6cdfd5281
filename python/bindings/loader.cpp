// The loader's operations for Python.
#include "robocache/loader.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "core/cuda_memory.hpp"
#include "tensor_reader.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// tables: (prefix, times, num_anchors, period_ns, quota); order: (seed, epoch, epoch_size, shuffle).
void sample(const nb::sequence& tables, const std::tuple<std::uint64_t, std::int64_t, std::int64_t, bool>& order,
            std::int64_t first_position, nb::handle episode, nb::handle anchor) {
    TensorReader reader;
    const TensorView episode_view = reader.read(episode, {"sample_anchors", "episode"}, Access::write);
    const TensorView anchor_view = reader.read(anchor, {"sample_anchors", "anchor"}, Access::write);
    std::vector<AnchorTable> views;
    for (const nb::handle item : tables) {
        const auto fields = nb::cast<std::tuple<nb::object, nb::object, std::int64_t, double, std::int64_t>>(item);
        const auto& [prefix, times, num_anchors, period_ns, quota] = fields;
        const std::size_t i = views.size();
        views.push_back({reader.read(prefix, {"sample_anchors", {"tables", i, "prefix"}}),
                         reader.read(times, {"sample_anchors", {"tables", i, "times"}}), num_anchors, period_ns,
                         quota});
    }
    const auto [seed, epoch, epoch_size, shuffle] = order;
    const nb::gil_scoped_release unlocked;
    sample_anchors(views, {seed, epoch, epoch_size, shuffle}, first_position, episode_view, anchor_view,
                   reader.stream());
    if (reader.must_wait()) wait_for_stream(episode_view.device.index, reader.stream());
}

void scale_channels(nb::handle values, nb::handle offset, nb::handle scale, nb::handle out) {
    TensorReader reader;
    const TensorView in = reader.read(values, {"normalise", "values"});
    const TensorView offset_view = reader.read(offset, {"normalise", "offset"});
    const TensorView scale_view = reader.read(scale, {"normalise", "scale"});
    const TensorView out_view = reader.read(out, {"normalise", "out"}, Access::write);
    const nb::gil_scoped_release unlocked;
    normalise(in, offset_view, scale_view, out_view, reader.stream());
    if (reader.must_wait()) wait_for_stream(in.device.index, reader.stream());
}

}  // namespace

void bind_loader(nb::module_& m) {
    m.def("sample_anchors", &sample, nb::arg("tables"), nb::arg("order"), nb::arg("first_position"), nb::arg("episode"),
          nb::arg("anchor"));
    m.def("normalise", &scale_channels, nb::arg("values"), nb::arg("offset"), nb::arg("scale"), nb::arg("out"));
}

}  // namespace robocache::python
