// Reads the bits of an entropy-coded scan on the host. 0xFF 0x00 is the byte 0xFF, 0xFF and anything else is a marker.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decode/jpeg/markers.hpp"

namespace robocache::decode_detail {

/// The bytes of a scan up to its next marker, without the stuffed ones, and zeros behind them. So a reader looks for
/// neither markers nor the end of its data; it is checked after each block how far it has come.
class PlainBytes {
public:
    /// The bytes of `scan` from `begin` on, as far as they are in [begin, end). Memory is reused.
    void load(Bytes scan, std::uint32_t begin, std::uint32_t end);

    [[nodiscard]] const std::uint8_t* data() const { return bytes_.data(); }
    [[nodiscard]] std::uint32_t size() const { return size_; }
    /// Where the marker begins in the scan; its size where there is none.
    [[nodiscard]] std::uint32_t end() const { return end_; }
    /// Where byte i is in the scan. `hint` is a number of its own for one who asks for increasing i; it begins at 0.
    [[nodiscard]] std::uint32_t stored(std::uint32_t i, std::size_t& hint) const;

private:
    struct Skip {
        std::uint32_t from;   // bytes from this one on
        std::uint32_t count;  // come after so many skipped ones
    };
    std::vector<std::uint8_t> bytes_;
    std::vector<Skip> skips_;
    std::uint32_t begin_ = 0;
    std::uint32_t size_ = 0;
    std::uint32_t end_ = 0;
};

/// The next bits of plain bytes.
///
///   acc   next bit at the top | ... num_bits bits ... | some of those that follow
struct ScanBits {
    std::uint64_t acc = 0;
    const std::uint8_t* next = nullptr;
    int num_bits = 0;
};

/// Never reads outside the scan; past a marker or the end it delivers zeros. The bits are read by the kernels of the
/// CPU.
class ScanReader {
public:
    /// From a bit on, as far as the bytes before `end` go. `plain`: memory for them.
    ScanReader(Bytes scan, std::uint64_t first_bit, std::uint32_t end, PlainBytes& plain);

    [[nodiscard]] ScanBits& bits() { return bits_; }
    /// More bits were used than the scan has.
    [[nodiscard]] bool overran() const { return used_bits() > 8 * std::int64_t{plain_->size()}; }

    /// The number of the marker (0 to 7), or -1 where there is none; then everything that follows is zeros.
    int restart();
    /// Bits from the begin of the scan to the next bit, counted in the bytes as they are stored.
    [[nodiscard]] std::uint64_t stored_bits();
    /// About where the reader is.
    [[nodiscard]] std::uint32_t position() { return static_cast<std::uint32_t>(stored_bits() / 8); }

private:
    void start(std::uint32_t position);
    [[nodiscard]] std::int64_t used_bits() const { return 8 * (bits_.next - plain_->data()) - bits_.num_bits; }

    ScanBits bits_;
    Bytes scan_;
    std::uint32_t end_;
    PlainBytes* plain_;
    std::size_t hint_ = 0;
};

}  // namespace robocache::decode_detail
