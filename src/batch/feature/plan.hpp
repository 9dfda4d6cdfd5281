// Validated features, ready for any backend: plain numbers and pointers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/feature/rotations.hpp"
#include "batch/order.hpp"
#include "robocache/feature.hpp"
#include "robocache/loader.hpp"

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

/// Where a reader has an operand of a sample: so many bytes after the first row of a column.
struct OperandPlace {
    std::int64_t column = -1;  // -1: there is no operand
    std::int64_t offset_bytes = 0;
};

/// A feature that a reader composes sample by sample: units without the addresses of their rows and outputs.
struct ReaderFeature {
    std::vector<FeatureUnit> units;
    std::vector<std::array<OperandPlace, 4>> places;  // values, turn, from_values, from_turn of each unit
    std::vector<std::int64_t> out_bytes;              // from a row of the output to the first channel of each unit
    std::vector<ColumnChannels> paddings;
    DType dtype = DType::f32;
    std::int64_t num_moments = 0;
    std::int64_t width = 0;
    bool has_sources = false;  // units take offset and scale of the source of a sample
};

/// What a reader has of a column for one sample: (T, C).
struct ColumnRows {
    std::int64_t num_moments;
    std::int64_t num_channels;
    DType dtype;
};

/// The contract of compose for features of a reader. num_sources: those that episodes have names for; 0: no names.
[[nodiscard]] std::vector<ReaderFeature> plan_reader_features(std::span<const BatchFeature> features,
                                                              std::span<const ColumnRows> columns,
                                                              std::int64_t num_sources);

/// Roughly how long the units of a moment take on the CPU, in picoseconds.
[[nodiscard]] std::int64_t moment_ps(const FeatureUnit& unit);

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
