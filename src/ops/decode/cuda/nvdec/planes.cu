#include "core/cuda/check.hpp"
#include "ops/decode/cuda/nvdec/planes.hpp"

namespace robocache::decode_detail {

namespace {

struct PlanesCall {
    const std::uint8_t* y;
    const std::uint8_t* uv;
    std::int64_t pitch;
    std::int64_t half_width, half_height;
    std::uint8_t* out;
};

/// A thread has one sample of U and V, and the 2 x 2 samples of Y that belong to it. Rows of a surface begin at
/// multiples of 256 bytes and columns are even, so pairs are aligned; `out` may begin anywhere.
__global__ void planes_of_nv12(PlanesCall call) {
    const std::int64_t x = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::int64_t y = std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
    if (x >= call.half_width || y >= call.half_height) return;
    const std::int64_t width = 2 * call.half_width;
    const std::int64_t num_luma = 2 * call.half_height * width;
    const std::int64_t num_chroma = call.half_height * call.half_width;
    const uchar2 above = *reinterpret_cast<const uchar2*>(call.y + 2 * y * call.pitch + 2 * x);
    const uchar2 below = *reinterpret_cast<const uchar2*>(call.y + (2 * y + 1) * call.pitch + 2 * x);
    const uchar2 chroma = *reinterpret_cast<const uchar2*>(call.uv + y * call.pitch + 2 * x);
    std::uint8_t* luma = call.out + 2 * y * width + 2 * x;
    luma[0] = above.x;
    luma[1] = above.y;
    luma[width] = below.x;
    luma[width + 1] = below.y;
    call.out[num_luma + y * call.half_width + x] = chroma.x;
    call.out[num_luma + num_chroma + y * call.half_width + x] = chroma.y;
}

}  // namespace

void queue_planes(const Surface& surface, int width, int height, std::uint8_t* out, cudaStream_t stream) {
    const auto* data = reinterpret_cast<const std::uint8_t*>(surface.data);
    const PlanesCall call{data + surface.top * surface.pitch + surface.left,
                          data + (surface.num_rows + surface.top / 2) * surface.pitch + surface.left,
                          static_cast<std::int64_t>(surface.pitch),
                          width / 2,
                          height / 2,
                          out};
    const dim3 threads(32, 8);
    const dim3 blocks((static_cast<unsigned>(width) / 2 + 31) / 32, (static_cast<unsigned>(height) / 2 + 7) / 8);
    planes_of_nv12<<<blocks, threads, 0, stream>>>(call);
    check_cuda(cudaGetLastError(), "planes_of_nv12");
}

}  // namespace robocache::decode_detail
