// What a validated call of voxelize looks like: plain numbers and pointers, ready for any backend.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/voxelize/contract/kernel.hpp"
#include "ops/voxelize/contract/reductions.hpp"
#include "robocache/voxelize.hpp"

namespace robocache::voxelize_detail {

using Names = VoxelNames;

// ---- where points come from -----------------------------------------------------------------------------------------

/// points[i, a] is at data + i * row_stride + a * axis_stride; strides in bytes.
struct PointsPlan {
    const char* data = nullptr;
    DType dtype = DType::f32;  // f32, f16 or f64
    std::int64_t row_stride = 0;
    std::int64_t axis_stride = 0;
    const std::int64_t* offsets = nullptr;  // null: one cloud
    std::int64_t offsets_stride = 0;        // elements
};

/// Pixel (b, w, v, u), b the cloud and w the view, is point ((b * num_views + w) * height + v) * width + u.
struct DepthPlan {
    const char* data = nullptr;
    DType dtype = DType::f32;  // f32 or u16
    std::int64_t num_views = 1;
    std::int64_t height = 0;
    std::int64_t width = 0;
    std::int64_t strides[4] = {};  // bytes: cloud, view, row, column; 0 where there is no such dimension

    const float* intrinsics = nullptr;        // never null
    std::int64_t intrinsics_strides[4] = {};  // elements: cloud, view, row, column
    const float* pose = nullptr;              // null: the camera is the grid's frame
    std::int64_t pose_strides[4] = {};

    float unit = 1;       // meters of depth 1
    float max_depth = 0;  // the largest float where there is no limit
};

/// Channel c of point i is at data + i * strides[3] + c * channel_stride; of a pixel at data + its four indices times
/// their strides. All strides in bytes.
struct FeaturesPlan {
    const char* data = nullptr;
    DType dtype = DType::f32;  // f32, f16, bf16 or u8
    std::int64_t num_channels = 0;
    std::int64_t strides[4] = {};
    std::int64_t channel_stride = 0;
};

// ---- the grid -------------------------------------------------------------------------------------------------------

struct GridPlan {
    std::int64_t shape[3] = {0, 0, 0};  // zeros: unbounded (sparse only)
    std::int64_t num_cells = 0;         // of one cloud; 0: unbounded
    KeyBits key_bits{};                 // unbounded only
    CellGrid<float> f32{};              // for f32, f16 and depth
    CellGrid<double> f64{};             // for f64 points
};

// ---- the operations -------------------------------------------------------------------------------------------------

/// Which kernels a dense grid on CUDA takes.
enum class DensePath : std::uint8_t { bins, slots, own, marks };

/// Points or depth images to a dense grid. Outputs are C-contiguous, cell index = linear_index(grid.shape, cloud,
/// cell).
struct DensePlan {
    Device device;
    bool from_depth = false;  // `depth` is the source, else `points`
    PointsPlan points;
    DepthPlan depth;
    FeaturesPlan features;        // num_channels 0 and data null: occupancy and count
    std::int64_t num_points = 0;  // N, or clouds * views * height * width
    std::int64_t num_clouds = 1;

    GridPlan grid;
    Reduction reduction = Reduction::occupancy;
    bool deterministic = false;
    bool check = true;  // offsets; done before a backend is called
    float fill = 0;     // of cells without points: narrow<Out>(fill) is the fill rounded once

    void* out = nullptr;  // (clouds, X, Y, Z) or (clouds, X, Y, Z, channels)
    DType out_dtype = DType::i32;
    std::int32_t* counts = nullptr;   // (clouds, X, Y, Z); null: not requested
    bool wants_counts = false;        // counts will not be null when the plan is run
    std::int64_t* dropped = nullptr;  // (clouds,)
    Workspace workspace;
    DensePath path = DensePath::bins;  // CUDA; chosen once, by plan_voxelize_cuda

    [[nodiscard]] constexpr std::int64_t total_cells() const { return num_clouds * grid.num_cells; }
    [[nodiscard]] bool has_features() const { return reduces_features(reduction); }
};

struct SparsePlan {
    Device device;
    PointsPlan points;
    FeaturesPlan features;
    std::int64_t num_points = 0;
    std::int64_t num_clouds = 1;

    GridPlan grid;
    Reduction reduction = Reduction::mean;
    bool deterministic = false;
    bool check = true;

    std::int64_t capacity = 0;
    std::int32_t* coordinates = nullptr;  // (capacity, 4)
    void* out = nullptr;                  // (capacity, channels); null: no features
    DType out_dtype = DType::f32;
    std::int32_t* counts = nullptr;        // (capacity,)
    std::int64_t* voxel = nullptr;         // (N,); -1 also where the cell did not fit
    std::int64_t* first_points = nullptr;  // (capacity, max_points)
    std::int64_t max_points = 0;
    std::int64_t* found = nullptr;  // (2,): occupied cells, those that did not fit included; dropped points
    Workspace workspace;

    [[nodiscard]] bool bounded() const { return grid.num_cells > 0; }
};

/// The gradient of a dense grid of features, for points (never depth images).
struct BackwardPlan {
    Device device;
    PointsPlan points;
    FeaturesPlan features;  // ReductionGradient::cells: only num_channels
    std::int64_t num_points = 0;
    std::int64_t num_clouds = 1;

    GridPlan grid;
    Reduction reduction = Reduction::sum;
    bool check = true;

    const void* out_gradient = nullptr;  // (clouds, X, Y, Z, channels)
    DType out_gradient_dtype = DType::f32;
    const void* values = nullptr;  // ReductionGradient::values: the same shape, what voxelize wrote
    DType values_dtype = DType::f32;
    float* gradient = nullptr;  // strides in elements; every element is written
    std::int64_t gradient_row_stride = 0;
    std::int64_t gradient_channel_stride = 0;
    Workspace workspace;

    [[nodiscard]] constexpr std::int64_t total_cells() const { return num_clouds * grid.num_cells; }
};

}  // namespace robocache::voxelize_detail

namespace robocache {

namespace voxelize_detail {
template <class Output>
struct PlanOf;
template <>
struct PlanOf<VoxelOutput> {
    using type = DensePlan;
};
template <>
struct PlanOf<SparseOutput> {
    using type = SparsePlan;
};
template <>
struct PlanOf<VoxelGradient> {
    using type = BackwardPlan;
};
}  // namespace voxelize_detail

template <class Output>
struct VoxelPlanFor<Output>::State {
    typename voxelize_detail::PlanOf<Output>::type plan;  // without outputs and workspace
    Output output;
    VoxelNames names;
    std::int64_t workspace_bytes = 0;
};

namespace voxelize_detail {

// ---- contract.cpp: all validation. Reads no data, writes nothing ----------------------------------------------------

using DenseState = VoxelPlan::State;
using SparseState = SparseVoxelPlan::State;
using BackwardState = VoxelBackwardPlan::State;

/// Fill plan and output of a state whose names are set.
void make_plan(DenseState& state, const PointsView& points, const VoxelGrid& grid, const VoxelOptions& options);
void make_plan(DenseState& state, const DepthView& images, const VoxelGrid& grid, const VoxelOptions& options);
void make_plan(SparseState& state, const PointsView& points, const VoxelGrid& grid, const SparseLimits& limits,
               const VoxelOptions& options);
void make_plan(BackwardState& state, const PointsView& points, const VoxelGrid& grid, std::int64_t num_channels,
               const VoxelOptions& options);
/// The plan of the state with the outputs given, which must be those that the state describes.
[[nodiscard]] DensePlan bind(const DenseState& state, const VoxelOutput& output);
[[nodiscard]] SparsePlan bind(const SparseState& state, const SparseOutput& output);
[[nodiscard]] BackwardPlan bind(const BackwardState& state, const VoxelGradient& gradient);
/// `required` bytes must be there.
[[nodiscard]] Workspace bind_workspace(Workspace workspace, std::int64_t required, const Names& names);
/// offsets (B + 1,), contiguous and on the host: from 0 to num_points, not decreasing.
void check_offsets(const std::int64_t* offsets, std::int64_t stride, std::int64_t num_clouds, std::int64_t num_points,
                   const Names& names);

// ---- backends: a missing one is a link error ------------------------------------------------------------------------

void voxelize_cpu(const DensePlan& plan);
void voxelize_sparse_cpu(const SparsePlan& plan);
void voxelize_backward_cpu(const BackwardPlan& plan);

#ifdef ROBOCACHE_HAS_CUDA
void voxelize_cuda(const DensePlan& plan, CudaQueue stream);
void voxelize_sparse_cuda(const SparsePlan& plan, CudaQueue stream);
void voxelize_backward_cuda(const BackwardPlan& plan, CudaQueue stream);
/// Choose how to compute and return the bytes of workspace, from the plan alone: its pointers are not followed, its
/// outputs and its workspace are not there yet.
[[nodiscard]] std::int64_t plan_voxelize_cuda(DensePlan& plan);
[[nodiscard]] std::int64_t plan_voxelize_sparse_cuda(const SparsePlan& plan);
[[nodiscard]] std::int64_t plan_voxelize_backward_cuda(const BackwardPlan& plan);
/// The offsets, contiguous, on the host; waits for the stream. For check = true only.
[[nodiscard]] std::vector<std::int64_t> read_offsets_cuda(const PointsPlan& points, std::int64_t num_clouds,
                                                          Device device, CudaQueue stream);
#endif

}  // namespace voxelize_detail
}  // namespace robocache
