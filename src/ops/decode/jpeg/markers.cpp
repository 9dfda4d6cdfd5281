// Reads the markers of a JPEG picture up to its scan, by the rules of libjpeg.
#include "ops/decode/jpeg/markers.hpp"

#include <algorithm>
#include <optional>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/jpeg/annex_k.hpp"
#include "robocache/decode.hpp"

namespace robocache::decode_detail {
namespace {

enum Marker : int {
    TEM = 0x01,
    SOF0 = 0xC0,
    SOF1 = 0xC1,
    DHT = 0xC4,
    DAC = 0xCC,
    RST0 = 0xD0,
    SOI = 0xD8,
    EOI = 0xD9,
    SOS = 0xDA,
    DQT = 0xDB,
    DNL = 0xDC,
    DRI = 0xDD,
    APP0 = 0xE0,
    APP14 = 0xEE,
    APP15 = 0xEF,
    COM = 0xFE
};

[[noreturn]] void refuse(std::string rule, std::string given) {
    throw PictureFault{false, std::move(rule), std::move(given)};
}

[[noreturn]] void refuse_kind(std::string given) {
    throw PictureFault{true, "be a sequential JPEG with Huffman codes, 8 bits, one scan, and 1 or 3 components",
                       std::move(given)};
}

const char* name_of_frame(int marker) {
    switch (marker) {
        case 0xC2: return "a progressive JPEG";
        case 0xC3: return "a lossless JPEG";
        case 0xC9: return "an arithmetic-coded JPEG";
        case 0xCA: return "a progressive arithmetic-coded JPEG";
        default: return "a JPEG with a frame of another kind";
    }
}

/// The body of one marker segment, read from front to back.
class Segment {
public:
    Segment(Bytes body, const char* name) : body_(body), name_(name) {}

    [[nodiscard]] bool is_empty() const { return body_.empty(); }
    /// After the last field: a segment of another length is damaged, and so is what follows it.
    void end() const {
        if (!body_.empty()) {
            refuse(std::string("have ") + name_ + " segments of their length",
                   std::to_string(body_.size()) + " bytes more");
        }
    }
    int byte() { return take(1)[0]; }
    int word() {
        const Bytes two = take(2);
        return two[0] << 8 | two[1];
    }
    Bytes take(std::size_t count) {
        if (count > body_.size()) {
            refuse(std::string("have a whole ") + name_ + " segment",
                   std::to_string(body_.size()) + " bytes for " + std::to_string(count));
        }
        const Bytes taken = body_.first(count);
        body_ = body_.subspan(count);
        return taken;
    }

private:
    Bytes body_;
    const char* name_;
};

class HeaderReader {
public:
    HeaderReader(Bytes picture, std::int64_t max_pixels) : picture_(picture), max_pixels_(max_pixels) {}

    /// Per sample, as far as read() came; 0 without a frame.
    [[nodiscard]] int bits() const { return bits_; }

    JpegHeader read() {
        if (picture_.size() < 4 || picture_[0] != 0xFF || picture_[1] != SOI) {
            refuse("begin with a JPEG marker (ffd8)", hex(picture_.first(std::min<std::size_t>(4, picture_.size()))));
        }
        if (picture_.size() > max_bytes) {
            refuse("have at most " + std::to_string(max_bytes) + " bytes", std::to_string(picture_.size()));
        }
        std::size_t at = 2;
        for (;;) {
            const int marker = next_marker(at);
            if (marker == EOI) refuse("have a scan", "the end of the picture at byte " + std::to_string(at - 2));
            if (marker == SOI) refuse("begin once", "a second begin at byte " + std::to_string(at - 2));
            if (marker == TEM || (marker >= RST0 && marker < SOI)) continue;  // without a body
            const std::size_t length =
                at + 2 <= picture_.size() ? std::size_t{picture_[at]} << 8 | picture_[at + 1] : 0;
            if (length < 2 || at + length > picture_.size()) {
                refuse("have whole marker segments",
                       "marker ff" + hex(Bytes(picture_).subspan(at - 1, 1)) + " of " + std::to_string(length) +
                           " bytes at byte " + std::to_string(at - 2) + " of " + std::to_string(picture_.size()));
            }
            const Bytes body = picture_.subspan(at + 2, length - 2);
            at += length;
            if (marker == SOS) return finish(Segment(body, "SOS"), at);
            read_segment(marker, body);
        }
    }

private:
    static constexpr std::size_t max_bytes = (std::size_t{1} << 29) - 1;  // entry points count bits in 32 bits

    /// The code of the next marker; `at` is then behind it. Bytes between segments are skipped, as libjpeg does.
    int next_marker(std::size_t& at) {
        for (; at + 1 < picture_.size(); ++at) {
            if (picture_[at] == 0xFF && picture_[at + 1] != 0xFF && picture_[at + 1] != 0) {
                at += 2;
                return picture_[at - 1];
            }
        }
        refuse("have a scan", "no further marker in " + std::to_string(picture_.size()) + " bytes");
    }

    void read_segment(int marker, Bytes body) {
        if (marker == DQT) return read_quantization(Segment(body, "DQT"));
        if (marker == DHT) return read_huffman(Segment(body, "DHT"));
        if (marker == DAC) return check_conditioning(Segment(body, "DAC"));
        const bool is_frame = marker >= SOF0 && marker <= 0xCF && marker != 0xC8;
        if (is_frame && !body.empty()) bits_ = body[0];
        if (marker == SOF0 || marker == SOF1) return read_frame(Segment(body, "SOF"));
        if (is_frame) refuse_kind(name_of_frame(marker));
        if (marker == DRI) return read_restart_interval(Segment(body, "DRI"));
        if (marker != DNL && marker != COM && (marker < APP0 || marker > APP15)) {
            refuse("have known markers", "ff" + hex(Bytes(std::array{static_cast<std::uint8_t>(marker)})));
        }
        const auto begins = [&](std::string_view text, std::size_t least) {
            return body.size() >= least && std::equal(text.begin(), text.end(), body.begin());
        };
        if (marker == APP0 && begins(std::string_view("JFIF\0", 5), 14)) has_jfif_ = true;
        if (marker == APP14 && begins("Adobe", 12)) adobe_transform_ = body[11];
    }

    void read_restart_interval(Segment segment) {
        restart_interval_ = segment.word();
        segment.end();
    }

    /// Of arithmetic coding, so not used. One that libjpeg refuses is damaged.
    static void check_conditioning(Segment segment) {
        while (!segment.is_empty()) {
            const int table = segment.byte();
            const int value = segment.byte();
            const bool is_valid = table < 32 && (table >= 16 || (value & 15) <= value >> 4);
            if (!is_valid) refuse("have valid DAC segments", std::to_string(value) + " for " + std::to_string(table));
        }
    }

    void read_quantization(Segment segment) {
        while (!segment.is_empty()) {
            const int head = segment.byte();
            const int number = head & 15;
            if (number > 3) refuse("number quantization tables from 0 to 3", std::to_string(number));
            auto& steps = quantization_[static_cast<std::size_t>(number)].emplace();
            for (auto& step : steps) {
                step = static_cast<std::uint16_t>((head >> 4) != 0 ? segment.word() : segment.byte());
            }
        }
    }

    void read_huffman(Segment segment) {
        while (!segment.is_empty()) {
            const int head = segment.byte();
            const int number = head & 15;
            const bool is_ac = (head >> 4) == 1;
            if (number > 3 || (head >> 4) > 1) refuse("number Huffman tables from 0 to 3", std::to_string(head));
            const Bytes counts = segment.take(16);
            std::size_t total = 0;
            int code = 0;
            for (int length = 1; length <= 16; ++length) {
                const int count = counts[static_cast<std::size_t>(length - 1)];
                total += static_cast<std::size_t>(count);
                code += count;
                // The code of all ones is reserved, and libjpeg refuses it. It can be decoded like any other.
                if (code > 1 << length) {
                    refuse("have Huffman tables without more codes than their bits can tell apart",
                           "code " + std::to_string(code) + " of " + std::to_string(length) + " bits");
                }
                code <<= 1;
            }
            if (total > 256) refuse("have at most 256 symbols in a Huffman table", std::to_string(total));
            const Bytes symbols = segment.take(total);
            if (!is_ac && std::ranges::any_of(symbols, [](int s) { return s > 15; })) {
                refuse("have DC differences of at most 15 bits", std::to_string(*std::ranges::max_element(symbols)));
            }
            auto& table = (is_ac ? ac_ : dc_)[static_cast<std::size_t>(number)];
            table.assign(counts.begin(), counts.end());
            table.insert(table.end(), symbols.begin(), symbols.end());
        }
    }

    void read_frame(Segment segment) {
        if (has_frame_) refuse("have one frame", "two");
        has_frame_ = true;
        PictureRecord& record = header_.record;
        const int bits = segment.byte();
        if (bits != 8) refuse_kind("a JPEG with " + std::to_string(bits) + " bits per sample");
        record.height = segment.word();
        record.width = segment.word();
        const std::string size = std::to_string(record.width) + " x " + std::to_string(record.height);
        if (record.width == 0 || record.height == 0) refuse("have pixels", size);
        if (std::int64_t{record.width} * record.height > max_pixels_) {
            refuse("have at most " + std::to_string(max_pixels_) + " pixels (max_pixels)", size);
        }
        const int num_components = segment.byte();
        if (num_components != 1 && num_components != 3) {
            refuse_kind(num_components == 4 ? "a JPEG with 4 components (CMYK or YCCK)"
                                            : "a JPEG with " + std::to_string(num_components) + " components");
        }
        record.num_components = static_cast<std::uint8_t>(num_components);
        for (int c = 0; c < num_components; ++c) read_component(segment, c);
        segment.end();
    }

    void read_component(Segment& segment, int c) {
        PictureRecord& record = header_.record;
        ids_[c] = segment.byte();
        const int sampling = segment.byte();
        const int h = sampling >> 4;
        const int v = sampling & 15;
        if (h < 1 || h > 4 || v < 1 || v > 4) {
            refuse("have sampling factors from 1 to 4", std::to_string(h) + " x " + std::to_string(v));
        }
        record.h[c] = static_cast<std::uint8_t>(h);
        record.v[c] = static_cast<std::uint8_t>(v);
        quantization_of_[c] = segment.byte();
    }

    JpegHeader finish(Segment segment, std::size_t scan_begin) {
        PictureRecord& record = header_.record;
        if (!has_frame_) refuse("have a frame before its scan", "none");
        const int num_in_scan = segment.byte();
        if (num_in_scan != record.num_components) refuse_kind("a JPEG with several scans");
        for (int c = 0; c < num_in_scan; ++c) {
            const int id = segment.byte();
            const int tables = segment.byte();
            if (id != ids_[c])
                refuse("have the components of its frame in its scan", "component " + std::to_string(id));
            take_tables(c, tables >> 4, tables & 15);
        }
        // First and last coefficient, and a shift. A sequential scan has all of them; libjpeg only warns of other
        // values.
        segment.take(3);
        segment.end();
        set_sampling();
        record.color = color_space();
        record.restart_interval = static_cast<std::uint16_t>(restart_interval_);
        record.scan_begin = static_cast<std::uint32_t>(scan_begin);
        record.num_bytes = static_cast<std::uint32_t>(picture_.size());
        return std::move(header_);
    }

    void take_tables(int c, int dc, int ac) {
        ComponentTables& tables = header_.tables[static_cast<std::size_t>(c)];
        const int q = quantization_of_[c];
        if (q > 3 || !quantization_[static_cast<std::size_t>(q)]) {
            refuse("have the quantization tables that its components use", "none with number " + std::to_string(q));
        }
        tables.steps = *quantization_[static_cast<std::size_t>(q)];
        tables.dc = huffman(dc_, dc, {luma_dc, chroma_dc});
        tables.ac = huffman(ac_, ac, {luma_ac, chroma_ac});
    }

    using Tables = std::array<std::vector<std::uint8_t>, 4>;
    /// The table of a number; of Annex K where a picture brings none for 0 or 1.
    static std::vector<std::uint8_t> huffman(const Tables& given, int number, const std::array<Bytes, 2>& standard) {
        const auto i = static_cast<std::size_t>(number);
        if (i < given.size() && !given[i].empty()) return given[i];
        if (i > 1)
            refuse("have the Huffman tables that its components use", "none with number " + std::to_string(number));
        return {standard[i].begin(), standard[i].end()};
    }

    /// A scan of one component has MCUs of one block, whatever its sampling factors are.
    void set_sampling() {
        PictureRecord& record = header_.record;
        if (record.num_components == 1) record.h[0] = record.v[0] = 1;
        const Geometry geometry = geometry_of(record);
        int num_blocks = 0;
        for (int c = 0; c < record.num_components; ++c) {
            num_blocks += record.h[c] * record.v[c];
            if (geometry.mcu_width / block_size % record.h[c] != 0 ||
                geometry.mcu_height / block_size % record.v[c] != 0) {
                refuse_kind("a JPEG whose sampling factors do not divide each other");
            }
        }
        if (num_blocks > 10) refuse("have at most 10 blocks per MCU", std::to_string(num_blocks));
    }

    [[nodiscard]] ColorSpace color_space() const {
        if (header_.record.num_components == 1) return ColorSpace::gray;
        if (has_jfif_) return ColorSpace::ycc;
        if (adobe_transform_) return *adobe_transform_ == 0 ? ColorSpace::rgb : ColorSpace::ycc;
        return ids_ == std::array<int, 3>{'R', 'G', 'B'} ? ColorSpace::rgb : ColorSpace::ycc;
    }

    Bytes picture_;
    std::int64_t max_pixels_;
    JpegHeader header_;
    bool has_frame_ = false;
    bool has_jfif_ = false;
    std::optional<int> adobe_transform_;
    int restart_interval_ = 0;
    int bits_ = 0;
    std::array<int, 3> ids_{};
    std::array<int, 3> quantization_of_{};
    std::array<std::optional<std::array<std::uint16_t, num_coefficients>>, 4> quantization_;
    Tables dc_;
    Tables ac_;
};

}  // namespace

std::string hex(Bytes bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

JpegHeader read_header(Bytes picture, std::int64_t max_pixels) {
    return HeaderReader(picture, max_pixels).read();
}

}  // namespace robocache::decode_detail

namespace robocache {

namespace {
constexpr std::int64_t any_size = std::int64_t{1} << 32;  // of width and height: 16 bits each
}

std::optional<PixelShape> jpeg_shape(std::span<const std::uint8_t> bytes) noexcept {
    try {
        const decode_detail::PictureRecord record = decode_detail::read_header(bytes, any_size).record;
        return PixelShape{record.height, record.width, record.num_components};
    } catch (...) {
        return std::nullopt;
    }
}

int jpeg_bits(std::span<const std::uint8_t> bytes) noexcept {
    decode_detail::HeaderReader reader(bytes, any_size);
    try {
        (void)reader.read();
    } catch (...) {
        return reader.bits();  // 0 unless the frame was read; what is wrong behind it does not matter
    }
    return reader.bits();
}

PictureKind picture_kind(std::span<const std::uint8_t> bytes) noexcept {
    constexpr std::array<std::uint8_t, 8> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (bytes.size() >= png.size() && std::equal(png.begin(), png.end(), bytes.begin())) return PictureKind::png;
    try {
        (void)decode_detail::read_header(bytes, any_size);
        return PictureKind::jpeg;
    } catch (const decode_detail::PictureFault& fault) {
        return fault.is_unsupported ? PictureKind::other_jpeg : PictureKind::unknown;
    } catch (...) {
        return PictureKind::unknown;
    }
}

}  // namespace robocache
