// One decoder of video: the packets of a GOP go in, its wanted frames come out. Needs no CUDA header, so that it is
// tested without a GPU, with a stand-in for the driver's library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/decode/cuda/nvdec/cuvid.hpp"
#include "ops/decode/cuda/nvdec/tuning.hpp"
#include "robocache/video.hpp"

namespace robocache::decode_detail {

/// A frame in the memory of a decoder (NV12): rows of Y, then half as many rows of U and V, interleaved. The frame that
/// is shown begins at column `left` and row `top`, both even.
struct Surface {
    cuvid::DevicePointer data = 0;
    std::size_t pitch = 0;
    std::size_t num_rows = 0;  // of Y
    std::size_t left = 0, top = 0;
};

/// Where frames go. `store` queues a copy of `width` x `height` pixels to `place`; `wait` returns when all copies are
/// done. Both may throw.
struct FrameSink {
    void* self = nullptr;
    void (*store)(void* self, const Surface& surface, int width, int height, std::int64_t place) = nullptr;
    void (*wait)(void* self) = nullptr;
    cuvid::Stream stream = nullptr;
};

/// What a GOP does not fulfill: of which packet.
struct GopFault {
    std::int64_t packet = 0;
    std::string rule;
};

[[nodiscard]] constexpr int cuvid_codec(VideoCodec codec) {
    return codec == VideoCodec::h264 ? cuvid::codec_h264 : cuvid::codec_hevc;
}

/// Throws OutOfMemory or CudaError, naming the call.
void check_video(cuvid::Result result, const char* call);

/// Used by one thread at a time. begin() sends all packets without waiting for the decoder, so that one thread feeds
/// several sessions; finish() waits and copies the frames out.
class Session {
public:
    Session(const cuvid::Functions& api, VideoCodec codec) noexcept : api_(api), codec_(codec) {}
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// `colors`: one for each wanted frame. The arguments must live until finish() has returned.
    void begin(const VideoGop& gop, std::span<VideoColor> colors, const FrameSink& sink);
    /// The first fault of the packets. After one, or after an exception, the session must not be used again.
    [[nodiscard]] std::optional<GopFault> finish();

    [[nodiscard]] VideoCodec codec() const noexcept { return codec_; }

private:
    struct Shown {
        cuvid::DisplayInfo info;
        std::size_t frame;  // among the wanted ones
    };

    void send_packets();
    void send(std::span<const std::uint8_t> bytes, unsigned long flags, long long timestamp);
    int on_sequence(const cuvid::VideoFormat& format);
    int on_decode(cuvid::PictureParams& picture);
    int on_display(const cuvid::DisplayInfo& info);
    template <class Body>
    int guarded(Body body) noexcept;

    void check_format(const cuvid::VideoFormat& format);
    void create_decoder(const cuvid::VideoFormat& format);
    void destroy_decoder() noexcept;
    void retire(int picture);
    void copy_out(std::span<const Shown> shown);
    [[nodiscard]] cuvid::DevicePointer map(const cuvid::DisplayInfo& info, unsigned& pitch);
    void check_status(int picture);
    void fail(std::int64_t packet, std::string rule);
    [[nodiscard]] std::int64_t current_packet() const;

    const cuvid::Functions& api_;
    VideoCodec codec_;
    cuvid::Decoder decoder_ = nullptr;
    int num_surfaces_ = 0;
    cuvid::VideoFormat format_{};  // that of decoder_

    // The GOP at hand.
    const VideoGop* gop_ = nullptr;
    std::span<VideoColor> colors_;
    FrameSink sink_;
    cuvid::Parser parser_ = nullptr;
    std::vector<std::int64_t> packet_of_rank_;
    std::vector<std::int64_t> frame_of_packet_;  // -1: not wanted
    std::vector<std::int64_t> picture_packets_;  // packets with parts of pictures, of those that were sent
    std::vector<std::uint8_t> is_shown_;         // of the wanted frames
    std::size_t num_shown_ = 0;
    std::size_t num_decoded_ = 0;                              // pictures, also fields
    std::vector<Shown> waiting_;                               // shown and not copied out
    std::array<std::int64_t, max_surfaces> packet_in_slot_{};  // whose status was not looked at; -1: none
    std::vector<std::uint8_t> stream_;
    std::optional<GopFault> fault_;
    std::exception_ptr error_;
};

}  // namespace robocache::decode_detail
