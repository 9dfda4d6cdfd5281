#include "ops/decode/cuda/nvdec/session.hpp"

#include <algorithm>
#include <utility>

#include "ops/decode/cuda/nvdec/annex_b.hpp"
#include "robocache/errors.hpp"

namespace robocache::decode_detail {

namespace {

/// Codecs round sizes up to whole blocks of at most so many pixels. A stream that declares more would take memory that
/// its frames do not need.
constexpr int block = 128;

std::string size_text(std::int64_t height, std::int64_t width) {
    return std::to_string(height) + " x " + std::to_string(width);
}

bool is_damage(int status) {
    return status == cuvid::status_error || status == cuvid::status_concealed;
}

}  // namespace

void check_video(cuvid::Result result, const char* call) {
    if (result == 0) return;
    const std::string text = std::string(call) + ": CUDA driver error " + std::to_string(result);
    if (result == cuvid::out_of_memory) throw OutOfMemory(text);
    throw CudaError(text);
}

Session::~Session() {
    destroy_decoder();
}

void Session::destroy_decoder() noexcept {
    if (decoder_ != nullptr) (void)api_.destroy_decoder(decoder_);
    decoder_ = nullptr;
}

void Session::fail(std::int64_t packet, std::string rule) {
    if (!fault_) fault_ = GopFault{packet, std::move(rule)};
}

/// The packet of the picture that the parser is at: it finds the end of a picture in the packet after it.
std::int64_t Session::current_packet() const {
    if (picture_packets_.empty()) return 0;
    return picture_packets_[std::min(num_decoded_, picture_packets_.size() - 1)];
}

// ---- packets in
// ------------------------------------------------------------------------------------------------------

void Session::begin(const VideoGop& gop, std::span<VideoColor> colors, const FrameSink& sink) {
    gop_ = &gop;
    colors_ = colors;
    sink_ = sink;
    packet_of_rank_.assign(gop.ranks.size(), 0);
    for (std::size_t i = 0; i < gop.ranks.size(); ++i) {
        packet_of_rank_[static_cast<std::size_t>(gop.ranks[i])] = static_cast<std::int64_t>(i);
    }
    frame_of_packet_.assign(gop.ranks.size(), -1);
    for (std::size_t i = 0; i < gop.wanted.size(); ++i) {
        frame_of_packet_[static_cast<std::size_t>(gop.wanted[i])] = static_cast<std::int64_t>(i);
    }
    picture_packets_.clear();
    is_shown_.assign(gop.wanted.size(), 0);
    num_shown_ = num_decoded_ = 0;
    waiting_.clear();
    packet_in_slot_.fill(-1);
    fault_.reset();
    error_ = nullptr;

    // A new parser for each GOP: nothing of the packets before it is left.
    cuvid::ParserParams params{};
    params.codec = cuvid_codec(codec_);
    params.max_num_decode_surfaces = 1;  // on_sequence returns the number
    params.user = this;
    params.on_sequence = [](void* self, cuvid::VideoFormat* format) {
        auto& session = *static_cast<Session*>(self);
        return session.guarded([&] { return session.on_sequence(*format); });
    };
    params.on_decode = [](void* self, cuvid::PictureParams* picture) {
        auto& session = *static_cast<Session*>(self);
        return session.guarded([&] { return session.on_decode(*picture); });
    };
    params.on_display = [](void* self, cuvid::DisplayInfo* info) {
        auto& session = *static_cast<Session*>(self);
        return session.guarded([&] { return info == nullptr ? 1 : session.on_display(*info); });
    };
    check_video(api_.create_parser(&parser_, &params), "cuvidCreateVideoParser");
    try {
        send_packets();
    } catch (...) {
        error_ = std::current_exception();
    }
    (void)api_.destroy_parser(parser_);
    parser_ = nullptr;
    if (error_) std::rethrow_exception(error_);
}

/// Exceptions must not pass through the library: they are kept, and the parser is told to stop.
template <class Body>
int Session::guarded(Body body) noexcept {
    if (error_ || fault_) return 0;
    try {
        return body();
    } catch (...) {
        error_ = std::current_exception();
        return 0;
    }
}

void Session::send_packets() {
    std::int64_t packet = 0;
    try {
        const AnnexB form(gop_->track);
        stream_.assign(form.header().begin(), form.header().end());
        const std::int64_t last = gop_->wanted.back();
        for (; packet <= last && num_shown_ < gop_->wanted.size(); ++packet) {
            const auto i = static_cast<std::size_t>(packet);
            const auto first = static_cast<std::size_t>(gop_->offsets[i]);
            const auto size = static_cast<std::size_t>(gop_->offsets[i + 1]) - first;
            if (form.append(gop_->bytes.subspan(first, size), stream_)) picture_packets_.push_back(packet);
            send(stream_, cuvid::has_timestamp, gop_->ranks[i]);
            if (error_ || fault_) return;
            stream_.clear();
        }
    } catch (const NalFault& fault) {
        return fail(packet, "cannot be decoded: " + fault.rule);
    }
    send({}, cuvid::end_of_stream, 0);
}

void Session::send(std::span<const std::uint8_t> bytes, unsigned long flags, long long timestamp) {
    cuvid::Packet packet{flags, bytes.size(), bytes.data(), timestamp};
    const cuvid::Result result = api_.parse(parser_, &packet);
    if (error_ || fault_ || result == 0) return;
    fail(current_packet(), "cannot be decoded: the parser returned error " + std::to_string(result));
}

// ---- called by the parser
// --------------------------------------------------------------------------------------------

int Session::on_sequence(const cuvid::VideoFormat& format) {
    check_format(format);
    if (fault_) return 0;
    const bool fits = decoder_ != nullptr && format.coded_width == format_.coded_width &&
                      format.coded_height == format_.coded_height && format.min_num_decode_surfaces <= num_surfaces_;
    if (!fits && num_decoded_ > 0) {
        fail(current_packet(), "must have the format of the frames before it, got another one");
        return 0;
    }
    if (!fits) create_decoder(format);
    format_ = format;
    return num_surfaces_;
}

void Session::check_format(const cuvid::VideoFormat& format) {
    const VideoTrack& track = gop_->track;
    const bool is_8_bit = format.bit_depth_luma_minus_8 == 0 && format.bit_depth_chroma_minus_8 == 0;
    if (format.chroma_format != cuvid::chroma_420 || !is_8_bit || format.codec != cuvid_codec(codec_)) {
        return fail(current_packet(), "must have pixels of yuv420p, got " +
                                          std::to_string(8 + format.bit_depth_luma_minus_8) + " bits, chroma format " +
                                          std::to_string(format.chroma_format));
    }
    const cuvid::Rect& shown = format.display_area;
    const std::int64_t width = std::int64_t{shown.right} - shown.left;
    const std::int64_t height = std::int64_t{shown.bottom} - shown.top;
    if (width != track.width || height != track.height) {
        return fail(current_packet(),
                    "must be " + size_text(track.height, track.width) + ", got " + size_text(height, width));
    }
    const bool is_inside = shown.left >= 0 && shown.top >= 0 && shown.left % 2 == 0 && shown.top % 2 == 0 &&
                           shown.right <= static_cast<std::int64_t>(format.coded_width) &&
                           shown.bottom <= static_cast<std::int64_t>(format.coded_height);
    const bool is_small = format.coded_width <= static_cast<std::int64_t>(track.width) + block &&
                          format.coded_height <= static_cast<std::int64_t>(track.height) + block &&
                          format.coded_height % 2 == 0 && format.min_num_decode_surfaces <= max_surfaces;
    if (!is_inside || !is_small) {
        fail(current_packet(),
             "must be coded in whole blocks of its size, got " + size_text(format.coded_height, format.coded_width));
    }
}

void Session::create_decoder(const cuvid::VideoFormat& format) {
    destroy_decoder();
    num_surfaces_ = std::min(format.min_num_decode_surfaces + num_extra_surfaces, max_surfaces);
    cuvid::DecodeCreateInfo info{};
    info.width = info.max_width = info.target_width = format.coded_width;      // the target is the whole coded picture:
    info.height = info.max_height = info.target_height = format.coded_height;  // nothing is cropped or scaled
    info.num_decode_surfaces = static_cast<unsigned long>(num_surfaces_);
    info.codec = format.codec;
    info.chroma_format = format.chroma_format;
    info.creation_flags = cuvid::create_prefer_cuvid;
    info.output_format = cuvid::surface_nv12;
    info.deinterlace_mode = cuvid::deinterlace_weave;
    info.num_output_surfaces = num_output_surfaces;
    check_video(api_.create_decoder(&decoder_, &info), "cuvidCreateDecoder");
}

int Session::on_decode(cuvid::PictureParams& picture) {
    const int slot = picture.picture;
    if (decoder_ == nullptr || slot < 0 || slot >= num_surfaces_) {
        fail(current_packet(), "cannot be decoded: the parser named no surface");
        return 0;
    }
    if (picture.is_second_field == 0) retire(slot);
    if (fault_) return 0;
    const std::int64_t packet = current_packet();
    const cuvid::Result result = api_.decode_picture(decoder_, &picture);
    if (result == cuvid::invalid_value) {
        fail(packet, "cannot be decoded: the decoder refused the picture");
        return 0;
    }
    check_video(result, "cuvidDecodePicture");
    packet_in_slot_[static_cast<std::size_t>(slot)] = packet;
    ++num_decoded_;
    return 1;
}

int Session::on_display(const cuvid::DisplayInfo& info) {
    if (info.timestamp < 0 || info.timestamp >= static_cast<long long>(packet_of_rank_.size()) || info.picture < 0 ||
        info.picture >= num_surfaces_) {
        return 1;  // a picture that no packet stands for
    }
    const std::int64_t packet = packet_of_rank_[static_cast<std::size_t>(info.timestamp)];
    const std::int64_t found = frame_of_packet_[static_cast<std::size_t>(packet)];
    if (found < 0 || is_shown_[static_cast<std::size_t>(found)] != 0) return 1;
    const auto frame = static_cast<std::size_t>(found);
    is_shown_[frame] = 1;
    ++num_shown_;
    colors_[frame] = {format_.matrix_coefficients, (format_.signal_flags & cuvid::full_range_flag) != 0 ? 1 : 0};
    waiting_.push_back({info, frame});
    return 1;
}

// ---- frames out
// ------------------------------------------------------------------------------------------------------

/// Before another picture is decoded into a surface: copies its frame out, and looks whether it was damaged.
void Session::retire(int picture) {
    const auto at =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const Shown& s) { return s.info.picture == picture; });
    if (at != waiting_.end()) {
        const Shown shown = *at;
        waiting_.erase(at);
        copy_out({&shown, 1});
    }
    check_status(picture);
}

void Session::check_status(int picture) {
    std::int64_t& packet = packet_in_slot_[static_cast<std::size_t>(picture)];
    if (packet < 0) return;
    cuvid::DecodeStatus status{};
    cuvid::Result result = api_.get_decode_status(decoder_, picture, &status);
    if (result == 0 && status.status == cuvid::status_in_progress) {
        // Mapping waits for the picture.
        unsigned pitch = 0;
        cuvid::DisplayInfo info{};
        info.picture = picture;
        info.progressive_frame = 1;
        check_video(api_.unmap_frame(decoder_, map(info, pitch)), "cuvidUnmapVideoFrame64");
        result = api_.get_decode_status(decoder_, picture, &status);
    }
    if (result == 0 && is_damage(status.status)) fail(packet, "is damaged");
    packet = -1;
}

cuvid::DevicePointer Session::map(const cuvid::DisplayInfo& info, unsigned& pitch) {
    cuvid::MapParams params{};
    params.progressive_frame = info.progressive_frame;
    params.second_field = info.repeat_first_field + 1;
    params.top_field_first = info.top_field_first;
    params.unpaired_field = info.repeat_first_field < 0 ? 1 : 0;
    params.output_stream = sink_.stream;
    cuvid::DevicePointer data = 0;
    check_video(api_.map_frame(decoder_, info.picture, &data, &pitch, &params), "cuvidMapVideoFrame64");
    return data;
}

/// At most num_output_surfaces of them: as many can be mapped at once.
void Session::copy_out(std::span<const Shown> shown) {
    std::array<cuvid::DevicePointer, num_output_surfaces> mapped{};
    std::size_t count = 0;
    std::exception_ptr error;
    try {
        for (const Shown& one : shown) {
            unsigned pitch = 0;
            mapped[count] = map(one.info, pitch);
            ++count;
            const Surface surface{mapped[count - 1], pitch, format_.coded_height,
                                  static_cast<std::size_t>(format_.display_area.left),
                                  static_cast<std::size_t>(format_.display_area.top)};
            sink_.store(sink_.self, surface, gop_->track.width, gop_->track.height, gop_->places[one.frame]);
        }
        sink_.wait(sink_.self);
    } catch (...) {
        error = std::current_exception();
    }
    for (std::size_t i = 0; i < count; ++i) {
        const cuvid::Result result = api_.unmap_frame(decoder_, mapped[i]);
        if (!error) check_video(result, "cuvidUnmapVideoFrame64");
    }
    if (error) std::rethrow_exception(error);
}

std::optional<GopFault> Session::finish() {
    if (fault_) return fault_;
    for (std::size_t first = 0; first < waiting_.size(); first += num_output_surfaces) {
        const std::size_t count = std::min<std::size_t>(num_output_surfaces, waiting_.size() - first);
        copy_out(std::span<const Shown>(waiting_).subspan(first, count));
    }
    waiting_.clear();
    for (int slot = 0; slot < num_surfaces_ && !fault_; ++slot) check_status(slot);
    for (std::size_t i = 0; i < is_shown_.size() && !fault_; ++i) {
        if (is_shown_[i] == 0) fail(gop_->wanted[i], "must decode to a frame, got none");
    }
    // A picture that the parser has left out may be one that others refer to.
    if (num_decoded_ < picture_packets_.size()) fail(current_packet(), "cannot be decoded: it has no valid picture");
    return fault_;
}

}  // namespace robocache::decode_detail
