// Reads the bits of an entropy-coded scan on a GPU: 0xFF 0x00 is the byte 0xFF, 0xFF and anything else is a marker.
// Four bytes at a time, aligned.
#pragma once

#include <cstdint>

namespace robocache::decode_detail {

/// Whether one of four bytes is 0xFF.
__device__ __forceinline__ bool has_ff(std::uint32_t x) {
    const std::uint32_t y = ~x;
    return ((y - 0x01010101U) & ~y & 0x80808080U) != 0;
}

/// Never reads outside [data, data + size). Past a marker or the end it delivers zeros and counts them.
///
///   acc_   next bit at the top | ... num_bits_ valid bits ... | zeros
class BitReader {
public:
    __device__ __forceinline__ BitReader(const std::uint8_t* data, std::uint32_t size, std::uint32_t position, int bit)
        : data_(data), size_(size), position_(position < size ? position : size) {
        refill();
        drop(bit);
    }

    /// At least 32 bits are there afterwards: a Huffman code and the bits that follow it have at most 31.
    __device__ __forceinline__ void need() {
        if (num_bits_ < 32) refill();
    }
    /// The next 32 bits.
    [[nodiscard]] __device__ __forceinline__ std::uint32_t peek_32() const {
        return static_cast<std::uint32_t>(acc_ >> 32);
    }
    __device__ __forceinline__ void drop(int count) {
        acc_ <<= count;
        num_bits_ -= count;
    }

    /// More bits were used than the data have. `padding_` counts zeros that are still in acc_, too.
    [[nodiscard]] __device__ __forceinline__ bool overran() const { return padding_ > num_bits_; }

    /// Goes on behind the restart marker that must follow the bits of the current byte. The number of the marker (0 to
    /// 7), or -1 where there is none; then everything that follows is zeros.
    __device__ __forceinline__ int restart() {
        if (!at_marker_ && num_bits_ < 8) refill();
        const bool is_next = at_marker_ && num_bits_ - padding_ < 8 && position_ < size_;
        const int marker = is_next ? data_[position_] : 0;
        acc_ = 0;
        num_bits_ = 0;
        padding_ = 0;
        if (marker < 0xD0 || marker > 0xD7) {
            at_marker_ = true;
            return -1;
        }
        ++position_;
        at_marker_ = false;
        after_ff_ = false;
        refill();
        return marker - 0xD0;
    }

private:
    __device__ __forceinline__ void refill() {
        while (num_bits_ <= 32) {
            if (!after_ff_ && position_ + 4 <= size_ && !at_marker_) {
                const std::uint8_t* p = data_ + position_;
                std::uint32_t word = 0xFF;
                if ((reinterpret_cast<std::uintptr_t>(p) & 3) == 0) word = *reinterpret_cast<const std::uint32_t*>(p);
                if (!has_ff(word)) {
                    acc_ |= std::uint64_t{__byte_perm(word, 0, 0x0123)} << (32 - num_bits_);
                    num_bits_ += 32;
                    position_ += 4;
                    return;
                }
            }
            next_byte();
        }
    }

    __device__ __forceinline__ void append(std::uint32_t byte) {
        acc_ |= std::uint64_t{byte} << (56 - num_bits_);
        num_bits_ += 8;
    }

    __device__ __forceinline__ void next_byte() {
        if (at_marker_ || position_ >= size_) {
            at_marker_ = true;
            num_bits_ += 8;
            padding_ += 8;
            return;
        }
        const std::uint32_t byte = data_[position_];
        if (!after_ff_) {
            if (byte == 0xFF) {
                after_ff_ = true;
            } else {
                append(byte);
            }
            ++position_;
        } else if (byte == 0) {
            ++position_;
            after_ff_ = false;
            append(0xFF);
        } else if (byte == 0xFF) {
            ++position_;  // fill bytes before a marker
        } else {
            at_marker_ = true;  // position_ is the marker's code
        }
    }

    const std::uint8_t* data_;
    std::uint32_t size_;
    std::uint32_t position_;  // of the next byte to look at
    std::uint64_t acc_ = 0;
    int num_bits_ = 0;
    int padding_ = 0;  // bits of num_bits_ that were made up
    bool after_ff_ = false;
    bool at_marker_ = false;
};

}  // namespace robocache::decode_detail
