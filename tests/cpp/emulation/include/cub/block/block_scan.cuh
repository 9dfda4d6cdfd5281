// Sums along a block, for the emulated GPU.
#pragma once

#include "cuda_runtime.h"

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_WARP_SCANS };

template <class T, int threads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
struct BlockScan {
    struct TempStorage {
        T values[threads];
    };
    explicit BlockScan(TempStorage& storage) : storage_(storage) {}

    void ExclusiveSum(T value, T& before, T& all) {
        if (blockDim.x != threads || blockDim.y * blockDim.z != 1) emulation::fail("cub::BlockScan of another block");
        storage_.values[threadIdx.x] = value;
        __syncthreads();
        T sum{};
        T until{};
        for (unsigned t = 0; t < threads; ++t) {
            if (t == threadIdx.x) until = sum;
            sum += storage_.values[t];
        }
        before = until;
        all = sum;
        // No barrier: the caller must synchronize before the storage is used again, as with CUB.
    }
    void ExclusiveSum(T value, T& before) {
        T all;
        ExclusiveSum(value, before, all);
    }

private:
    TempStorage& storage_;
};

}  // namespace cub
