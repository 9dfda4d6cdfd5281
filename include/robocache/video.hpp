// Video on a GPU: packets of H.264 and HEVC to the planes of their frames, by the decoding engines of the chip (NVDEC).
//
// The driver's library (libnvcuvid.so.1) is opened when it is first needed; nothing is linked. Contract:
// docs/decode.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "robocache/tensor.hpp"

namespace robocache {

/// The codecs of videos that the engines of a GPU decode: H.264 (AVC), H.265 (HEVC).
enum class VideoCodec : std::int32_t { h264, hevc };

/// What is known of a video before its first packet. `extradata` is that of FFmpeg: avcC, hvcC, Annex B or nothing.
struct VideoTrack {
    VideoCodec codec = VideoCodec::h264;
    std::int32_t width = 0;  ///< of the frames that are shown; even
    std::int32_t height = 0;
    std::span<const std::uint8_t> extradata{};
};

/// Why frames of such a video (8 bits, 4:2:0) cannot be decoded by the engines of a GPU; empty: they can. Opens the
/// driver's library on first use. Never throws for what a machine does not have.
[[nodiscard]] std::string why_no_gpu_video(const VideoTrack& track, Device device);

/// Packets from an entry point on, in decode order, as far as they are needed, and which of their frames are wanted.
struct VideoGop {
    VideoTrack track;
    std::span<const std::uint8_t> bytes{};
    std::span<const std::int64_t> offsets{};  ///< (P + 1): packet i is [offsets[i], offsets[i + 1]) of `bytes`
    std::span<const std::int64_t> ranks{};    ///< (P): its place in the order of presentation; all different
    std::span<const std::int64_t> wanted{};   ///< (n): packets, ascending
    std::span<const std::int64_t> places{};   ///< (n): the first byte of each frame in the output
};

/// The colors that a frame declares: matrix coefficients of H.273, 2 where there are none.
struct VideoColor {
    std::int32_t matrix = 2;
    std::int32_t is_full_range = 0;
};

/// Packets that do not decode to what their track and index declare. "<name of the packet> <rule>" is the message.
struct VideoFault {
    std::int64_t gop = 0;
    std::int64_t packet = 0;
    std::string rule;
};

/// A validated call. It refers to the packets, which must outlive it.
class VideoPlan {
public:
    struct State;
    explicit VideoPlan(std::unique_ptr<const State> state) noexcept;
    ~VideoPlan();
    VideoPlan(VideoPlan&&) noexcept;
    VideoPlan& operator=(VideoPlan&&) noexcept;

    [[nodiscard]] Device device() const noexcept;
    /// The bytes that frames need in the output: the end of the last one.
    [[nodiscard]] std::int64_t output_bytes() const noexcept;
    /// Wanted frames of all GOPs.
    [[nodiscard]] std::int64_t num_frames() const noexcept;

    [[nodiscard]] const State& state() const noexcept { return *state_; }  ///< for the implementation

private:
    std::unique_ptr<const State> state_;
};

/// Validates a call. Throws Unsupported where why_no_gpu_video has a reason.
[[nodiscard]] VideoPlan plan_decode_video(std::span<const VideoGop> gops, Device device,
                                          std::string_view op = "decode_video");

/// Writes the planes of every wanted frame (Y, then U and V, without padding: PixelFormat) to its place in `output`,
/// (num_bytes,) u8 on the GPU, and its colors to `colors`, num_frames of them, in the order of the GOPs. Begins after
/// earlier work on `queue`; returns when the frames are written, since the host drives the decoding engines. Returns
/// the first fault of the packets; the frames of other GOPs are still right. Decoders are kept for later calls.
[[nodiscard]] std::optional<VideoFault> run(const VideoPlan& plan, const TensorView& output,
                                            std::span<VideoColor> colors, CudaQueue queue = {});

/// Frees the decoders that are kept. Call it before the CUDA driver ends; without it, they end with the process.
void release_video_decoders() noexcept;

}  // namespace robocache
