// Frames out of a decoder: NV12 to planes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/decode/cuda/nvdec/session.hpp"

namespace robocache::decode_detail {

/// Queues the copy of `width` x `height` pixels (both even) of a surface to `out`: Y, then U, then V, without padding.
void queue_planes(const Surface& surface, int width, int height, std::uint8_t* out, cudaStream_t stream);

}  // namespace robocache::decode_detail
