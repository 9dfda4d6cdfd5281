// Asks the CUDA runtime what is there. Called on request only: loading the library makes no CUDA call.
#include <cuda_runtime_api.h>

#include "robocache/system.hpp"

namespace robocache {

CudaStatus cuda_status() {
    CudaStatus status;
    status.compiled = true;
    if (cudaRuntimeGetVersion(&status.runtime_version) != cudaSuccess) status.runtime_version = 0;
    if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess) status.driver_version = 0;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();  // no GPU is not an error anyone else should see
        status.reason = status.driver_version == 0 ? "no CUDA driver on this machine"
                        : error == cudaSuccess     ? "no CUDA device on this machine"
                                                   : cudaGetErrorString(error);
        return status;
    }
    for (int device = 0; device < count; ++device) {
        cudaDeviceProp properties;
        const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
        status.devices.emplace_back(known ? properties.name : "unknown");
    }
    status.available = true;
    return status;
}

}  // namespace robocache
