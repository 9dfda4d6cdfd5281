// voxelize: points to the cells of a grid. The contract, case by case, is docs/voxelize.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "robocache/tensor.hpp"

namespace robocache {

/// The value of a cell, from the points in it.
enum class Reduction : std::uint8_t {
    occupancy,  ///< 1 where there is a point
    count,
    sum,  ///< sum, mean, min, max, std: of the points' features, channel by channel
    mean,
    min,
    max,
    std,  ///< standard deviation of the population: the root of the mean of the squared deviations from the mean
};

/// What a reduction makes of the points of a cell.
enum class ReductionFamily : std::uint8_t {
    count,      ///< a number from the points alone
    sum,        ///< of their features: a sum, also divided by the number of points
    extreme,    ///< of their features: one of them
    deviation,  ///< of their features: how far they are from their mean
};

/// What the native gradient of a reduction depends on.
enum class ReductionGradient : std::uint8_t {
    none,      ///< there is none
    cells,     ///< the cells of the points alone: features are not read
    features,  ///< also the features
    values,    ///< also the features and VoxelOutput::grid
};

/// What one reduction is and can do; reduction_traits() lists them.
struct ReductionTraits {
    Reduction reduction;
    std::string_view name;
    ReductionFamily family;
    bool fills;  ///< a cell without points has VoxelOptions::fill, else 0
    ReductionGradient gradient;
};

/// All reductions, in the order of Reduction.
[[nodiscard]] std::span<const ReductionTraits> reduction_traits() noexcept;

/// Throws InvalidArgument, listing the choices, for an unknown name. `op` and `argument` are for that message.
[[nodiscard]] Reduction reduction_from_name(std::string_view name, std::string_view op = "voxelize",
                                            std::string_view argument = "reduction");
[[nodiscard]] std::string_view reduction_name(Reduction reduction) noexcept;

/// Boxes of `size`, `shape` of them, from `origin` on: cell (x, y, z) holds the points with
/// floor((p - origin) / size) == (x, y, z), computed in f64 for f64 points and in f32 for all others.
struct VoxelGrid {
    std::array<double, 3> origin{};
    std::array<double, 3> size{1, 1, 1};
    std::array<std::int64_t, 3> shape{};
};

/// Points, with optional features, cut into clouds; owned by the caller. Any strides.
///   one cloud   points (N, 3)
///   ragged      points (N, 3)   offsets (B + 1,) i64
struct PointsView {
    TensorView points;                     ///< f32, f16 or f64
    std::optional<TensorView> offsets{};   ///< not decreasing, from 0 to N
    std::optional<TensorView> features{};  ///< (N, F) f32, f16, bf16 or u8
};

/// Depth images that one pass turns into points: pixel (v, u) of depth d is ((u - cx) d / fx, (v - cy) d / fy, d) in
/// the camera, then moved by the pose. Depth 0, negative or not finite is no point at all.
///   one cloud   depth (H, W), or (V, H, W) with `views`
///   batch       depth (B, H, W), or (B, V, H, W) with `views`
struct DepthView {
    TensorView depth;                      ///< u16 millimeters or f32 meters
    TensorView intrinsics;                 ///< (3, 3), or one for each image: (B, 3, 3), (B, V, 3, 3); f32
    std::optional<TensorView> pose{};      ///< (4, 4) camera to grid, or one for each image; f32
    std::optional<TensorView> features{};  ///< depth's shape and F: f32, f16, bf16 or u8
    bool views = false;                    ///< the dimension before H, W counts views of the same cloud
    double unit = 0;                       ///< meters of depth 1; 0: 0.001 for u16, 1 for f32
    double max_depth = 0;                  ///< deeper is no point; 0: no limit
};

/// Where a dense grid is written; C-contiguous. [B] where there are offsets or a batch of images.
struct VoxelOutput {
    TensorView grid;                      ///< ([B,] X, Y, Z) or, of features, ([B,] X, Y, Z, F)
    std::optional<TensorView> counts{};   ///< ([B,] X, Y, Z) i32
    std::optional<TensorView> dropped{};  ///< ([B]) i64: points outside the grid or not finite
};

/// Where occupied cells are written, in order of (cloud, x, y, z). Row m of every tensor belongs to the same cell; what
/// is beyond the cells found is not written. Cells that do not fit are counted in `found`, the earlier ones are kept.
struct SparseOutput {
    TensorView coordinates;                    ///< (capacity, 4) i32: cloud, x, y, z
    std::optional<TensorView> features{};      ///< (capacity, F): reduced by options.reduction
    std::optional<TensorView> counts{};        ///< (capacity,) i32
    std::optional<TensorView> voxel{};         ///< (N,) i64: the row of each point's cell, -1 where there is none
    std::optional<TensorView> first_points{};  ///< (capacity, K) i64: the first points of each cell, then -1
    TensorView found;                          ///< (2,) i64: occupied cells, dropped points
};

/// The gradient of a dense grid of features for its points' features: f32 (N, F), written, not added to.
/// sum and mean share a cell's gradient out; min and max give it to the first point in input order that has the value;
/// std gives each point (x - mean) / (n std) of it, 0 where std is 0.
struct VoxelGradient {
    TensorView grid;                     ///< the gradient of VoxelOutput::grid, any floating dtype, C-contiguous
    std::optional<TensorView> values{};  ///< min, max: VoxelOutput::grid as voxelize wrote it
    TensorView features;                 ///< (N, F) f32
};

/// What error messages call a function that wraps voxelize, and its arguments. The characters must outlive the plan.
struct VoxelNames {
    std::string_view op;  ///< empty: "voxelize", "voxelize_depth", "voxelize_sparse" or "voxelize_backward"
    std::string_view points = "points";
    std::string_view offsets = "offsets";
    std::string_view features = "features";
    std::string_view depth = "depth";
    std::string_view intrinsics = "intrinsics";
    std::string_view pose = "pose";
    std::string_view unit = "unit";
    std::string_view max_depth = "max_depth";
    std::string_view origin = "grid.origin";
    std::string_view size = "grid.size";
    std::string_view shape = "grid.shape";
    std::string_view reduction = "reduction";
    std::string_view dtype = "options.dtype";
    std::string_view max_voxels = "limits.max_voxels";
    std::string_view output = "output";  ///< "output.grid", "output.counts", ...
    std::string_view gradient = "gradient";
    std::string_view workspace = "workspace";
};

/// How points become cells: the reduction, the type of the grid, and what else is returned.
struct VoxelOptions {
    Reduction reduction = Reduction::occupancy;
    /// Of the grid. occupancy: bool, u8, i32 (default), f32; count: u8 (stops at 255), i32 (default), i64; features:
    /// their own (default; u8: f32) or f32.
    std::optional<DType> dtype{};
    bool counts = false;         ///< VoxelOutput::counts is written; sparse outputs have counts in any case
    double fill = 0;             ///< min, max and std of a cell without points
    bool deterministic = false;  ///< sum and mean the same to the bit on every device; the others always are
    bool check = true;           ///< verify offsets before writing
    VoxelNames names{};
};

/// How many cells and points a sparse output has room for.
struct SparseLimits {
    std::optional<std::int64_t> max_voxels{};  ///< the first cells are kept, the others counted; absent: all are kept
    bool padded = false;                       ///< max_voxels rows, also where there cannot be so many cells
    std::int64_t max_points = 0;               ///< K of SparseOutput::first_points; 0: without
};

/// A validated call. It refers to the data of its points or images, which must outlive it, and may be run any number of
/// times, by several threads at once with a workspace each. Output: VoxelOutput, SparseOutput or VoxelGradient.
template <class Output>
class VoxelPlanFor {
public:
    struct State;
    explicit VoxelPlanFor(std::unique_ptr<const State> state) noexcept;
    ~VoxelPlanFor();
    VoxelPlanFor(VoxelPlanFor&&) noexcept;
    VoxelPlanFor& operator=(VoxelPlanFor&&) noexcept;

    [[nodiscard]] Device device() const noexcept;
    /// Shapes, dtypes and device of every output, C-contiguous, without data.
    [[nodiscard]] const Output& output() const noexcept;
    /// The bytes of workspace that run needs; 0 on the CPU.
    [[nodiscard]] std::int64_t workspace_bytes() const noexcept;

    [[nodiscard]] const State& state() const noexcept { return *state_; }  ///< for the implementation

private:
    std::unique_ptr<const State> state_;
};
using VoxelPlan = VoxelPlanFor<VoxelOutput>;
using SparseVoxelPlan = VoxelPlanFor<SparseOutput>;
using VoxelBackwardPlan = VoxelPlanFor<VoxelGradient>;

/// Validate a call and size its outputs and workspace. Read no data.
/// Points to a dense grid.
[[nodiscard]] VoxelPlan plan_voxelize(const PointsView& points, const VoxelGrid& grid,
                                      const VoxelOptions& options = {});
/// Depth images to a dense grid, without a point cloud in memory.
[[nodiscard]] VoxelPlan plan_voxelize(const DepthView& images, const VoxelGrid& grid, const VoxelOptions& options = {});
/// Points to the list of occupied cells. grid.shape of zeros: no bounds but those of the key, 2^20 cells to both sides
/// of the origin, fewer for several clouds: their number takes its bits from 63, the axes share what is left.
[[nodiscard]] SparseVoxelPlan plan_voxelize_sparse(const PointsView& points, const VoxelGrid& grid,
                                                   const SparseLimits& limits = {}, const VoxelOptions& options = {});
/// The gradient of a dense grid of `num_channels` features. points.features: see ReductionGradient.
[[nodiscard]] VoxelBackwardPlan plan_voxelize_backward(const PointsView& points, const VoxelGrid& grid,
                                                       std::int64_t num_channels, const VoxelOptions& options = {});

/// Compute into the caller's memory. Throw before writing anything. Queue-ordered on a device; allocate no tensor
/// memory there and wait for nothing, except to check offsets (options.check).
void run(const VoxelPlan& plan, const VoxelOutput& output, Workspace workspace = {}, CudaQueue queue = {});
void run(const SparseVoxelPlan& plan, const SparseOutput& output, Workspace workspace = {}, CudaQueue queue = {});
void run(const VoxelBackwardPlan& plan, const VoxelGradient& gradient, Workspace workspace = {}, CudaQueue queue = {});

/// What run checks before it writes: the offsets, where options.check is set.
void check(const VoxelPlan& plan, CudaQueue queue = {});
void check(const SparseVoxelPlan& plan, CudaQueue queue = {});

}  // namespace robocache
