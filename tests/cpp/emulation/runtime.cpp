// The CUDA runtime of the emulated GPU, and arithmetic with other rounding. Compiled with -frounding-math.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

std::mutex mutex;
std::map<const char*, std::size_t> allocations;

}  // namespace

namespace emulation {

float rounded_fma(float a, float b, float c, int mode) {
    const int before = std::fegetround();
    std::fesetround(mode);
    volatile float x = a;
    volatile float y = b;
    volatile float z = c;
    volatile float result = std::fma(x, y, z);
    std::fesetround(before);
    return result;
}

double rounded_add(double a, double b, int mode) {
    const int before = std::fegetround();
    std::fesetround(mode);
    volatile double x = a;
    volatile double y = b;
    volatile double result = x + y;
    std::fesetround(before);
    return result;
}

}  // namespace emulation

cudaError_t cudaGetLastError() {
    return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaSuccess             ? "no error"
                                              : "invalid argument";
}

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
    return cudaSetDevice(device);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = emulation::properties.num_sms; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emulation::properties.shared_of_block; break;
        case cudaDevAttrComputeCapabilityMajor: *value = emulation::properties.compute_capability / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = emulation::properties.compute_capability % 10; break;
    }
    return cudaSetDevice(device);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    return cudaRuntimeGetVersion(version);
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
    *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*data == nullptr) return cudaErrorMemoryAllocation;
    const std::scoped_lock lock(mutex);
    allocations[static_cast<const char*>(*data)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
    const std::scoped_lock lock(mutex);
    allocations.erase(static_cast<const char*>(data));
    std::free(data);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
    if (bytes > 0) std::memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
    const std::scoped_lock lock(mutex);
    const auto* p = static_cast<const char*>(data);
    const auto after = allocations.upper_bound(p);
    const bool is_ours = after != allocations.begin() && p < std::prev(after)->first + std::prev(after)->second;
    *attributes = {is_ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0, const_cast<void*>(data),
                   const_cast<void*>(data)};
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = nullptr;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) {
    return cudaSuccess;
}
