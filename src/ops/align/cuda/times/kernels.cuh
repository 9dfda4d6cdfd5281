// The kernels of align for one type of time. Included by one source file per type, since they take long to compile.
#pragma once

#include "ops/align/cuda/general.cuh"
#include "ops/align/cuda/rows.cuh"
#include "ops/align/cuda/short.cuh"

namespace robocache::align_detail {

template <class Time>
AlignKernels kernels_of() {
    return {align_rows<Time, few_streams>,  align_rows<Time, max_streams>, align_general<Time>,
            align_short<Time, float, 0>,    align_short<Time, Half, 0>,    align_short<Time, Half, 7>,
            align_short<Time, BFloat16, 0>, align_short<Time, BFloat16, 7>};
}

}  // namespace robocache::align_detail
