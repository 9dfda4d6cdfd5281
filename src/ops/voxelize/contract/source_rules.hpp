// The contract of what points come from, and the words of voxelize's messages.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/contract.hpp"
#include "ops/voxelize/contract/plan.hpp"

namespace robocache::voxelize_detail {

using Shape = std::vector<std::int64_t>;

[[nodiscard]] std::string text_of(const Shape& shape);
/// "output.grid".
[[nodiscard]] std::string field(std::string_view of, std::string_view name);

void require_one_of(const Names& names, const ArgumentName& argument, DType given, std::initializer_list<DType> dtypes);
void require_shape(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape);
void require_contiguous(const Names& names, const ArgumentName& argument, const TensorView& tensor);
/// An output: its shape, its device, C-contiguous.
void require_output(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape,
                    Device device);

struct Source {
    PointsPlan points;
    std::int64_t num_points = 0;
    std::int64_t num_clouds = 1;
    bool batched = false;
};

[[nodiscard]] Source plan_points(const PointsView& view, const Names& names);
[[nodiscard]] FeaturesPlan plan_features_of_points(const PointsView& view, const Source& source, const Names& names);
/// Fills the source part of the plan; returns whether there is a batch.
[[nodiscard]] bool plan_depth(DensePlan& plan, const DepthView& view, const Names& names);
[[nodiscard]] FeaturesPlan plan_features_of_depth(const DepthView& view, const Names& names);

/// The names of some reductions: "min or max".
[[nodiscard]] std::string reduction_choices(bool (*is_included)(const ReductionTraits&));
/// Features go with the reductions that read them, and only with those.
void require_features(bool given, Reduction reduction, const Names& names);
/// A grid of features, or their row in a sparse output: their own dtype (u8 has none), or f32.
void require_feature_output(const Names& names, const ArgumentName& argument, DType given, DType features);

}  // namespace robocache::voxelize_detail
