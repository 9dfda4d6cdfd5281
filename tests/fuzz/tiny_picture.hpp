// A color JPEG of a few MCUs, small enough that a fuzzer reaches every part of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

/// 4:2:0, 24 x 20 pixels, so 2 x 2 MCUs of 6 blocks, without Huffman tables (those of Annex K). With `restart`, a
/// restart marker follows each MCU. Every block of luma is a DC difference of 0 and one AC coefficient; chroma has no
/// AC.
inline std::vector<std::uint8_t> tiny_picture(bool restart) {
    std::vector<std::uint8_t> bytes{0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0};
    const auto add = [&](std::initializer_list<std::uint8_t> more) { bytes.insert(bytes.end(), more); };
    bytes.insert(bytes.end(), 64, 3);
    add({0xFF, 0xC0, 0, 17, 8, 0, 20, 0, 24, 3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0});
    if (restart) add({0xFF, 0xDD, 0, 4, 0, 1});
    add({0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0});
    // Luma: DC size 0 is 00, AC (run 0, size 1) is 00 and its value 1, the end of the block 1010: 00 00 1 1010, four
    // times. Chroma: DC size 0 is 00, the end of the block 00, twice.
    //   0000 1101 0000 0110 1000 0011 0100 0001 1010 0000 0000 1111
    for (int mcu = 0; mcu < 4; ++mcu) {
        if (restart) {
            if (mcu > 0) add({0xFF, static_cast<std::uint8_t>(0xD0 + mcu - 1)});
            add({0x0D, 0x06, 0x83, 0x41, 0xA0, 0x0F});
        }
    }
    // Without markers an MCU has 44 bits: two of them are 11 bytes.
    if (!restart) {
        for (int pair = 0; pair < 2; ++pair) add({0x0D, 0x06, 0x83, 0x41, 0xA0, 0x00, 0xD0, 0x68, 0x34, 0x1A, 0x00});
    }
    add({0xFF, 0xD9});
    return bytes;
}
