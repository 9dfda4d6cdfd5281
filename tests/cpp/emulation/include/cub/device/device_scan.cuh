// Sums along an array, for the emulated GPU.
#pragma once

#include <iterator>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

struct DeviceScan {
    template <class In, class Out, class Count>
    static cudaError_t ExclusiveSum(void* scratch, std::size_t& bytes, In in, Out out, Count count,
                                    cudaStream_t = nullptr) {
        return sum(scratch, bytes, in, out, count, true);
    }
    template <class In, class Out, class Count>
    static cudaError_t InclusiveSum(void* scratch, std::size_t& bytes, In in, Out out, Count count,
                                    cudaStream_t = nullptr) {
        return sum(scratch, bytes, in, out, count, false);
    }

private:
    template <class In, class Out, class Count>
    static cudaError_t sum(void* scratch, std::size_t& bytes, In in, Out out, Count count, bool exclusive) {
        if (scratch == nullptr) {
            bytes = 1;
            return cudaSuccess;
        }
        using T = std::remove_cvref_t<decltype(in[0])>;
        T total{};
        for (Count i = 0; i < count; ++i) {
            const T value = in[i];
            if (exclusive) out[i] = total;
            total = static_cast<T>(total + value);
            if (!exclusive) out[i] = total;
        }
        return cudaSuccess;
    }
};

}  // namespace cub
