// What a validated call of decode_video looks like.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/video.hpp"

namespace robocache {

struct VideoPlan::State {
    Device device;
    std::string op;
    std::vector<VideoGop> gops;
    std::vector<std::int64_t> first_frames;  // of each GOP, among all
    std::int64_t num_frames = 0;
    std::int64_t output_bytes = 0;
};

namespace decode_detail {

/// Bytes of the planes of a frame.
[[nodiscard]] constexpr std::int64_t frame_bytes(const VideoTrack& track) {
    return std::int64_t{track.width} * track.height * 3 / 2;
}

#ifdef ROBOCACHE_HAS_CUDA
/// Empty: it can be decoded there.
[[nodiscard]] std::string why_no_nvdec(const VideoTrack& track, int device);
[[nodiscard]] std::optional<VideoFault> decode_video_cuda(const VideoPlan::State& plan, std::uint8_t* out,
                                                          std::span<VideoColor> colors, CudaQueue queue);
void release_nvdec() noexcept;
#endif

}  // namespace decode_detail
}  // namespace robocache
