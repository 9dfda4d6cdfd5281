// Sorting by some bits of a key, for the emulated GPU.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void* scratch, std::size_t& bytes, const Key* keys, Key* sorted_keys,
                                 const Value* values, Value* sorted_values, Count count, int begin_bit = 0,
                                 int end_bit = sizeof(Key) * 8, cudaStream_t = nullptr) {
        if (scratch == nullptr) {
            bytes = 1;
            return cudaSuccess;
        }
        const auto digits = [&](Key key) {
            const int num = end_bit - begin_bit;
            const Key cut = static_cast<Key>(key >> begin_bit);
            return num >= static_cast<int>(sizeof(Key) * 8) ? cut : static_cast<Key>(cut & ((Key{1} << num) - 1));
        };
        std::vector<Count> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), Count{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](Count a, Count b) { return digits(keys[a]) < digits(keys[b]); });
        for (std::size_t i = 0; i < order.size(); ++i) {
            sorted_keys[i] = keys[order[i]];
            sorted_values[i] = values[order[i]];
        }
        return cudaSuccess;
    }
};

}  // namespace cub
