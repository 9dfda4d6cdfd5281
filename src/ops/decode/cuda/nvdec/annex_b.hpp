// NAL units of H.264 and HEVC: from the form of files, with lengths, to that of streams, with start codes (Annex B).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "robocache/video.hpp"

namespace robocache::decode_detail {

/// Bytes that are not NAL units; `rule` completes "<packet> cannot be decoded: ".
struct NalFault {
    std::string rule;
};

/// The parameter sets of a track and how its packets are written. FFmpeg's rules say which form extradata has:
///
///     H.264  01 ...                        avcC: packets have NAL units with lengths of 1, 2 or 4 bytes
///     HEVC   anything but 00 00 (00 | 01)  hvcC: the same
///     else                                 Annex B: both are streams already
class AnnexB {
public:
    /// Throws NalFault.
    explicit AnnexB(const VideoTrack& track);

    /// The parameter sets of the extradata, with start codes.
    [[nodiscard]] std::span<const std::uint8_t> header() const noexcept { return header_; }

    /// Appends the NAL units of a packet to `out`. Whether one of them has a part of a picture. Throws NalFault.
    bool append(std::span<const std::uint8_t> packet, std::vector<std::uint8_t>& out) const;

private:
    void read_avcc(std::span<const std::uint8_t> data);
    void read_hvcc(std::span<const std::uint8_t> data);
    [[nodiscard]] bool has_picture(std::uint8_t first_byte) const noexcept;

    VideoCodec codec_;
    int length_bytes_ = 0;  // 0: start codes
    std::vector<std::uint8_t> header_;
};

}  // namespace robocache::decode_detail
