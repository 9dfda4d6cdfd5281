#include "ops/decode/cuda/nvdec/annex_b.hpp"

#include <cstddef>

namespace robocache::decode_detail {

namespace {

using Bytes = std::span<const std::uint8_t>;

/// Reads numbers and parts; none past the end.
class Cursor {
public:
    explicit Cursor(Bytes data) : data_(data) {}

    [[nodiscard]] bool is_at_end() const { return at_ == data_.size(); }
    std::size_t number(int num_bytes) {
        std::size_t value = 0;
        for (const std::uint8_t byte : take(static_cast<std::size_t>(num_bytes))) value = value << 8 | byte;
        return value;
    }
    Bytes take(std::size_t count) {
        if (count > data_.size() - at_) throw NalFault{"a NAL unit ends outside of its packet"};
        at_ += count;
        return data_.subspan(at_ - count, count);
    }

private:
    Bytes data_;
    std::size_t at_ = 0;
};

void append_unit(Bytes unit, std::vector<std::uint8_t>& out) {
    constexpr std::uint8_t start_code[] = {0, 0, 0, 1};
    out.insert(out.end(), std::begin(start_code), std::end(start_code));
    out.insert(out.end(), unit.begin(), unit.end());
}

}  // namespace

AnnexB::AnnexB(const VideoTrack& track) : codec_(track.codec) {
    const Bytes data = track.extradata;
    const bool is_h264 = codec_ == VideoCodec::h264;
    if (is_h264 && data.size() >= 7 && data[0] == 1) {
        read_avcc(data);
    } else if (!is_h264 && data.size() >= 23 && (data[0] != 0 || data[1] != 0 || data[2] > 1)) {
        read_hvcc(data);
    } else {
        header_.assign(data.begin(), data.end());
    }
}

// avcC: version, 3 bytes of the profile, 6 bits + lengths minus 1 (2 bits), 3 bits + sequence sets (5 bits), picture
// sets
void AnnexB::read_avcc(Bytes data) {
    Cursor cursor(data);
    cursor.take(4);
    length_bytes_ = static_cast<int>(cursor.number(1) & 3) + 1;
    for (const std::size_t mask : {std::size_t{31}, std::size_t{255}}) {
        for (std::size_t count = cursor.number(1) & mask; count > 0; --count) {
            append_unit(cursor.take(cursor.number(2)), header_);
        }
    }
}

// hvcC: 21 bytes, 6 bits + lengths minus 1 (2 bits), arrays: each a type, a count, and as many units
void AnnexB::read_hvcc(Bytes data) {
    Cursor cursor(data);
    cursor.take(21);
    length_bytes_ = static_cast<int>(cursor.number(1) & 3) + 1;
    for (std::size_t arrays = cursor.number(1); arrays > 0; --arrays) {
        cursor.take(1);
        for (std::size_t count = cursor.number(2); count > 0; --count) {
            append_unit(cursor.take(cursor.number(2)), header_);
        }
    }
}

bool AnnexB::has_picture(std::uint8_t first_byte) const noexcept {
    if (codec_ == VideoCodec::hevc) return (first_byte >> 1 & 63) < 32;
    const int type = first_byte & 31;
    return type >= 1 && type <= 5;
}

bool AnnexB::append(Bytes packet, std::vector<std::uint8_t>& out) const {
    bool found = false;
    if (length_bytes_ == 0) {
        for (std::size_t i = 0; i + 3 < packet.size(); ++i) {
            const bool is_start = packet[i] == 0 && packet[i + 1] == 0 && packet[i + 2] == 1;
            found = found || (is_start && has_picture(packet[i + 3]));
        }
        out.insert(out.end(), packet.begin(), packet.end());
        return found;
    }
    Cursor cursor(packet);
    while (!cursor.is_at_end()) {
        const Bytes unit = cursor.take(cursor.number(length_bytes_));
        if (unit.empty()) continue;
        found = found || has_picture(unit[0]);
        append_unit(unit, out);
    }
    return found;
}

}  // namespace robocache::decode_detail
