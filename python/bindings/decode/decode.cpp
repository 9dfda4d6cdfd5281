// decode_images for Python: one native call.
#include "robocache/decode.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "arrays/outputs.hpp"
#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "core/cuda/memory.hpp"
#include "decode/options.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

constexpr const char* op = "decode_images";

/// The arguments of Python. Arrays may be None, except bytes and offsets.
struct GivenPictures {
    nb::handle bytes, offsets;
    const PictureIndex& index;
    nb::handle device_index, rows;
};

class DecodeCall {
public:
    DecodeCall(const GivenPictures& pictures, const GivenEdits& edits, const GivenStyle& style, nb::handle queue)
        : reader_(queue), bytes_(pictures.bytes), plan_(plan(pictures, edits, style)) {}

    nb::object run(nb::handle allocate) {
        const Allocator allocator(op, reader_, allocate, bytes_, DType::u8);
        TensorView output = plan_.output();
        nb::object made = allocator.make(output, "an output");
        TensorView scratch(static_cast<void*>(nullptr), DType::u8, {plan_.workspace_bytes()}, plan_.device());
        nb::object scratch_array = nb::none();
        if (plan_.workspace_bytes() > 0) scratch_array = allocator.make(scratch, "workspace");
        const Unlocked unlocked;
        robocache::run(plan_, output, {scratch.data, plan_.workspace_bytes()}, reader_.stream());
        if (reader_.must_wait()) wait_for_stream(plan_.device().index, reader_.stream());
        return made;
    }

private:
    DecodePlan plan(const GivenPictures& given, const GivenEdits& edits, const GivenStyle& style) {
        PicturesView view;
        view.bytes = reader_.read(given.bytes, {op, "bytes"});
        view.offsets = reader_.read(given.offsets, {op, "offsets"});
        view.index = &given.index;
        if (!given.device_index.is_none()) view.device_index = reader_.read(given.device_index, {op, "device_index"});
        TensorReader host;
        if (!given.rows.is_none()) view.rows = host_vector<std::int64_t>(host, given.rows, {op, "rows"}, DType::i64);
        return plan_decode(view, read_options(op, host, edits, style));
    }

    TensorReader reader_;
    nb::handle bytes_;
    DecodePlan plan_;
};

}  // namespace

void bind_decode(nb::module_& m) {
    bind_picture_index(m);
    bind_video(m);
    m.def(
        "decode",
        [](nb::handle bytes, nb::handle offsets, const PictureIndex& index, nb::handle device_index, nb::handle rows,
           nb::handle crops, nb::handle flips, nb::handle colors, GivenSize size, std::string_view filter,
           std::string_view layout, std::string_view dtype, MeanAndDeviation normalize, int channels,
           nb::handle allocate, nb::handle queue) {
            DecodeCall call({bytes, offsets, index, device_index, rows}, {crops, flips, colors},
                            {size, filter, layout, dtype, normalize, channels}, queue);
            return call.run(allocate);
        },
        nb::arg("bytes"), nb::arg("offsets"), nb::arg("index"), nb::arg("device_index").none(), nb::arg("rows").none(),
        nb::arg("crops").none(), nb::arg("flips").none(), nb::arg("colors").none(), nb::arg("size").none(),
        nb::arg("filter"), nb::arg("layout"), nb::arg("dtype"), nb::arg("normalize").none(), nb::arg("channels"),
        nb::arg("allocate") = nb::none(), nb::arg("queue") = nb::none());
}

}  // namespace robocache::python
