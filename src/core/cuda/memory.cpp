// Memory on a GPU, and what a stream does.
#include "core/cuda/memory.hpp"

#include <algorithm>

#include "core/cuda/check.hpp"

namespace robocache {

void* allocate_cuda(std::size_t bytes, int device) {
    const DeviceGuard guard(device);
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    return data;
}

void free_cuda(void* data) noexcept {
    // cudaFree waits for the device by itself, which cudaFreeAsync would not. Nobody is left to hear of an error: one
    // of earlier work is seen by whoever waits for that, and at the end of the process the driver may be gone already.
    if (cudaFree(data) != cudaSuccess) (void)cudaGetLastError();
}

void wait_for_stream(int device, CudaQueue stream) {
    const DeviceGuard guard(device);
    check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)), "cudaStreamSynchronize");
}

int current_device() {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
}

bool is_capturing(Device device, CudaQueue stream) {
    if (device.type != DeviceType::cuda) return false;
    const DeviceGuard guard(device.index);
    cudaStreamCaptureStatus status{};
    check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace robocache
