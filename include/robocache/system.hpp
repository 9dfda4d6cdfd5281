// Capabilities of this build and this machine. No function here throws because a GPU is missing.
#pragma once

#include <string>
#include <vector>

namespace robocache {

/// "0.1.0".
[[nodiscard]] const char* version() noexcept;

/// The instruction set the CPU kernels use on this machine: "x86-64-v3" or "baseline".
[[nodiscard]] const char* cpu_instruction_set() noexcept;

/// Whether CUDA can be used on this machine now, and if not, why; cuda_status() fills it.
struct CudaStatus {
    bool compiled = false;             ///< this binary contains CUDA code
    bool available = false;            ///< ... and a device can be used now
    int runtime_version = 0;           ///< 13000 for CUDA 13.0; 0 if not compiled
    int driver_version = 0;            ///< 0 without a driver
    std::vector<std::string> devices;  ///< their names
    std::string reason;                ///< why CUDA is not available; empty if it is
};

/// Queries the driver on every call; the first call may take a moment. Never throws for a missing GPU or driver.
[[nodiscard]] CudaStatus cuda_status();

}  // namespace robocache
