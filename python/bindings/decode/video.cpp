// decode_video for Python: GOPs as tuples of arrays, frames into a tensor on a GPU.
#include "robocache/video.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "core/contract.hpp"
#include "decode/arguments.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

constexpr const char* op = "decode_video";

VideoCodec codec_of(std::string_view name) {
    if (name == "h264") return VideoCodec::h264;
    if (name == "hevc") return VideoCodec::hevc;
    fail(op, "codec", "be 'h264' or 'hevc'", "'" + std::string(name) + "'");
}

/// (codec, width, height, extradata); the bytes live as long as the tuple.
VideoTrack track_of(nb::handle given) {
    const auto parts = nb::cast<nb::tuple>(given);
    VideoTrack track;
    track.codec = codec_of(text(parts[0]));
    track.width = nb::cast<std::int32_t>(parts[1]);
    track.height = nb::cast<std::int32_t>(parts[2]);
    const auto extradata = nb::cast<nb::bytes>(parts[3]);
    track.extradata = {static_cast<const std::uint8_t*>(extradata.data()), extradata.size()};
    return track;
}

/// (track, bytes, offsets, ranks, wanted, places): a number of `tracks`, (n,) uint8 and int64 arrays.
VideoGop gop_of(TensorReader& host, const std::vector<VideoTrack>& tracks, nb::handle given) {
    const auto parts = nb::cast<nb::tuple>(given);
    const auto numbers = [&](std::size_t i, const char* name) {
        return host_vector<std::int64_t>(host, parts[i], {op, name}, DType::i64);
    };
    const auto track = nb::cast<std::size_t>(parts[0]);
    if (track >= tracks.size()) fail(op, "gops", "name one of the tracks", std::to_string(track));
    return {tracks[track],         host_vector<std::uint8_t>(host, parts[1], {op, "bytes"}, DType::u8),
            numbers(2, "offsets"), numbers(3, "ranks"),
            numbers(4, "wanted"),  numbers(5, "places")};
}

/// ([(matrix, is full range) of each frame], fault): fault is (GOP, packet, rule) or None.
nb::object decode_video(const nb::list& tracks, const nb::list& gops, nb::handle out, nb::handle queue) {
    TensorReader reader(queue);
    const TensorView output = reader.read(out, {op, "out"}, Access::write);
    TensorReader host;
    std::vector<VideoTrack> known;
    for (nb::handle track : tracks) known.push_back(track_of(track));
    std::vector<VideoGop> given;
    for (nb::handle gop : gops) given.push_back(gop_of(host, known, gop));
    const VideoPlan plan = plan_decode_video(given, output.device, op);
    std::vector<VideoColor> colors(static_cast<std::size_t>(plan.num_frames()));
    std::optional<VideoFault> fault;
    {
        const Unlocked unlocked;
        fault = run(plan, output, colors, reader.stream());
    }
    nb::list shown;
    for (const VideoColor& color : colors) shown.append(nb::make_tuple(color.matrix, color.is_full_range != 0));
    const nb::object found =
        fault ? nb::object(nb::make_tuple(fault->gop, fault->packet, fault->rule)) : nb::object(nb::none());
    return nb::make_tuple(shown, found);
}

}  // namespace

void bind_video(nb::module_& m) {
    m.def(
        "why_no_gpu_video",
        [](std::string_view codec, std::int32_t width, std::int32_t height, std::int32_t device) {
            const Unlocked unlocked;
            return why_no_gpu_video({codec_of(codec), width, height, {}}, {DeviceType::cuda, device});
        },
        nb::arg("codec"), nb::arg("width"), nb::arg("height"), nb::arg("device"));
    m.def("decode_video", &decode_video, nb::arg("tracks"), nb::arg("gops"), nb::arg("out"),
          nb::arg("queue") = nb::none());
    m.def("release_video_decoders", [] {
        const Unlocked unlocked;
        release_video_decoders();
    });
}

}  // namespace robocache::python
