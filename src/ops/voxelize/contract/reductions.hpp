// The reductions of voxelize: what each is, once. How they are computed: rounds.hpp.
#pragma once

#include <cstddef>

#include "robocache/voxelize.hpp"

namespace robocache::voxelize_detail {

/// In the order of Reduction.
inline constexpr ReductionTraits reductions[] = {
    {Reduction::occupancy, "occupancy", ReductionFamily::count, false, ReductionGradient::none},
    {Reduction::count, "count", ReductionFamily::count, false, ReductionGradient::none},
    {Reduction::sum, "sum", ReductionFamily::sum, false, ReductionGradient::cells},
    {Reduction::mean, "mean", ReductionFamily::sum, false, ReductionGradient::cells},
    {Reduction::min, "min", ReductionFamily::extreme, true, ReductionGradient::values},
    {Reduction::max, "max", ReductionFamily::extreme, true, ReductionGradient::values},
    {Reduction::std, "std", ReductionFamily::deviation, true, ReductionGradient::features},
};

consteval bool reductions_are_in_order() {
    unsigned i = 0;
    for (const ReductionTraits& traits : reductions) {
        if (static_cast<unsigned>(traits.reduction) != i++) return false;
    }
    return true;
}
static_assert(reductions_are_in_order());

constexpr const ReductionTraits& traits_of(Reduction reduction) {
    return reductions[static_cast<std::size_t>(reduction)];
}

constexpr bool reduces_features(Reduction reduction) {
    return traits_of(reduction).family != ReductionFamily::count;
}

}  // namespace robocache::voxelize_detail
