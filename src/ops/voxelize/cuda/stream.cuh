// Points that stream into shared memory ahead of the work on them (bulk copies, compute capability 9.0 on).
#pragma once

#include <cstdint>

#include "core/cuda/bulk.cuh"
#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

constexpr int part_points = 128;  // that a warp takes at a time
constexpr int part_bytes = part_points * 12;
constexpr int ring_parts = 3;  // of each warp, on their way or waiting

/// Points (N, 3) of f32 without gaps, aligned to 16 bytes, in tiles that are all of the same size.
struct PointStream {
    const char* data;
    std::int64_t num_tiles;  // that stream; the last one of a cloud may not
    std::int32_t tile_bytes;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Asks for a part: it will be in shared memory when the barrier, which one thread arrives at, is through.
__device__ __forceinline__ void ask_for_part(void* to, const char* from, std::uint64_t* barrier, std::uint64_t policy) {
    const std::uint32_t at = shared_address(barrier);
    arrive_and_expect(at, part_bytes);
    copy_in(to, from, part_bytes, at, policy);
}
#endif

/// 48 bytes are four points.
__device__ __forceinline__ void split_four(const float4 (&all)[3], float (*p)[3]) {
    const float flat[12] = {all[0].x, all[0].y, all[0].z, all[0].w, all[1].x, all[1].y,
                            all[1].z, all[1].w, all[2].x, all[2].y, all[2].z, all[2].w};
#pragma unroll
    for (int i = 0; i < 12; ++i) p[i / 3][i % 3] = flat[i];
}

/// Four points of 12 bytes, side by side and aligned to 16.
__device__ __forceinline__ void read_four(const char* from, float (*p)[3]) {
    float4 all[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) all[i] = __ldg(reinterpret_cast<const float4*>(from) + i);
    split_four(all, p);
}

/// A warp's view of its share of the tiles that its block takes in turn.
class Ring {
public:
    __device__ Ring(const PointStream& stream, char* parts, std::uint64_t* barriers, std::int32_t parts_of_tile,
                    std::int32_t warp)
        : stream_(stream),
          parts_(parts),
          barriers_(barriers),
          parts_of_tile_(parts_of_tile),
          from_(stream.data + static_cast<std::int64_t>(blockIdx.x) * stream.tile_bytes +
                warp * parts_of_tile * part_bytes) {
        const std::int64_t tiles = (stream.num_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
        left_ = blockIdx.x < stream.num_tiles ? static_cast<std::int32_t>(tiles) * parts_of_tile : 0;
        is_leader_ = threadIdx.x % 32 == 0;
    }

    __device__ void set_up() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (is_leader_ && left_ > 0) {
            for (int k = 0; k < ring_parts; ++k) {
                init_barrier(shared_address(barriers_ + k), 1);
                init_barrier(shared_address(barriers_ + ring_parts + k), 32);
            }
            publish_barriers();
            show_to_copies();
        }
#endif
    }

    /// May be called before earlier work has finished: what the cache is asked for decides nothing.
    __device__ void ask_ahead() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (is_leader_ && left_ > 0) prefetch(from_, parts_of_tile_ * part_bytes);
#endif
    }

    __device__ void begin() {
        __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        read_once_ = used_once_policy();  // so that keys stay in the cache
#endif
        for (int k = 0; k < ring_parts; ++k) fill(k);
    }

    /// Four points of each lane: 4 l ... 4 l + 3 of the warp's next part.
    __device__ __forceinline__ void take(float (*p)[3]) {
        float4 all[3];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        await_barrier(shared_address(barriers_ + slot_), phase_);
        const char* from = parts_ + slot_ * part_bytes + threadIdx.x % 32 * 48;
#pragma unroll
        for (int i = 0; i < 3; ++i) all[i] = reinterpret_cast<const float4*>(from)[i];
        // A copy does not wait behind reads that are still on their way: it may begin when they are known to be done.
        arrive(shared_address(barriers_ + ring_parts + slot_));
#else
        const char* from = from_ + threadIdx.x % 32 * 48;
#pragma unroll
        for (int i = 0; i < 3; ++i) all[i] = __ldg(reinterpret_cast<const float4*>(from) + i);
        advance();
#endif
        split_four(all, p);
    }

    /// To be called after each take, when its points have been worked on: asks for the part that comes into their
    /// place.
    __device__ __forceinline__ void refill() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (is_leader_ && left_ > 0) await_barrier(shared_address(barriers_ + ring_parts + slot_), phase_);
        fill(slot_);
        if (++slot_ == ring_parts) {
            slot_ = 0;
            phase_ ^= 1U;
        }
#endif
    }

private:
    /// Asks for the next part, where there is one.
    __device__ __forceinline__ void fill(int slot) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (is_leader_ && left_ > 0) {
            ask_for_part(parts_ + slot * part_bytes, from_, barriers_ + slot, read_once_);
            --left_;
            advance();
        }
#endif
    }

    __device__ __forceinline__ void advance() {
        from_ += part_bytes;
        if (++part_ == parts_of_tile_) {
            part_ = 0;
            from_ += static_cast<std::int64_t>(gridDim.x) * stream_.tile_bytes - parts_of_tile_ * part_bytes;
        }
    }

    const PointStream& stream_;
    char* parts_;
    std::uint64_t* barriers_;
    std::int32_t parts_of_tile_;
    const char* from_;
    std::uint64_t read_once_ = 0;
    std::int32_t left_;  // parts to ask for
    std::int32_t part_ = 0;
    std::int32_t slot_ = 0;
    std::uint32_t phase_ = 0;
    bool is_leader_;
};

}  // namespace robocache::voxelize_detail
