// Validated features, ready for any backend: plain numbers and pointers.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/feature/rotations.hpp"
#include "batch/order.hpp"
#include "robocache/feature.hpp"

namespace robocache::loader_detail {

/// Channels of sample b at moment t: data[b * sample_stride + t * row_stride + c].
struct Operand {
    const void* data = nullptr;  // at the first channel; null: there is none
    std::int64_t sample_stride = 0;
    std::int64_t row_stride = 0;  // 0: one moment for all
    DType dtype = DType::f32;

    ROBOCACHE_HD bool is_there() const { return data != nullptr; }
};

/// A part of a feature, and where it goes.
struct FeatureUnit {
    FeatureMath math;
    RotationForm stored;
    RotationForm form;
    DType dtype;  // of the output
    std::int32_t num_channels;
    std::int32_t width;  // channels of the output's rows
    double period;
    std::int64_t num_moments;
    Operand values, turn, from_values, from_turn;
    void* out;             // at the first channel of the part
    const double* offset;  // the same; null: not scaled
    const double* scale;
    const std::int64_t* source;  // null: the first row of offset and scale
};

/// bool (B, T): whether one of the inputs is set.
struct PaddingUnit {
    std::int32_t first_input;
    std::int32_t end_input;
    std::int64_t num_moments;
    bool* out;
};

struct FeaturesPlan {
    Device device;
    std::int64_t num_samples = 0;
    std::vector<FeatureUnit> units;
    std::vector<PaddingUnit> paddings;
    std::vector<Operand> padding_inputs;
};

/// The nearest float64: more is computed with it, so the rounding to odd of `widen` would be an error of 2048.
template <class T>
ROBOCACHE_HD double as_double(T x) {
    if constexpr (sizeof(T) == 8) {
        return static_cast<double>(x);
    } else {
        return static_cast<double>(align_detail::widen(x));
    }
}

void compose_cpu(const FeaturesPlan& plan);
void compose_cuda(const FeaturesPlan& plan, CudaQueue queue);

}  // namespace robocache::loader_detail
