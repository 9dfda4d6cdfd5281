// In the place of src/core/cuda/device.hpp, which keeps what it has read: tests change the emulated GPU between two
// calls.
#pragma once

#include <cstdint>

#include "core/cuda/check.hpp"
#include "gpu.hpp"

namespace robocache {

inline int compute_capability() {
    return emulation::properties.compute_capability;
}

inline std::int64_t num_sms() {
    return emulation::properties.num_sms;
}

inline std::int64_t shared_of_block() {
    return emulation::properties.shared_of_block;
}

}  // namespace robocache
