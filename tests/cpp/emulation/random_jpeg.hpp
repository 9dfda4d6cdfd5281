// JPEG files of random coefficients, coded with the tables of Annex K: any sampling, size and restart interval.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "both.hpp"
#include "ops/decode/jpeg/annex_k.hpp"

namespace robocache::emulated {

/// The bits of a scan, with a zero byte after each 0xFF.
class BitWriter {
public:
    explicit BitWriter(std::vector<std::uint8_t>& out) : out_(out) {}

    void put(std::uint32_t bits, int count) {
        for (int i = count - 1; i >= 0; --i) {
            byte_ = byte_ << 1 | (bits >> i & 1U);
            if (++used_ == 8) flush();
        }
    }
    void fill() {
        while (used_ != 0) put(1, 1);
    }

private:
    void flush() {
        out_.push_back(static_cast<std::uint8_t>(byte_));
        if (byte_ == 0xff) out_.push_back(0);
        byte_ = 0;
        used_ = 0;
    }

    std::vector<std::uint8_t>& out_;
    std::uint32_t byte_ = 0;
    int used_ = 0;
};

struct Code {
    std::uint32_t bits;
    int length;
};

/// The codes of a table: 16 counts, then the symbols.
template <std::size_t size>
std::map<int, Code> codes_of(const std::array<std::uint8_t, size>& table) {
    std::map<int, Code> codes;
    std::uint32_t code = 0;
    std::size_t at = 16;
    for (int length = 1; length <= 16; ++length) {
        for (int i = 0; i < table[static_cast<std::size_t>(length) - 1]; ++i) codes[table[at++]] = {code++, length};
        code <<= 1;
    }
    return codes;
}

inline void put_number(BitWriter& to, int x, int size) {
    to.put(static_cast<std::uint32_t>(x < 0 ? x + (1 << size) - 1 : x), size);
}

inline int size_of(int x) {
    int size = 0;
    for (int m = x < 0 ? -x : x; m != 0; m >>= 1) ++size;
    return size;
}

inline void put_block(Random& random, BitWriter& to, int& last_dc, bool chroma, double density) {
    static const auto dc_codes = std::array{codes_of(decode_detail::luma_dc), codes_of(decode_detail::chroma_dc)};
    static const auto ac_codes = std::array{codes_of(decode_detail::luma_ac), codes_of(decode_detail::chroma_ac)};
    const auto put_code = [&](const std::map<int, Code>& codes, int symbol) {
        const Code code = codes.at(symbol);
        to.put(code.bits, code.length);
    };
    const int dc = static_cast<int>(random.integer(-60, 60));
    const int difference = dc - last_dc;
    last_dc = dc;
    put_code(dc_codes[chroma ? 1 : 0], size_of(difference));
    put_number(to, difference, size_of(difference));
    int run = 0;
    int last = -1;
    std::array<int, 64> ac{};
    for (int k = 1; k < 64; ++k) {
        if (!random.chance(density)) continue;
        ac[static_cast<std::size_t>(k)] =
            static_cast<int>(random.chance(0.02) ? random.integer(-1000, 1000) : random.integer(-20, 20));
        if (ac[static_cast<std::size_t>(k)] != 0) last = k;
    }
    for (int k = 1; k <= last; ++k) {
        const int x = ac[static_cast<std::size_t>(k)];
        if (x == 0) {
            ++run;
            continue;
        }
        for (; run >= 16; run -= 16) put_code(ac_codes[chroma ? 1 : 0], 0xf0);
        put_code(ac_codes[chroma ? 1 : 0], run << 4 | size_of(x));
        put_number(to, x, size_of(x));
        run = 0;
    }
    if (last < 63) put_code(ac_codes[chroma ? 1 : 0], 0);
}

struct JpegShape {
    int width = 8, height = 8;
    int across = 1, down = 1;  // blocks of luma in an MCU
    bool gray = false;
    int restart = 0;  // MCUs between markers
    double density = 0.1;
};

inline std::vector<std::uint8_t> random_jpeg(Random& random, const JpegShape& shape) {
    std::vector<std::uint8_t> bytes{0xff, 0xd8};
    const auto add = [&](std::initializer_list<int> more) {
        for (const int b : more) bytes.push_back(static_cast<std::uint8_t>(b));
    };
    for (int table = 0; table < 2; ++table) {
        add({0xff, 0xdb, 0, 67, table});
        for (int i = 0; i < 64; ++i) bytes.push_back(static_cast<std::uint8_t>(random.integer(1, 40)));
    }
    const int components = shape.gray ? 1 : 3;
    add({0xff, 0xc0, 0, 8 + 3 * components, 8, shape.height >> 8, shape.height & 255, shape.width >> 8,
         shape.width & 255, components});
    for (int c = 0; c < components; ++c) add({c + 1, c == 0 ? shape.across << 4 | shape.down : 0x11, c == 0 ? 0 : 1});
    if (shape.restart > 0) add({0xff, 0xdd, 0, 4, shape.restart >> 8, shape.restart & 255});
    add({0xff, 0xda, 0, 6 + 2 * components, components});
    for (int c = 0; c < components; ++c) add({c + 1, c == 0 ? 0 : 0x11});
    add({0, 63, 0});
    // One component is not interleaved: its MCU is one block.
    const int across = shape.gray ? 1 : shape.across;
    const int down = shape.gray ? 1 : shape.down;
    const int columns = (shape.width + 8 * across - 1) / (8 * across);
    const int rows = (shape.height + 8 * down - 1) / (8 * down);
    BitWriter to(bytes);
    std::array<int, 3> last_dc{};
    for (int mcu = 0; mcu < columns * rows; ++mcu) {
        if (shape.restart > 0 && mcu > 0 && mcu % shape.restart == 0) {
            to.fill();
            add({0xff, 0xd0 + (mcu / shape.restart - 1) % 8});
            last_dc = {};
        }
        for (int c = 0; c < components; ++c) {
            const int blocks = c == 0 ? across * down : 1;
            for (int b = 0; b < blocks; ++b)
                put_block(random, to, last_dc[static_cast<std::size_t>(c)], c > 0, shape.density);
        }
    }
    to.fill();
    add({0xff, 0xd9});
    return bytes;
}

}  // namespace robocache::emulated
