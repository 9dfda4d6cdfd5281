// Sums along a warp, for the emulated GPU.
#pragma once

#include "cuda_runtime.h"

namespace cub {

template <class T, int lanes = 32>
struct WarpScan {
    static_assert(lanes == 32);
    struct TempStorage {};
    explicit WarpScan(TempStorage&) {}

    void ExclusiveSum(T value, T& before, T& all) {
        const auto& values = emulation::exchange(0xffffffffU, &value, sizeof(T), "cub::WarpScan");
        T sum{};
        for (unsigned l = 0; l < 32; ++l) {
            if (l == emulation::lane()) before = sum;
            sum += emulation::value_of<T>(values, l);
        }
        all = sum;
    }
    void ExclusiveSum(T value, T& before) {
        T all;
        ExclusiveSum(value, before, all);
    }
    void InclusiveSum(T value, T& sum) {
        T before;
        const T mine = value;
        ExclusiveSum(value, before);
        sum = before + mine;
    }
};

}  // namespace cub
