// decode_video on a GPU: sessions that are kept between calls, and the threads that feed them.
//
// Note [Sessions]
// The engines work while the host sends packets: a session has its whole GOP in the decoder before the host waits for
// it. A thread feeds several sessions in turn, so that all engines have work even with one thread:
//
//     session 0   begin GOP 0                finish GOP 0, begin GOP 3
//     session 1               begin GOP 1                              finish GOP 1, begin GOP 4
//     session 2                             begin GOP 2                                          ...
//
// Creating a decoder takes milliseconds, so sessions that have met no fault are kept. They are never freed when the
// process ends by itself, since the driver may be gone by then, and a forked child does not touch those of its parent.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda/check.hpp"
#include "core/thread_pool.hpp"
#include "ops/decode/contract/video.hpp"
#include "ops/decode/cuda/nvdec/library.hpp"
#include "ops/decode/cuda/nvdec/planes.hpp"
#include "ops/decode/cuda/nvdec/session.hpp"
#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache::decode_detail {

namespace {

/// Makes the primary context of a device current in this thread, which the driver's calls need; and the device that was
/// current before it again.
class ContextGuard {
public:
    explicit ContextGuard(int device) : guard_(device) { check_cuda(cudaSetDevice(device), "cudaSetDevice"); }

private:
    DeviceGuard guard_;
};

struct Kept {
    int device;
    std::int32_t width, height;
    std::unique_ptr<Session> session;
};

/// Frees a session in the context of its device. Where that is impossible the driver is gone, and its decoders with it.
void destroy(Kept kept) noexcept {
    if (kept.session == nullptr) return;
    try {
        const ContextGuard context(kept.device);
        kept.session.reset();
    } catch (const Error&) {
        (void)kept.session.release();
    }
}

/// Idle sessions, and what devices can do, of one process.
struct Pool {
    std::mutex mutex;
    std::vector<Kept> idle;
    std::map<std::pair<int, int>, cuvid::DecodeCaps> caps;  // by device and codec
    pid_t process = getpid();
};

Pool& pool() {
    static Pool& instance = *new Pool;  // never destroyed: Note [Sessions]
    return instance;
}

std::unique_ptr<Session> take_session(int device, const VideoTrack& track) {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    for (std::size_t i = p.idle.size(); i-- > 0;) {
        const Kept& kept = p.idle[i];
        const bool fits = kept.device == device && kept.session->codec() == track.codec && kept.width == track.width &&
                          kept.height == track.height;
        if (!fits) continue;
        std::unique_ptr<Session> session = std::move(p.idle[i].session);
        p.idle.erase(p.idle.begin() + static_cast<std::ptrdiff_t>(i));
        return session;
    }
    return std::make_unique<Session>(video_library().functions, track.codec);
}

void give_session(int device, const VideoTrack& track, std::unique_ptr<Session> session) {
    Kept oldest{};
    {
        Pool& p = pool();
        const std::lock_guard lock(p.mutex);
        p.idle.push_back({device, track.width, track.height, std::move(session)});
        if (p.idle.size() > static_cast<std::size_t>(max_idle_sessions)) {
            oldest = std::move(p.idle.front());
            p.idle.erase(p.idle.begin());
        }
    }
    destroy(std::move(oldest));
}

cuvid::DecodeCaps caps_of(int device, VideoCodec codec) {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    const std::pair key(device, cuvid_codec(codec));
    const auto found = p.caps.find(key);
    if (found != p.caps.end()) return found->second;
    const ContextGuard context(device);
    cuvid::DecodeCaps caps{};
    caps.codec = cuvid_codec(codec);
    caps.chroma_format = cuvid::chroma_420;
    check_video(video_library().functions.get_decoder_caps(&caps), "cuvidGetDecoderCaps");
    return p.caps[key] = caps;
}

/// Copies frames to the output on the queue of the call; one for each thread.
class PlaneSink {
public:
    PlaneSink(std::uint8_t* out, cudaStream_t stream) : out_(out), stream_(stream) {
        check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    ~PlaneSink() { (void)cudaEventDestroy(event_); }
    PlaneSink(const PlaneSink&) = delete;
    PlaneSink& operator=(const PlaneSink&) = delete;

    [[nodiscard]] FrameSink sink() {
        return {this,
                [](void* self, const Surface& surface, int width, int height, std::int64_t place) {
                    const auto& to = *static_cast<PlaneSink*>(self);
                    queue_planes(surface, width, height, to.out_ + place, to.stream_);
                },
                [](void* self) {
                    const auto& to = *static_cast<PlaneSink*>(self);
                    check_cuda(cudaEventRecord(to.event_, to.stream_), "cudaEventRecord");
                    check_cuda(cudaEventSynchronize(to.event_), "cudaEventSynchronize");
                },
                stream_};
    }

private:
    std::uint8_t* out_;
    cudaStream_t stream_;
    cudaEvent_t event_ = nullptr;
};

/// One call: GOPs are taken in order by threads, each with a ring of sessions.
class VideoCall {
public:
    VideoCall(const VideoPlan::State& plan, std::uint8_t* out, std::span<VideoColor> colors, CudaQueue queue)
        : plan_(plan), out_(out), colors_(colors), stream_(static_cast<cudaStream_t>(queue.handle)) {}

    std::optional<VideoFault> run() {
        const auto num_gops = static_cast<std::int64_t>(plan_.gops.size());
        const std::int64_t num_threads =
            std::min<std::int64_t>({num_gops, max_video_threads, robocache::num_threads()});
        const std::int64_t ring = std::max<std::int64_t>(1, max_sessions / num_threads);
        parallel_for(num_threads, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) work(std::min(ring, num_gops));
        });
        return std::move(fault_);
    }

private:
    struct Running {
        std::unique_ptr<Session> session;
        std::int64_t gop = -1;
    };

    void work(std::int64_t ring_size) {
        const ContextGuard context(plan_.device.index);
        PlaneSink planes(out_, stream_);
        std::vector<Running> ring(static_cast<std::size_t>(ring_size));
        for (std::size_t at = 0;; at = (at + 1) % ring.size()) {
            const std::int64_t gop = next_.fetch_add(1);
            if (gop >= static_cast<std::int64_t>(plan_.gops.size())) break;
            finish(ring[at]);
            begin(ring[at], gop, planes.sink());
        }
        for (Running& running : ring) finish(running);
    }

    void begin(Running& running, std::int64_t number, const FrameSink& sink) {
        const auto i = static_cast<std::size_t>(number);
        const VideoGop& gop = plan_.gops[i];
        running.gop = number;
        running.session = take_session(plan_.device.index, gop.track);
        running.session->begin(gop, colors_.subspan(static_cast<std::size_t>(plan_.first_frames[i]), gop.wanted.size()),
                               sink);
    }

    void finish(Running& running) {
        if (running.gop < 0) return;
        const std::int64_t number = std::exchange(running.gop, -1);
        std::unique_ptr<Session> session = std::move(running.session);
        std::optional<GopFault> fault = session->finish();
        if (!fault) {
            return give_session(plan_.device.index, plan_.gops[static_cast<std::size_t>(number)].track,
                                std::move(session));
        }
        const std::lock_guard lock(mutex_);
        if (!fault_ || number < fault_->gop) fault_ = VideoFault{number, fault->packet, std::move(fault->rule)};
    }

    const VideoPlan::State& plan_;
    std::uint8_t* out_;
    std::span<VideoColor> colors_;
    cudaStream_t stream_;
    std::atomic<std::int64_t> next_{0};
    std::mutex mutex_;
    std::optional<VideoFault> fault_;
};

}  // namespace

std::string why_no_nvdec(const VideoTrack& track, int device) {
    if (pool().process != getpid()) return "this process was forked from one that had used CUDA";
    const VideoLibrary& library = video_library();
    if (!library.problem.empty()) return library.problem;
    cuvid::DecodeCaps caps{};
    try {
        caps = caps_of(device, track.codec);
    } catch (const Error& error) {
        return std::string("the driver was not able to describe its decoders: ") + error.what();
    }
    const std::string codec = track.codec == VideoCodec::h264 ? "H.264" : "HEVC";
    if (caps.is_supported == 0 || (caps.output_formats & 1U << cuvid::surface_nv12) == 0) {
        return "this GPU does not decode " + codec;
    }
    const auto width = static_cast<unsigned>(track.width);
    const auto height = static_cast<unsigned>(track.height);
    const std::uint64_t macroblocks = std::uint64_t{(width + 15) / 16} * ((height + 15) / 16);
    if (width < caps.min_width || height < caps.min_height || width > caps.max_width || height > caps.max_height ||
        macroblocks > caps.max_macroblocks) {
        return "this GPU decodes " + codec + " from " + std::to_string(caps.min_height) + " x " +
               std::to_string(caps.min_width) + " to " + std::to_string(caps.max_height) + " x " +
               std::to_string(caps.max_width) + ", got " + std::to_string(height) + " x " + std::to_string(width);
    }
    return {};
}

std::optional<VideoFault> decode_video_cuda(const VideoPlan::State& plan, std::uint8_t* out,
                                            std::span<VideoColor> colors, CudaQueue queue) {
    return VideoCall(plan, out, colors, queue).run();
}

void release_nvdec() noexcept {
    Pool& p = pool();
    if (p.process != getpid()) return;
    std::vector<Kept> idle;
    {
        const std::lock_guard lock(p.mutex);
        idle.swap(p.idle);
    }
    for (Kept& kept : idle) destroy(std::move(kept));
}

}  // namespace robocache::decode_detail
