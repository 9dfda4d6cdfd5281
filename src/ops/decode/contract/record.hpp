// The layout of a picture index: one flat array of bytes, the same in a file, on the host and on a GPU.
//
//   IndexHead | PictureRecord[] | TableSet[] | quantization tables | Huffman bytes | entry bits | entry predictors
//
// Every section begins at a multiple of 16 bytes. Numbers are little-endian.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

namespace robocache::decode_detail {

inline constexpr std::uint32_t index_magic = 0x49504352;  // "RCPI"
inline constexpr std::uint32_t index_version = 1;
inline constexpr int num_coefficients = 64;
inline constexpr int max_components = 3;

struct IndexHead {
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t num_pictures;
    std::uint64_t num_sets;
    std::uint64_t num_quantization;
    std::uint64_t num_huffman_bytes;
    std::uint64_t num_entries;
    std::uint64_t size_bytes;  // of the whole index
    std::uint64_t reserved;
};
static_assert(sizeof(IndexHead) == 64);

enum class Codec : std::uint8_t { jpeg, pixels, yuv420 };
enum class ColorSpace : std::uint8_t { gray, ycc, rgb };
/// In the order of PixelFormat.
enum class YuvMatrix : std::uint8_t { bt601, bt709, fcc, smpte240m, bt2020 };

/// What a decoder needs of one picture. Positions count bytes from the first byte of the picture.
struct PictureRecord {
    std::int32_t width;
    std::int32_t height;
    Codec codec;
    ColorSpace color;
    std::uint8_t num_components;     // 1 or 3; of pixels also 4, of which the last one is ignored
    std::uint8_t yuv;                // of yuv420: 2 * YuvMatrix + is_full_range
    std::uint8_t h[max_components];  // sampling factors, 1 to 4
    std::uint8_t v[max_components];
    std::uint16_t restart_interval;  // MCUs; 0: no restart markers
    std::uint32_t table_set;
    std::uint32_t every;  // entry i is before MCU i * every
    std::uint32_t num_entries;
    std::uint64_t first_entry;
    std::uint32_t scan_begin;  // first byte of entropy-coded data
    std::uint32_t num_bytes;   // of the picture
    std::uint32_t unused[4];
};
static_assert(sizeof(PictureRecord) == 64);

inline constexpr int num_yuv = 2 * (static_cast<int>(YuvMatrix::bt2020) + 1);

/// The tables of the components of a picture, by number or position.
struct TableSet {
    std::uint32_t quantization[max_components];
    std::uint32_t dc[max_components];  // positions in the Huffman bytes: 16 counts, then the symbols
    std::uint32_t ac[max_components];
    std::uint32_t unused[3];
};
static_assert(sizeof(TableSet) == 48);

/// DC predictors before an entry point.
struct Predictors {
    std::int16_t dc[max_components];
};
static_assert(sizeof(Predictors) == 6);

/// Where the sections of an index are; `base` may be memory of a GPU.
struct IndexView {
    const unsigned char* base;
    std::uint64_t num_huffman_bytes;
    std::uint64_t num_quantization;
    std::uint64_t num_sets;
    std::uint64_t num_entries;
    std::uint64_t records;  // positions of the sections
    std::uint64_t sets;
    std::uint64_t quantization;
    std::uint64_t huffman;
    std::uint64_t entry_bits;
    std::uint64_t entry_predictors;
    std::uint64_t end;

    [[nodiscard]] ROBOCACHE_HD const PictureRecord& record(std::int64_t i) const {
        return reinterpret_cast<const PictureRecord*>(base + records)[i];
    }
    [[nodiscard]] ROBOCACHE_HD const TableSet& set(std::uint32_t i) const {
        return reinterpret_cast<const TableSet*>(base + sets)[i];
    }
    /// 64 steps in zigzag order.
    [[nodiscard]] ROBOCACHE_HD const std::uint16_t* steps(std::uint32_t i) const {
        return reinterpret_cast<const std::uint16_t*>(base + quantization) + std::uint64_t{num_coefficients} * i;
    }
    [[nodiscard]] ROBOCACHE_HD const std::uint8_t* huffman_bytes() const { return base + huffman; }
    /// Bits from the first byte of the scan, stuffed bytes included, to the entry point.
    [[nodiscard]] ROBOCACHE_HD std::uint32_t bits(std::uint64_t entry) const {
        return reinterpret_cast<const std::uint32_t*>(base + entry_bits)[entry];
    }
    [[nodiscard]] ROBOCACHE_HD const Predictors& predictors(std::uint64_t entry) const {
        return reinterpret_cast<const Predictors*>(base + entry_predictors)[entry];
    }
};

inline IndexView view_of(const IndexHead& head, const unsigned char* base) {
    const auto aligned = [](std::uint64_t bytes) { return (bytes + 15) / 16 * 16; };
    IndexView view{};
    view.base = base;
    view.num_huffman_bytes = head.num_huffman_bytes;
    view.num_quantization = head.num_quantization;
    view.num_sets = head.num_sets;
    view.num_entries = head.num_entries;
    view.records = sizeof(IndexHead);
    view.sets = view.records + head.num_pictures * sizeof(PictureRecord);
    view.quantization = view.sets + head.num_sets * sizeof(TableSet);
    view.huffman = view.quantization + head.num_quantization * num_coefficients * sizeof(std::uint16_t);
    view.entry_bits = view.huffman + aligned(head.num_huffman_bytes);
    view.entry_predictors = view.entry_bits + aligned(head.num_entries * sizeof(std::uint32_t));
    view.end = view.entry_predictors + aligned(head.num_entries * sizeof(Predictors));
    return view;
}

}  // namespace robocache::decode_detail
