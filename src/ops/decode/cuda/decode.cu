// decode on CUDA: jobs to the device as kernel parameters, entropy decoding into planes, planes to pixels.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "core/cuda/check.hpp"
#include "core/cuda/device.hpp"
#include "ops/decode/contract/plan.hpp"
#include "ops/decode/cuda/pixels.cuh"
#include "ops/decode/cuda/segments.cuh"

namespace robocache::decode_detail {
namespace {

/// Jobs as a kernel parameter: copied when the launch is queued, so that nothing on the host must stay and nothing
/// waits.
struct JobChunk {
    uint4 words[job_chunk_bytes / sizeof(uint4)];
};

__global__ void store_jobs(const __grid_constant__ JobChunk chunk, uint4* out, int num_words) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < num_words) out[i] = chunk.words[i];
}

void send_jobs(const CudaSchedule& schedule, void* out, cudaStream_t stream) {
    const auto* bytes = reinterpret_cast<const char*>(schedule.jobs.data());
    const std::size_t total = schedule.jobs.size() * sizeof(DeviceJob);
    for (std::size_t begin = 0; begin < total; begin += sizeof(JobChunk)) {
        JobChunk chunk;
        const std::size_t size = std::min(sizeof(JobChunk), total - begin);
        std::memcpy(&chunk, bytes + begin, size);
        const auto num_words = static_cast<int>(size / sizeof(uint4));
        store_jobs<<<(num_words + 255) / 256, 256, 0, stream>>>(
            chunk, reinterpret_cast<uint4*>(static_cast<char*>(out) + begin), num_words);
        check_cuda(cudaGetLastError(), "store_jobs");
    }
}
static_assert(sizeof(JobChunk) == job_chunk_bytes && sizeof(DeviceJob) % sizeof(uint4) == 0);

/// Shared memory beyond 48 KiB, the static memory of the kernel included, must be requested.
template <class Kernel>
void allow_shared(Kernel kernel, int bytes, const char* name) {
    constexpr int most_static = 8 << 10;
    if (bytes <= (48 << 10) - most_static) return;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

template <class T, int channels>
void launch_pixels(const DeviceCall& call, const CudaSchedule& schedule, cudaStream_t stream) {
    allow_shared(write_pixels<T, channels>, schedule.tile_bytes, "write_pixels");
    write_pixels<T, channels>
        <<<schedule.num_tiles, pixel_threads, static_cast<std::size_t>(schedule.tile_bytes), stream>>>(call);
    check_cuda(cudaGetLastError(), "write_pixels");
    if (!schedule.has_untiled) return;
    write_without_tiles<T, channels><<<schedule.num_tiles, pixel_threads, 0, stream>>>(call);
    check_cuda(cudaGetLastError(), "write_without_tiles");
}

template <class T>
void launch_pixels_as(const DeviceCall& call, const CudaSchedule& schedule, cudaStream_t stream) {
    if (call.style.channels == 3) return launch_pixels<T, 3>(call, schedule, stream);
    launch_pixels<T, 1>(call, schedule, stream);
}

void launch_segments(const DeviceCall& call, const CudaSchedule& schedule, cudaStream_t stream) {
    if (schedule.num_slots == 0) return;
    const int bytes =
        segment_threads * num_coefficients * 2 + static_cast<int>(schedule.num_tables * sizeof(HuffmanTable));
    allow_shared(decode_segments, bytes, "decode_segments");
    decode_segments<<<schedule.num_slots / segment_threads, segment_threads, static_cast<std::size_t>(bytes), stream>>>(
        call, schedule.num_tables);
    check_cuda(cudaGetLastError(), "decode_segments");
}

}  // namespace

void decode_cuda(const Plan& plan, const Target& target, CudaQueue queue) {
    const DeviceGuard guard(plan.device.index);
    const CudaSchedule& schedule = *plan.schedule;
    auto* stream = static_cast<cudaStream_t>(queue.handle);
    if (schedule.num_tiles == 0) return;
    send_jobs(schedule, target.workspace.data, stream);
    const std::size_t job_bytes = (schedule.jobs.size() * sizeof(DeviceJob) + 255) / 256 * 256;
    DeviceCall call{};
    call.bytes = plan.bytes;
    call.num_bytes = plan.num_bytes;
    call.offsets = plan.offsets;
    call.index = plan.device_index;
    call.jobs = static_cast<const DeviceJob*>(target.workspace.data);
    call.num_jobs = static_cast<std::uint32_t>(schedule.jobs.size());
    call.num_jpeg = schedule.num_jpeg;
    call.planes = static_cast<std::uint8_t*>(target.workspace.data) + job_bytes;
    call.style = plan.style;
    call.out = target.out;
    launch_segments(call, schedule, stream);
    switch (plan.style.dtype) {
        case DType::f32: return launch_pixels_as<float>(call, schedule, stream);
        case DType::f16: return launch_pixels_as<Half>(call, schedule, stream);
        case DType::bf16: return launch_pixels_as<BFloat16>(call, schedule, stream);
        default: return launch_pixels_as<std::uint8_t>(call, schedule, stream);
    }
}

}  // namespace robocache::decode_detail
