// The contract of what points come from: clouds, depth images and their features.
#include "ops/voxelize/contract/source_rules.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace robocache::voxelize_detail {

// ---- words ----------------------------------------------------------------------------------------------------------

std::string field(std::string_view of, std::string_view name) {
    return std::string(of) + "." + std::string(name);
}

namespace {

/// "float32, float16 or float64".
std::string choices(std::initializer_list<DType> dtypes) {
    std::string list;
    std::size_t left = dtypes.size();
    for (const DType dtype : dtypes) {
        list += name(dtype);
        if (--left > 0) list += left == 1 ? " or " : ", ";
    }
    return list;
}

}  // namespace

void require_one_of(const Names& names, const ArgumentName& argument, DType given,
                    std::initializer_list<DType> dtypes) {
    if (std::find(dtypes.begin(), dtypes.end(), given) != dtypes.end()) return;
    // The option is a dtype; an array has one.
    const char* rule = argument.name == names.dtype ? "be " : "have dtype ";
    fail(names.op, argument, rule + choices(dtypes), name(given));
}

std::string text_of(const Shape& shape) {
    TensorView view;
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    return shape_text(view);
}

void require_shape(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape) {
    if (tensor.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.shape.begin())) {
        return;
    }
    fail(names.op, argument, "have shape " + text_of(shape), shape_text(tensor));
}

void require_contiguous(const Names& names, const ArgumentName& argument, const TensorView& tensor) {
    std::int64_t stride = 1;
    for (int d = tensor.rank - 1; d >= 0; --d) {
        if (tensor.shape[d] > 1 && tensor.strides[d] != stride && tensor.num_elements() > 0) {
            fail(names.op, argument, "be C-contiguous",
                 "stride " + std::to_string(tensor.strides[d]) + " in dimension " + std::to_string(d));
        }
        stride *= tensor.shape[d];
    }
}

void require_output(const Names& names, const ArgumentName& argument, const TensorView& tensor, const Shape& shape,
                    Device device) {
    require_shape(names, argument, tensor, shape);
    require_device(names.op, argument, tensor, device);
    require_contiguous(names, argument, tensor);
    require_not_null(names.op, argument, tensor);
}

// ---- points and features --------------------------------------------------------------------------------------------

Source plan_points(const PointsView& view, const Names& names) {
    const TensorView& points = view.points;
    require_rank(names.op, names.points, points, 2);
    if (points.shape[1] != 3) fail(names.op, names.points, "have shape (N, 3)", shape_text(points));
    require_one_of(names, names.points, points.dtype, {DType::f32, DType::f16, DType::f64});
    Source source;
    const std::int64_t element = size_bytes(points.dtype);
    source.points.data = static_cast<const char*>(points.data);
    source.points.dtype = points.dtype;
    source.points.row_stride = points.strides[0] * element;
    source.points.axis_stride = points.strides[1] * element;
    source.num_points = points.shape[0];
    if (!view.offsets) return source;
    const TensorView& offsets = *view.offsets;
    require_rank(names.op, names.offsets, offsets, 1);
    require_dtype(names.op, names.offsets, offsets, DType::i64);
    require_device(names.op, names.offsets, offsets, points.device);
    if (offsets.shape[0] < 1) fail(names.op, names.offsets, "have shape (clouds + 1,)", shape_text(offsets));
    source.points.offsets = static_cast<const std::int64_t*>(offsets.data);
    source.points.offsets_stride = offsets.strides[0];
    source.num_clouds = offsets.shape[0] - 1;
    source.batched = true;
    return source;
}

namespace {

FeaturesPlan plan_features(const TensorView& features, const Shape& rows, Device device, const Names& names) {
    require_rank(names.op, names.features, features, static_cast<int>(rows.size()) + 1);
    Shape expected = rows;
    expected.push_back(features.shape[features.rank - 1]);
    require_shape(names, names.features, features, expected);
    require_one_of(names, names.features, features.dtype, {DType::f32, DType::f16, DType::bf16, DType::u8});
    require_device(names.op, names.features, features, device);
    FeaturesPlan plan;
    plan.data = static_cast<const char*>(features.data);
    plan.dtype = features.dtype;
    plan.num_channels = expected.back();
    plan.channel_stride = features.strides[features.rank - 1] * size_bytes(features.dtype);
    return plan;
}

}  // namespace

std::string reduction_choices(bool (*is_included)(const ReductionTraits&)) {
    std::string choices;
    std::string_view last;
    for (const ReductionTraits& traits : reductions) {
        if (!is_included(traits)) continue;
        if (!last.empty()) choices += (choices.empty() ? "" : ", ") + std::string(last);
        last = traits.name;
    }
    return (choices.empty() ? "" : choices + " or ") + std::string(last);
}

void require_features(bool given, Reduction reduction, const Names& names) {
    if (reduces_features(reduction) && !given) {
        throw InvalidArgument(std::string(names.op) + ": " + std::string(names.features) + " must be given for " +
                              std::string(names.reduction) + " '" + std::string(reduction_name(reduction)) + "'");
    }
    if (!reduces_features(reduction) && given) {
        const auto included = [](const ReductionTraits& traits) { return traits.family != ReductionFamily::count; };
        fail(names.op, names.reduction, "be " + reduction_choices(included) + " where features are given",
             "'" + std::string(reduction_name(reduction)) + "'");
    }
}

FeaturesPlan plan_features_of_points(const PointsView& view, const Source& source, const Names& names) {
    FeaturesPlan plan = plan_features(*view.features, {source.num_points}, view.points.device, names);
    plan.strides[3] = view.features->strides[0] * size_bytes(plan.dtype);
    return plan;
}

void require_feature_output(const Names& names, const ArgumentName& argument, DType given, DType features) {
    if (features == DType::f32 || features == DType::u8) {
        require_one_of(names, argument, given, {DType::f32});
    } else {
        require_one_of(names, argument, given, {features, DType::f32});
    }
}

// ---- depth images ---------------------------------------------------------------------------------------------------

namespace {

/// One matrix for all images, or one for each: the strides of depth's leading dimensions, then row and column.
void plan_matrices(const TensorView& matrices, const std::string_view argument, int size, const DepthView& view,
                   std::int64_t strides[4], const Names& names) {
    const TensorView& depth = view.depth;
    const int leading = depth.rank - 2;
    Shape each(depth.shape.begin(), depth.shape.begin() + leading);
    each.insert(each.end(), {size, size});
    const bool shared = matrices.rank == 2 || leading == 0;
    if (shared) {
        require_shape(names, argument, matrices, {size, size});
    } else if (matrices.rank != depth.rank || !std::equal(each.begin(), each.end(), matrices.shape.begin())) {
        fail(names.op, argument, "have shape " + text_of({size, size}) + " or " + text_of(each), shape_text(matrices));
    }
    require_dtype(names.op, argument, matrices, DType::f32);
    require_device(names.op, argument, matrices, depth.device);
    strides[2] = matrices.strides[matrices.rank - 2];
    strides[3] = matrices.strides[matrices.rank - 1];
    if (shared) return;
    if (view.views) strides[1] = matrices.strides[leading - 1];
    if (leading == (view.views ? 2 : 1)) strides[0] = matrices.strides[0];
}

float require_length(double length, std::string_view argument, const Names& names) {
    if (!(length >= 0) || !std::isfinite(length) || !std::isfinite(static_cast<float>(length)) ||
        (length > 0 && static_cast<float>(length) == 0)) {
        fail(names.op, argument, "be positive and finite in float32, or 0", number_text(length));
    }
    return static_cast<float>(length);
}

}  // namespace

bool plan_depth(DensePlan& plan, const DepthView& view, const Names& names) {
    const TensorView& depth = view.depth;
    const int least = view.views ? 3 : 2;
    if (depth.rank != least && depth.rank != least + 1) {
        fail(names.op, names.depth,
             view.views ? "have shape (V, H, W) or (B, V, H, W)" : "have shape (H, W) or (B, H, W)", shape_text(depth));
    }
    require_one_of(names, names.depth, depth.dtype, {DType::u16, DType::f32});
    const bool batched = depth.rank == least + 1;
    DepthPlan& to = plan.depth;
    const std::int64_t element = size_bytes(depth.dtype);
    to.data = static_cast<const char*>(depth.data);
    to.dtype = depth.dtype;
    to.height = depth.shape[depth.rank - 2];
    to.width = depth.shape[depth.rank - 1];
    to.strides[2] = depth.strides[depth.rank - 2] * element;
    to.strides[3] = depth.strides[depth.rank - 1] * element;
    if (view.views) {
        to.num_views = depth.shape[depth.rank - 3];
        to.strides[1] = depth.strides[depth.rank - 3] * element;
    }
    if (batched) {
        plan.num_clouds = depth.shape[0];
        to.strides[0] = depth.strides[0] * element;
    }
    plan.num_points = depth.num_elements();
    plan_matrices(view.intrinsics, names.intrinsics, 3, view, to.intrinsics_strides, names);
    to.intrinsics = static_cast<const float*>(view.intrinsics.data);
    if (view.pose) {
        plan_matrices(*view.pose, names.pose, 4, view, to.pose_strides, names);
        to.pose = static_cast<const float*>(view.pose->data);
    }
    const float unit = require_length(view.unit, names.unit, names);
    to.unit = unit > 0 ? unit : (depth.dtype == DType::u16 ? 0.001F : 1.0F);
    const float max_depth = require_length(view.max_depth, names.max_depth, names);
    to.max_depth = max_depth > 0 ? max_depth : std::numeric_limits<float>::max();
    return batched;
}

FeaturesPlan plan_features_of_depth(const DepthView& view, const Names& names) {
    const TensorView& depth = view.depth;
    const Shape rows(depth.shape.begin(), depth.shape.begin() + depth.rank);
    FeaturesPlan plan = plan_features(*view.features, rows, depth.device, names);
    const TensorView& features = *view.features;
    const std::int64_t element = size_bytes(plan.dtype);
    plan.strides[2] = features.strides[depth.rank - 2] * element;
    plan.strides[3] = features.strides[depth.rank - 1] * element;
    if (view.views) plan.strides[1] = features.strides[depth.rank - 3] * element;
    if (depth.rank == (view.views ? 4 : 3)) plan.strides[0] = features.strides[0] * element;
    return plan;
}

}  // namespace robocache::voxelize_detail
