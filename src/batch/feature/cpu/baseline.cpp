// The loops of features for the compiler's own target.
#include "batch/feature/cpu/kernels_impl.hpp"

namespace robocache::loader_detail {

const FeatureKernels& feature_kernels_baseline() {
    return kernels;
}

}  // namespace robocache::loader_detail
