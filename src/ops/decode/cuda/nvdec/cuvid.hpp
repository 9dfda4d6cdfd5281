// The part of NVIDIA's video decoding interface (libnvcuvid.so.1) that is used here. Names are those of its manual.
//
// The library is opened when it is first needed and is no part of a build. Layouts are those of 64-bit Linux, where
// `unsigned long` has 8 bytes; the assertions have the sizes and offsets of version 11.1 of the interface, which later
// ones keep: they only give meaning to reserved fields.
#pragma once

#include <cstddef>

namespace robocache::decode_detail::cuvid {

/// CUresult: 0 is success.
using Result = int;
inline constexpr Result invalid_value = 1;
inline constexpr Result out_of_memory = 2;

using DevicePointer = unsigned long long;
using Stream = void*;
using Parser = void*;
using Decoder = void*;

enum Codec : int { codec_h264 = 4, codec_hevc = 8 };
enum ChromaFormat : int { chroma_400 = 0, chroma_420 = 1, chroma_422 = 2, chroma_444 = 3 };
inline constexpr int surface_nv12 = 0;
inline constexpr int deinterlace_weave = 0;
inline constexpr unsigned long create_prefer_cuvid = 4;

/// Of CUVIDSOURCEDATAPACKET.
inline constexpr unsigned long end_of_stream = 1;
inline constexpr unsigned long has_timestamp = 2;

/// cuvidDecodeStatus.
inline constexpr int status_in_progress = 1;
inline constexpr int status_error = 8;
inline constexpr int status_concealed = 9;

struct DecodeCaps {  // CUVIDDECODECAPS
    int codec;
    int chroma_format;
    unsigned bit_depth_minus_8;
    unsigned reserved1[3];
    unsigned char is_supported;
    unsigned char num_engines;
    unsigned short output_formats;  // one bit for each surface format
    unsigned max_width;
    unsigned max_height;
    unsigned max_macroblocks;
    unsigned short min_width;
    unsigned short min_height;
    unsigned reserved2[11];
};
static_assert(sizeof(DecodeCaps) == 88);
static_assert(offsetof(DecodeCaps, is_supported) == 24);
static_assert(offsetof(DecodeCaps, max_width) == 28);
static_assert(offsetof(DecodeCaps, min_width) == 40);

struct ShortRect {
    short left, top, right, bottom;
};

struct DecodeCreateInfo {  // CUVIDDECODECREATEINFO
    unsigned long width;   // coded
    unsigned long height;
    unsigned long num_decode_surfaces;
    int codec;
    int chroma_format;
    unsigned long creation_flags;
    unsigned long bit_depth_minus_8;
    unsigned long intra_only;
    unsigned long max_width;
    unsigned long max_height;
    unsigned long reserved1;
    ShortRect display_area;
    int output_format;
    int deinterlace_mode;
    unsigned long target_width;
    unsigned long target_height;
    unsigned long num_output_surfaces;  // mapped at the same time
    void* lock;
    ShortRect target_rect;
    unsigned long enable_histogram;
    unsigned long reserved2[4];
};
static_assert(sizeof(DecodeCreateInfo) == 176);
static_assert(offsetof(DecodeCreateInfo, codec) == 24);
static_assert(offsetof(DecodeCreateInfo, creation_flags) == 32);
static_assert(offsetof(DecodeCreateInfo, display_area) == 80);
static_assert(offsetof(DecodeCreateInfo, output_format) == 88);
static_assert(offsetof(DecodeCreateInfo, target_width) == 96);
static_assert(offsetof(DecodeCreateInfo, num_output_surfaces) == 112);
static_assert(offsetof(DecodeCreateInfo, target_rect) == 128);

/// CUVIDPICPARAMS: only its beginning is read here; the rest goes from the parser to the decoder unseen.
struct PictureParams {
    int width_in_macroblocks;
    int height_in_macroblocks;
    int picture;  // the decode surface
    int is_field;
    int is_bottom_field;
    int is_second_field;
};
static_assert(offsetof(PictureParams, picture) == 8);
static_assert(offsetof(PictureParams, is_second_field) == 20);

struct MapParams {  // CUVIDPROCPARAMS
    int progressive_frame;
    int second_field;
    int top_field_first;
    int unpaired_field;
    unsigned reserved_flags;
    unsigned reserved_zero;
    unsigned long long raw_input;
    unsigned raw_input_pitch;
    unsigned raw_input_format;
    unsigned long long raw_output;
    unsigned raw_output_pitch;
    unsigned reserved1;
    Stream output_stream;
    unsigned reserved[46];
    void* reserved2[2];
};
static_assert(sizeof(MapParams) == 264);
static_assert(offsetof(MapParams, raw_input) == 24);
static_assert(offsetof(MapParams, output_stream) == 56);

struct DecodeStatus {  // CUVIDGETDECODESTATUS
    int status;
    unsigned reserved1[31];
    void* reserved2[8];
};
static_assert(sizeof(DecodeStatus) == 192);

struct Rect {
    int left, top, right, bottom;
};

struct VideoFormat {  // CUVIDEOFORMAT
    int codec;
    unsigned frame_rate[2];
    unsigned char progressive_sequence;
    unsigned char bit_depth_luma_minus_8;
    unsigned char bit_depth_chroma_minus_8;
    unsigned char min_num_decode_surfaces;
    unsigned coded_width;
    unsigned coded_height;
    Rect display_area;
    int chroma_format;
    unsigned bitrate;
    int aspect_ratio[2];
    unsigned char signal_flags;  // 3 bits: video format; then 1 bit: samples have the range 0 to 255
    unsigned char color_primaries;
    unsigned char transfer_characteristics;
    unsigned char matrix_coefficients;
    unsigned sequence_header_bytes;
};
static_assert(sizeof(VideoFormat) == 64);
static_assert(offsetof(VideoFormat, min_num_decode_surfaces) == 15);
static_assert(offsetof(VideoFormat, coded_width) == 16);
static_assert(offsetof(VideoFormat, display_area) == 24);
static_assert(offsetof(VideoFormat, chroma_format) == 40);
static_assert(offsetof(VideoFormat, signal_flags) == 56);
static_assert(offsetof(VideoFormat, matrix_coefficients) == 59);
inline constexpr unsigned full_range_flag = 1U << 3;

struct DisplayInfo {  // CUVIDPARSERDISPINFO
    int picture;
    int progressive_frame;
    int top_field_first;
    int repeat_first_field;  // -1: only one field
    long long timestamp;
};
static_assert(sizeof(DisplayInfo) == 24);
static_assert(offsetof(DisplayInfo, timestamp) == 16);

struct Packet {  // CUVIDSOURCEDATAPACKET
    unsigned long flags;
    unsigned long size;
    const unsigned char* data;
    long long timestamp;
};
static_assert(sizeof(Packet) == 32);
static_assert(offsetof(Packet, timestamp) == 24);

/// Called inside cuvidParseVideoData. They return 0 for failure; the first one the number of decode surfaces.
using SequenceCallback = int (*)(void* user, VideoFormat* format);
using DecodeCallback = int (*)(void* user, PictureParams* picture);
using DisplayCallback = int (*)(void* user, DisplayInfo* display);

struct ParserParams {  // CUVIDPARSERPARAMS
    int codec;
    unsigned max_num_decode_surfaces;
    unsigned clock_rate;
    unsigned error_threshold;
    unsigned max_display_delay;
    unsigned flags;
    unsigned reserved1[4];
    void* user;
    SequenceCallback on_sequence;
    DecodeCallback on_decode;
    DisplayCallback on_display;
    void* reserved2[8];
};
static_assert(sizeof(ParserParams) == 136);
static_assert(offsetof(ParserParams, on_display) == 64);
static_assert(offsetof(ParserParams, user) == 40);

/// The functions of the library.
struct Functions {
    Result (*get_decoder_caps)(DecodeCaps*) = nullptr;
    Result (*create_parser)(Parser*, ParserParams*) = nullptr;
    Result (*parse)(Parser, Packet*) = nullptr;
    Result (*destroy_parser)(Parser) = nullptr;
    Result (*create_decoder)(Decoder*, DecodeCreateInfo*) = nullptr;
    Result (*destroy_decoder)(Decoder) = nullptr;
    Result (*decode_picture)(Decoder, PictureParams*) = nullptr;
    Result (*get_decode_status)(Decoder, int, DecodeStatus*) = nullptr;
    Result (*map_frame)(Decoder, int, DevicePointer*, unsigned* pitch, MapParams*) = nullptr;
    Result (*unmap_frame)(Decoder, DevicePointer) = nullptr;
};

}  // namespace robocache::decode_detail::cuvid
