// Removes stuffed bytes and finds the markers of a scan.
#include "ops/decode/jpeg/reader.hpp"

#include <algorithm>
#include <cstring>

namespace robocache::decode_detail {
namespace {

/// Zeros behind the bytes. A block has 64 codes with at most 31 bits each, and a reader loads eight bytes at a time.
constexpr std::uint32_t num_zeros = 64 * 32 / 8 + 2 * 8;

bool has_ff(std::uint64_t x) {
    constexpr std::uint64_t ones = 0x0101010101010101U;
    return ((~x - ones) & x & (ones << 7)) != 0;
}

}  // namespace

void PlainBytes::load(Bytes scan, std::uint32_t begin, std::uint32_t end) {
    const auto size = std::min(static_cast<std::uint32_t>(scan.size()), end);
    begin_ = std::min(begin, size);
    skips_.clear();
    const std::size_t room = size - begin_ + num_zeros;
    if (bytes_.size() < room) bytes_.resize(room);
    std::uint8_t* out = bytes_.data();
    const std::uint8_t* in = scan.data();
    std::uint32_t at = begin_;
    std::uint32_t num_skipped = 0;
    while (at < size) {
        if (at + 8 <= size) {
            std::uint64_t word = 0;
            std::memcpy(&word, in + at, sizeof word);
            std::memcpy(out, &word, sizeof word);
            if (!has_ff(word)) {
                at += 8;
                out += 8;
                continue;
            }
        }
        while (at < size && in[at] != 0xFF) *out++ = in[at++];
        std::uint32_t code = at;  // behind 0xFF, any number of which may fill
        while (code < size && in[code] == 0xFF) ++code;
        if (at >= size || code >= size || in[code] != 0) break;
        const auto i = static_cast<std::uint32_t>(out - bytes_.data());
        if (code > at + 1) skips_.push_back({i, num_skipped += code - at - 1});
        skips_.push_back({i + 1, ++num_skipped});
        *out++ = 0xFF;
        at = code + 1;
    }
    end_ = at;
    size_ = static_cast<std::uint32_t>(out - bytes_.data());
    std::memset(out, 0, num_zeros);
}

std::uint32_t PlainBytes::stored(std::uint32_t i, std::size_t& hint) const {
    while (hint < skips_.size() && skips_[hint].from <= i) ++hint;
    return begin_ + i + (hint == 0 ? 0 : skips_[hint - 1].count);
}

ScanReader::ScanReader(Bytes scan, std::uint64_t first_bit, std::uint32_t end, PlainBytes& plain)
    : scan_(scan), end_(end), plain_(&plain) {
    start(static_cast<std::uint32_t>(first_bit / 8));
    bits_.acc = static_cast<std::uint64_t>(*bits_.next++) << (56 + first_bit % 8);
    bits_.num_bits = 8 - static_cast<int>(first_bit % 8);
}

void ScanReader::start(std::uint32_t position) {
    plain_->load(scan_, position, end_);
    bits_ = {0, plain_->data(), 0};
    hint_ = 0;
}

int ScanReader::restart() {
    const std::int64_t unread = 8 * std::int64_t{plain_->size()} - used_bits();
    std::uint32_t at = plain_->end();
    while (at < scan_.size() && scan_[at] == 0xFF) ++at;
    const int marker = unread >= 0 && unread < 8 && at < scan_.size() ? scan_[at] : 0;
    const bool is_restart = marker >= 0xD0 && marker <= 0xD7;
    start(is_restart ? at + 1 : static_cast<std::uint32_t>(scan_.size()));
    return is_restart ? marker - 0xD0 : -1;
}

std::uint64_t ScanReader::stored_bits() {
    const std::int64_t used = std::min(used_bits(), 8 * std::int64_t{plain_->size()});
    return std::uint64_t{8} * plain_->stored(static_cast<std::uint32_t>(used / 8), hint_) +
           static_cast<std::uint64_t>(used % 8);
}

}  // namespace robocache::decode_detail
