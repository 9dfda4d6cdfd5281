// Points that stream into shared memory ahead of the work on them (bulk copies, compute capability 9.0 on).
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

/// Points (N, 3) of f32 without gaps, aligned to 16 bytes, in tiles of the same size; the last tile of a cloud may not
/// stream.
struct PointStream {
    const char* data = nullptr;
    std::int64_t num_tiles = 0;
    std::int32_t tile_bytes = 0;
};

inline bool can_stream(const PointsPlan& points) {
    return points.dtype == DType::f32 && points.row_stride == 12 && points.axis_stride == 4 &&
           reinterpret_cast<std::uintptr_t>(points.data) % 16 == 0;
}

/// Four points of 12 bytes, contiguous and aligned to 16 bytes. `global`: read through the read-only cache.
template <bool global>
__device__ __forceinline__ void read_four(const void* from, float (*p)[3]) {
    const auto* fours = static_cast<const float4*>(from);
    float4 all[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) all[i] = global ? __ldg(fours + i) : fours[i];
    const float flat[12] = {all[0].x, all[0].y, all[0].z, all[0].w, all[1].x, all[1].y,
                            all[1].z, all[1].w, all[2].x, all[2].y, all[2].z, all[2].w};
#pragma unroll
    for (int i = 0; i < 12; ++i) p[i / 3][i % 3] = flat[i];
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

constexpr bool has_bulk_copies = true;

/// Starts the copy of a part. It is in shared memory when the barrier, at which one thread arrives, completes.
__device__ __forceinline__ void start_part(void* to, const char* from, std::uint64_t* barrier, std::uint64_t policy) {
    const std::uint32_t at = shared_address(barrier);
    arrive_and_expect(at, part_bytes);
    copy_in(to, from, part_bytes, at, policy);
}

/// Prefetches a warp's share of the first tile of a block into L2; may be called before earlier work has finished.
__device__ __forceinline__ void prefetch_share(const PointStream& stream, std::int32_t warp, std::int32_t bytes) {
    if (threadIdx.x % warp_threads != 0 || blockIdx.x >= stream.num_tiles) return;
    prefetch(stream.data + static_cast<std::int64_t>(blockIdx.x) * stream.tile_bytes + warp * bytes, bytes);
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
        is_leader_ = threadIdx.x % warp_threads == 0;
    }

    __device__ void set_up() {
        if (!is_leader_ || left_ == 0) return;
        for (int k = 0; k < ring_parts; ++k) {
            init_barrier(shared_address(barriers_ + k), 1);
            init_barrier(shared_address(barriers_ + ring_parts + k), warp_threads);
        }
        publish_barriers();
        show_to_copies();
    }

    __device__ void begin() {
        __syncwarp();
        read_once_ = used_once_policy();  // so that keys stay in the cache
        for (int k = 0; k < ring_parts; ++k) fill(k);
    }

    /// Four points of each lane: 4 l ... 4 l + 3 of the warp's next part.
    __device__ __forceinline__ void take(float (*p)[3]) {
        await_barrier(shared_address(barriers_ + slot_), phase_);
        read_four<false>(parts_ + slot_ * part_bytes + threadIdx.x % warp_threads * 48, p);
        // The next copy into this part may begin only after all lanes have read it.
        arrive(shared_address(barriers_ + ring_parts + slot_));
    }

    /// To be called after each take, when its points have been used: starts the copy of the part that replaces them.
    __device__ __forceinline__ void refill() {
        if (is_leader_ && left_ > 0) await_barrier(shared_address(barriers_ + ring_parts + slot_), phase_);
        fill(slot_);
        if (++slot_ == ring_parts) {
            slot_ = 0;
            phase_ ^= 1U;
        }
    }

private:
    __device__ __forceinline__ void fill(int slot) {
        if (!is_leader_ || left_ == 0) return;
        start_part(parts_ + slot * part_bytes, from_, barriers_ + slot, read_once_);
        --left_;
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
    std::int32_t left_;  // parts to copy
    std::int32_t part_ = 0;
    std::int32_t slot_ = 0;
    std::uint32_t phase_ = 0;
    bool is_leader_;
};

#else

constexpr bool has_bulk_copies = false;

__device__ __forceinline__ void prefetch_share(const PointStream&, std::int32_t, std::int32_t) {}

/// Not used: points are read from global memory.
struct Ring {
    __device__ Ring(const PointStream&, char*, std::uint64_t*, std::int32_t, std::int32_t) {}
    __device__ void set_up() {}
    __device__ void begin() {}
    __device__ void take(float (*)[3]) {}
    __device__ void refill() {}
};

#endif

}  // namespace robocache::voxelize_detail
