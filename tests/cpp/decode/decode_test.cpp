// The C++ API of decode as a user links it: index, plan, run, and the lifetimes of their results.
#include "robocache/decode.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "robocache/errors.hpp"
#include "robocache/system.hpp"

namespace robocache {
namespace {

/// A gray JPEG of 16 x 8 pixels without Huffman tables: two blocks, DC differences `first` and `second`, all steps 1.
/// Codes of Annex K: DC size 0 is 00, size 3 is 100; the end of a block is 1010.
std::vector<std::uint8_t> tiny_jpeg(std::vector<std::uint8_t> scan) {
    std::vector<std::uint8_t> bytes{0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0};
    bytes.insert(bytes.end(), 64, 1);
    const std::vector<std::uint8_t> rest{0xFF, 0xC0, 0,    11, 8, 0, 8, 0, 16, 1,  1, 0x11,
                                         0,    0xFF, 0xDA, 0,  8, 1, 1, 0, 0,  63, 0};
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    bytes.insert(bytes.end(), scan.begin(), scan.end());
    bytes.insert(bytes.end(), {0xFF, 0xD9});
    return bytes;
}

/// Block 1: size 6 (1110), value 100000 = 32, end 1010. Block 2: size 0 (00), end 1010. Then ones.
///   1110 1000  0010 1000  1010 1111
const std::vector<std::uint8_t> two_blocks = tiny_jpeg({0xE8, 0x28, 0xAF});

struct Pictures {
    std::vector<std::uint8_t> bytes;
    std::vector<std::int64_t> offsets{0};
    PictureIndex index;

    explicit Pictures(const std::vector<std::vector<std::uint8_t>>& pictures, const PictureIndexOptions& options = {}) {
        for (const auto& picture : pictures) {
            bytes.insert(bytes.end(), picture.begin(), picture.end());
            offsets.push_back(static_cast<std::int64_t>(bytes.size()));
        }
        index = index_pictures(bytes, offsets, options);
    }
    [[nodiscard]] PicturesView view() const {
        PicturesView view;
        view.bytes = TensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())});
        view.offsets = TensorView(offsets.data(), DType::i64, {static_cast<std::int64_t>(offsets.size())});
        view.index = &index;
        return view;
    }
};

std::vector<std::uint8_t> decode(const Pictures& pictures, const DecodeOptions& options = {}) {
    const DecodePlan plan = plan_decode(pictures.view(), options);
    TensorView output = plan.output();
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(output.num_elements()));
    output.data = pixels.data();
    run(plan, output);
    return pixels;
}

TEST(Decode, TwoBlocksByHand) {
    const Pictures pictures({two_blocks});
    EXPECT_EQ(pictures.index.width(0), 16);
    EXPECT_EQ(pictures.index.height(0), 8);
    DecodeOptions options;
    options.channels = 1;
    // A DC value of 32 with steps of 1 is 32 / 8 = 4 above 128. The second block has the same DC value.
    EXPECT_EQ(decode(pictures, options), std::vector<std::uint8_t>(128, 132));
}

TEST(Decode, AnIndexSurvivesItsBytes) {
    const Pictures pictures({two_blocks, two_blocks});
    const auto bytes = pictures.index.bytes();
    const std::vector<std::uint8_t> stored(bytes.begin(), bytes.end());
    const PictureIndex again = PictureIndex::from_bytes(stored);
    EXPECT_EQ(again.num_pictures(), 2);
    EXPECT_EQ(again.num_entry_points(), pictures.index.num_entry_points());
    EXPECT_EQ(std::memcmp(again.bytes().data(), stored.data(), stored.size()), 0);
    EXPECT_THROW((void)again.width(2), InvalidArgument);
}

TEST(Decode, EqualTablesAreStoredOnce) {
    const Pictures one({two_blocks});
    const Pictures many(std::vector<std::vector<std::uint8_t>>(100, two_blocks));
    const auto per_picture = (many.index.bytes().size() - one.index.bytes().size()) / 99;
    EXPECT_LE(per_picture, 64U + 10U + 1U);
}

TEST(Decode, APlanRunsTwice) {
    const Pictures pictures({two_blocks});
    const DecodePlan plan = plan_decode(pictures.view());
    TensorView output = plan.output();
    ASSERT_EQ(shape_text(output), "(1, 8, 16, 3)");
    EXPECT_EQ(plan.workspace_bytes(), 0);
    std::vector<std::uint8_t> first(128 * 3), second(128 * 3);
    output.data = first.data();
    run(plan, output);
    output.data = second.data();
    run(plan, output);
    EXPECT_EQ(first, second);
}

TEST(Decode, PixelsAreEditedLikePictures) {
    PictureIndexOptions options;
    const std::array<PixelShape, 1> shape{PixelShape{1, 3, 1}};
    options.pixels = shape;
    const Pictures pictures({{10, 20, 30}}, options);
    DecodeOptions edits;
    edits.channels = 1;
    const std::array<std::uint8_t, 1> flip{1};
    edits.flips = flip;
    EXPECT_EQ(decode(pictures, edits), (std::vector<std::uint8_t>{30, 20, 10}));
}

TEST(Decode, AlphaOfPixelsIsIgnored) {
    PictureIndexOptions options;
    const std::array<PixelShape, 1> shape{PixelShape{1, 2, 4}};
    options.pixels = shape;
    const Pictures pictures({{10, 20, 30, 0, 40, 50, 60, 255}}, options);
    EXPECT_EQ(decode(pictures), (std::vector<std::uint8_t>{10, 20, 30, 40, 50, 60}));
    const PictureIndex again = PictureIndex::from_bytes(pictures.index.bytes());
    EXPECT_EQ(again.num_pictures(), 1);
}

TEST(Decode, FramesOfVideoAreConvertedAsSwscaleDoes) {
    PictureIndexOptions options;
    const std::array<PixelShape, 2> shapes{PixelShape{2, 2, 3, PixelFormat::yuv420_bt601},
                                           PixelShape{2, 2, 3, PixelFormat::yuv420_bt709_full}};
    options.pixels = shapes;
    // Y of four pixels, then the U and the V that they share.
    const Pictures pictures({{16, 235, 81, 0, 90, 240}, {0, 255, 100, 50, 128, 128}}, options);
    const std::vector<std::uint8_t> first{178, 0, 0, 255, 177, 178, 253, 0, 0, 159, 0, 0};
    const std::vector<std::uint8_t> second{0, 0, 0, 255, 255, 255, 100, 100, 100, 50, 50, 50};
    std::vector<std::uint8_t> expected = first;
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(decode(pictures, {}), expected);
}

TEST(Decode, ATruncatedScanIsRefusedByName) {
    std::vector<std::uint8_t> cut = two_blocks;
    cut.resize(cut.size() - 4);
    try {
        const Pictures pictures({two_blocks, cut});
        FAIL() << "no exception";
    } catch (const FormatError& error) {
        EXPECT_NE(std::string(error.what()).find("index_pictures: pictures[1] must have a whole scan"),
                  std::string::npos);
    }
    // Without entry points only headers are read; the fault is found when the picture is decoded.
    PictureIndexOptions headers;
    headers.entry_points = false;
    const Pictures pictures({cut}, headers);
    EXPECT_THROW((void)decode(pictures), FormatError);
}

TEST(Decode, KindsOfPictures) {
    EXPECT_EQ(picture_kind(two_blocks), PictureKind::jpeg);
    const std::vector<std::uint8_t> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n', 0};
    EXPECT_EQ(picture_kind(png), PictureKind::png);
    EXPECT_EQ(picture_kind({}), PictureKind::unknown);
    std::vector<std::uint8_t> progressive = two_blocks;
    for (std::size_t i = 0; i + 1 < progressive.size(); ++i) {
        if (progressive[i] == 0xFF && progressive[i + 1] == 0xC0) progressive[i + 1] = 0xC2;
    }
    EXPECT_EQ(picture_kind(progressive), PictureKind::other_jpeg);
}

TEST(Decode, TensorsOnAGpuNeedCudaCode) {
    if (cuda_status().compiled) GTEST_SKIP() << "this build has CUDA code";
    const Pictures pictures({two_blocks});
    PicturesView view = pictures.view();
    const auto index = pictures.index.bytes();
    view.bytes.device = view.offsets.device = {DeviceType::cuda, 0};
    std::vector<std::uint64_t> aligned(index.size() / 8 + 2);
    void* base = aligned.data();
    std::size_t room = aligned.size() * 8;
    base = std::align(16, index.size(), base, room);
    view.device_index = TensorView(base, DType::u8, {static_cast<std::int64_t>(index.size())}, {DeviceType::cuda, 0});
    EXPECT_THROW((void)plan_decode(view), Unsupported);
}

}  // namespace
}  // namespace robocache
