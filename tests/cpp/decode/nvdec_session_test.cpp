// One decoder of video with a stand-in for the driver's library: what is sent, kept, copied out and refused.
#include "ops/decode/cuda/nvdec/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ops/decode/cuda/nvdec/annex_b.hpp"

namespace robocache::decode_detail {
namespace {

/// A library whose parser finds one picture in each packet and shows all of them in the order of their times at the
/// end.
struct StandIn {
    cuvid::ParserParams params{};
    cuvid::VideoFormat format{};
    std::vector<std::pair<long long, int>> not_shown;                           // time, surface
    std::vector<long long> content = std::vector<long long>(max_surfaces, -1);  // of a surface: the time of its picture
    int num_surfaces = 0, next_surface = 0;
    int created = 0, destroyed = 0, parsers = 0, mapped = 0, unmapped = 0, packets = 0;
    long long damaged = -1;  // the time of a picture that is reported as damaged
};

StandIn* driver = nullptr;

void show(std::size_t keep) {
    std::sort(driver->not_shown.begin(), driver->not_shown.end());
    while (driver->not_shown.size() > keep) {
        cuvid::DisplayInfo info{};
        info.picture = driver->not_shown.front().second;
        info.timestamp = driver->not_shown.front().first;
        driver->not_shown.erase(driver->not_shown.begin());
        driver->params.on_display(driver->params.user, &info);
    }
}

cuvid::Result parse(cuvid::Parser, cuvid::Packet* packet) {
    if ((packet->flags & cuvid::end_of_stream) != 0) return show(0), 0;
    if (driver->packets++ == 0) driver->num_surfaces = driver->params.on_sequence(driver->params.user, &driver->format);
    if (driver->num_surfaces == 0) return cuvid::invalid_value;
    cuvid::PictureParams picture{};
    picture.picture = driver->next_surface++ % driver->num_surfaces;
    if (driver->params.on_decode(driver->params.user, &picture) == 0) return cuvid::invalid_value;
    driver->content[static_cast<std::size_t>(picture.picture)] = packet->timestamp;
    driver->not_shown.emplace_back(packet->timestamp, picture.picture);
    show(2);
    return 0;
}

cuvid::Functions stand_in_functions() {
    cuvid::Functions f;
    f.create_parser = [](cuvid::Parser* parser, cuvid::ParserParams* params) {
        driver->params = *params;
        driver->packets = 0;
        ++driver->parsers;
        *parser = driver;
        return 0;
    };
    f.parse = parse;
    f.destroy_parser = [](cuvid::Parser) { return --driver->parsers, 0; };
    f.create_decoder = [](cuvid::Decoder* decoder, cuvid::DecodeCreateInfo*) {
        ++driver->created;
        *decoder = driver;
        return 0;
    };
    f.destroy_decoder = [](cuvid::Decoder) { return ++driver->destroyed, 0; };
    f.decode_picture = [](cuvid::Decoder, cuvid::PictureParams*) { return 0; };
    f.get_decode_status = [](cuvid::Decoder, int picture, cuvid::DecodeStatus* status) {
        const bool is_damaged = driver->content[static_cast<std::size_t>(picture)] == driver->damaged;
        status->status = is_damaged ? cuvid::status_error : 2;
        return 0;
    };
    f.map_frame = [](cuvid::Decoder, int picture, cuvid::DevicePointer* data, unsigned* pitch, cuvid::MapParams*) {
        ++driver->mapped;
        *data = static_cast<cuvid::DevicePointer>(driver->content[static_cast<std::size_t>(picture)]);
        *pitch = 256;
        return 0;
    };
    f.unmap_frame = [](cuvid::Decoder, cuvid::DevicePointer) { return ++driver->unmapped, 0; };
    return f;
}

class NvdecSession : public testing::Test {
protected:
    void SetUp() override {
        driver = &stand_in_;
        stand_in_.format.codec = cuvid::codec_h264;
        stand_in_.format.chroma_format = cuvid::chroma_420;
        stand_in_.format.min_num_decode_surfaces = 4;
        stand_in_.format.coded_width = stand_in_.format.coded_height = 96;
        stand_in_.format.display_area = {0, 0, 96, 90};
    }

    /// A GOP of `ranks.size()` packets with one unit each; frames go to 1000 times their packet.
    std::optional<GopFault> decode(Session& session, std::vector<std::int64_t> ranks,
                                   std::vector<std::int64_t> wanted) {
        const std::vector<std::uint8_t> unit = {0, 0, 1, 0x65};
        std::vector<std::uint8_t> bytes;
        std::vector<std::int64_t> offsets = {0};
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            bytes.insert(bytes.end(), unit.begin(), unit.end());
            offsets.push_back(static_cast<std::int64_t>(bytes.size()));
        }
        std::vector<std::int64_t> places;
        for (const std::int64_t packet : wanted) places.push_back(1000 * packet);
        const VideoGop gop{{VideoCodec::h264, 96, 90, {}}, bytes, offsets, ranks, wanted, places};
        std::vector<VideoColor> colors(wanted.size());
        stored_.clear();
        session.begin(gop, colors,
                      {this,
                       [](void* self, const Surface& surface, int, int, std::int64_t place) {
                           static_cast<NvdecSession*>(self)->stored_.emplace_back(place, surface.data);
                       },
                       [](void*) {}, nullptr});
        std::optional<GopFault> fault = session.finish();
        std::sort(stored_.begin(), stored_.end());
        return fault;
    }

    using Stored = std::vector<std::pair<std::int64_t, cuvid::DevicePointer>>;  // place, time of the picture
    StandIn stand_in_;
    cuvid::Functions functions_ = stand_in_functions();
    Stored stored_;
};

TEST_F(NvdecSession, StoresTheWantedFramesOfReorderedPackets) {
    Session session(functions_, VideoCodec::h264);
    EXPECT_FALSE(decode(session, {0, 3, 1, 2, 4}, {1, 2}));
    EXPECT_EQ(stored_, (Stored{{1000, 3}, {2000, 1}}));
    EXPECT_EQ(stand_in_.packets, 3) << "packets after the last wanted one are not sent";
    EXPECT_EQ(stand_in_.parsers, 0);
}

TEST_F(NvdecSession, CopiesFramesOutBeforeTheirSurfaceIsUsedAgain) {
    std::vector<std::int64_t> ranks(200);
    Stored all;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        ranks[i] = static_cast<std::int64_t>(i);
        all.emplace_back(1000 * ranks[i], i);
    }
    Session session(functions_, VideoCodec::h264);
    EXPECT_FALSE(decode(session, ranks, ranks));
    EXPECT_EQ(stored_, all);
    EXPECT_EQ(stand_in_.mapped, stand_in_.unmapped);
}

TEST_F(NvdecSession, KeepsItsDecoderForLaterGops) {
    {
        Session session(functions_, VideoCodec::h264);
        for (int i = 0; i < 5; ++i) EXPECT_FALSE(decode(session, {0, 1, 2}, {2}));
        EXPECT_EQ(stand_in_.created, 1);
    }
    EXPECT_EQ(stand_in_.destroyed, 1);
}

TEST_F(NvdecSession, RefusesAnotherSizeBeforeItCreatesADecoder) {
    stand_in_.format.display_area = {0, 0, 96, 96};
    Session session(functions_, VideoCodec::h264);
    const std::optional<GopFault> fault = decode(session, {0, 1}, {1});
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->rule, "must be 90 x 96, got 96 x 96");
    EXPECT_EQ(stand_in_.created, 0);
    EXPECT_EQ(stand_in_.parsers, 0);
}

TEST_F(NvdecSession, NamesThePacketOfADamagedPicture) {
    stand_in_.damaged = 1;
    Session session(functions_, VideoCodec::h264);
    const std::optional<GopFault> fault = decode(session, {0, 3, 1, 2}, {3});
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->packet, 2);
    EXPECT_EQ(fault->rule, "is damaged");
    EXPECT_EQ(stand_in_.mapped, stand_in_.unmapped);
}

TEST(AnnexBUnits, ReplacesLengthsByStartCodes) {
    const std::vector<std::uint8_t> avcc = {1, 66, 0, 10, 0xFD, 0xE1, 0, 2, 0x67, 7, 1, 0, 1, 0x68};  // lengths of 2
    const AnnexB form({VideoCodec::h264, 96, 90, avcc});
    EXPECT_EQ(std::vector<std::uint8_t>(form.header().begin(), form.header().end()),
              (std::vector<std::uint8_t>{0, 0, 0, 1, 0x67, 7, 0, 0, 0, 1, 0x68}));
    std::vector<std::uint8_t> out;
    EXPECT_TRUE(form.append(std::vector<std::uint8_t>{0, 1, 0x06, 0, 2, 0x65, 9}, out));
    EXPECT_EQ(out, (std::vector<std::uint8_t>{0, 0, 0, 1, 0x06, 0, 0, 0, 1, 0x65, 9}));
    EXPECT_FALSE(form.append(std::vector<std::uint8_t>{0, 1, 0x06}, out)) << "no part of a picture";
    EXPECT_THROW(form.append(std::vector<std::uint8_t>{0, 9, 0x65}, out), NalFault);
    EXPECT_THROW(form.append(std::vector<std::uint8_t>{0}, out), NalFault);
}

TEST(AnnexBUnits, RefusesParameterSetsThatEndOutside) {
    const std::vector<std::uint8_t> avcc = {1, 66, 0, 10, 0xFF, 0xE1, 0, 9, 0x67};
    EXPECT_THROW(AnnexB({VideoCodec::h264, 96, 90, avcc}), NalFault);
    const std::vector<std::uint8_t> hvcc(23, 0xFF);
    EXPECT_THROW(AnnexB({VideoCodec::hevc, 96, 90, hvcc}), NalFault);
}

}  // namespace
}  // namespace robocache::decode_detail
