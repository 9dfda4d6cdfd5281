// The inner loops of compose and accumulate_moments on the CPU, once for each instruction set.
#pragma once

#include "batch/feature/plan.hpp"

namespace robocache::loader_detail {

/// Rows of accumulate_moments that are summed together: where a sum ends does not depend on the number of threads.
inline constexpr std::int64_t moment_rows = 512;

/// Of a chunk of rows: six numbers for each channel, as accumulate_moments has them.
struct MomentChunk {
    const void* values;
    DType dtype;
    const bool* padding;  // null: none
    std::int64_t num_rows;
    std::int64_t num_channels;
    double* moments;
};

struct FeatureKernels {
    void (*compose)(const FeatureUnit& unit, std::int64_t begin, std::int64_t end);
    void (*moments)(const MomentChunk& chunk);
};

/// The fastest ones here.
const FeatureKernels& best_feature_kernels();

const FeatureKernels& feature_kernels_baseline();
const FeatureKernels& feature_kernels_x86_64_v3();

}  // namespace robocache::loader_detail
