// The public API of decode_video: all validation, and dispatch to the GPU.
#include "ops/decode/contract/video.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/contract.hpp"
#include "robocache/errors.hpp"

namespace robocache {

using namespace decode_detail;

namespace {

constexpr std::int32_t max_side = 8192;  // of NVDEC, for any codec

/// Checks one GOP. Nothing that is used as a position later is left unchecked.
class GopCheck {
public:
    GopCheck(std::string_view op, std::size_t i, const VideoGop& gop) : op_(op), i_(i), gop_(gop) {}

    void run() const {
        const std::size_t num_packets = gop_.ranks.size();
        if (num_packets == 0 || gop_.offsets.size() != num_packets + 1) {
            refuse("offsets", "have one entry more than ranks, which has at least one",
                   std::to_string(gop_.offsets.size()) + " and " + std::to_string(num_packets));
        }
        check_offsets();
        check_ranks();
        check_wanted();
    }

private:
    [[noreturn]] void refuse(std::string_view field, std::string_view rule, std::string_view given) const {
        fail(op_, ArgumentName("gops", i_, field), rule, given);
    }

    void check_offsets() const {
        const auto size = static_cast<std::int64_t>(gop_.bytes.size());
        std::int64_t before = 0;
        for (const std::int64_t offset : gop_.offsets) {
            if (offset < before || offset > size) {
                refuse("offsets", "ascend from 0 to the number of bytes, " + std::to_string(size),
                       std::to_string(offset));
            }
            before = offset;
        }
    }

    void check_ranks() const {
        std::vector<bool> is_used(gop_.ranks.size());
        for (const std::int64_t rank : gop_.ranks) {
            const bool is_inside = rank >= 0 && rank < static_cast<std::int64_t>(is_used.size());
            if (!is_inside || is_used[static_cast<std::size_t>(rank)]) {
                refuse("ranks", "have every number below " + std::to_string(is_used.size()) + " once",
                       std::to_string(rank));
            }
            is_used[static_cast<std::size_t>(rank)] = true;
        }
    }

    void check_wanted() const {
        if (gop_.wanted.empty() || gop_.places.size() != gop_.wanted.size()) {
            refuse("places", "have one entry for each of wanted, which has at least one",
                   std::to_string(gop_.places.size()) + " and " + std::to_string(gop_.wanted.size()));
        }
        std::int64_t before = -1;
        for (const std::int64_t packet : gop_.wanted) {
            if (packet <= before || packet >= static_cast<std::int64_t>(gop_.ranks.size())) {
                refuse("wanted", "have ascending packets below " + std::to_string(gop_.ranks.size()),
                       std::to_string(packet));
            }
            before = packet;
        }
        const std::int64_t last = std::numeric_limits<std::int64_t>::max() - frame_bytes(gop_.track);
        for (const std::int64_t place : gop_.places) {
            if (place < 0 || place > last) refuse("places", "be at least 0", std::to_string(place));
        }
    }

    std::string_view op_;
    std::size_t i_;
    const VideoGop& gop_;
};

}  // namespace

VideoPlan::VideoPlan(std::unique_ptr<const State> state) noexcept : state_(std::move(state)) {}
VideoPlan::~VideoPlan() = default;
VideoPlan::VideoPlan(VideoPlan&&) noexcept = default;
VideoPlan& VideoPlan::operator=(VideoPlan&&) noexcept = default;

Device VideoPlan::device() const noexcept {
    return state_->device;
}
std::int64_t VideoPlan::output_bytes() const noexcept {
    return state_->output_bytes;
}
std::int64_t VideoPlan::num_frames() const noexcept {
    return state_->num_frames;
}

std::string why_no_gpu_video(const VideoTrack& track, Device device) {
    const auto is_side = [](std::int32_t side) { return side >= 2 && side <= max_side && side % 2 == 0; };
    if (!is_side(track.width) || !is_side(track.height)) {
        return "NVDEC decodes even sizes up to " + std::to_string(max_side) + ", got " + std::to_string(track.height) +
               " x " + std::to_string(track.width);
    }
    if (device.type != DeviceType::cuda) return "the device is " + name(device);
#ifdef ROBOCACHE_HAS_CUDA
    return why_no_nvdec(track, device.index);
#else
    return "this build contains no CUDA code";
#endif
}

VideoPlan plan_decode_video(std::span<const VideoGop> gops, Device device, std::string_view op) {
    auto state = std::make_unique<VideoPlan::State>();
    state->device = device;
    state->op = op;
    const VideoTrack* checked = nullptr;
    for (std::size_t i = 0; i < gops.size(); ++i) {
        const VideoGop& gop = gops[i];
        GopCheck(op, i, gop).run();
        const VideoTrack& track = gop.track;
        const bool is_known = checked != nullptr && checked->codec == track.codec && checked->width == track.width &&
                              checked->height == track.height;
        if (!is_known) {
            const std::string reason = why_no_gpu_video(track, device);
            if (!reason.empty()) throw Unsupported(std::string(op) + ": " + reason);
            checked = &track;
        }
        for (const std::int64_t place : gop.places) {
            state->output_bytes = std::max(state->output_bytes, place + frame_bytes(track));
        }
        state->first_frames.push_back(state->num_frames);
        state->num_frames += static_cast<std::int64_t>(gop.wanted.size());
    }
    state->gops.assign(gops.begin(), gops.end());
    return VideoPlan(std::move(state));
}

std::optional<VideoFault> run(const VideoPlan& plan, const TensorView& output, std::span<VideoColor> colors,
                              [[maybe_unused]] CudaQueue queue) {
    const VideoPlan::State& state = plan.state();
    require_dtype(state.op, "output", output, DType::u8);
    require_rank(state.op, "output", output, 1);
    require_device(state.op, "output", output, state.device);
    if (output.shape[0] < state.output_bytes || (output.shape[0] > 1 && output.strides[0] != 1)) {
        fail(state.op, "output", "have " + std::to_string(state.output_bytes) + " contiguous bytes",
             "shape " + shape_text(output));
    }
    if (static_cast<std::int64_t>(colors.size()) != state.num_frames) {
        fail(state.op, "colors", "have one entry for each frame, " + std::to_string(state.num_frames),
             std::to_string(colors.size()));
    }
    if (state.gops.empty()) return std::nullopt;
#ifdef ROBOCACHE_HAS_CUDA
    return decode_video_cuda(state, static_cast<std::uint8_t*>(output.data), colors, queue);
#else
    return std::nullopt;  // there is no plan without CUDA code
#endif
}

void release_video_decoders() noexcept {
#ifdef ROBOCACHE_HAS_CUDA
    release_nvdec();
#endif
}

}  // namespace robocache
