// What a validated call of align looks like: plain numbers and pointers, ready for any backend.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/contract.hpp"
#include "robocache/align.hpp"

namespace robocache::align_detail {

/// What error messages call the arguments of one stream. Empty: "streams[i].values" and so on.
struct StreamNames {
    std::string_view values;
    std::string_view times;
    bool bare_fields = false;  ///< "max_gap" instead of "streams[i].max_gap"
};

struct Names {
    std::string_view op = "align";
    std::string_view query_times = "times";
    bool has_anchor = true;  ///< the query may be anchor and deltas
    std::vector<StreamNames> streams;

    [[nodiscard]] ArgumentName values(std::size_t i) const;
    [[nodiscard]] ArgumentName times(std::size_t i) const;
    [[nodiscard]] ArgumentName field(std::size_t i, std::string_view name) const;
};

struct ChannelDim {
    std::int64_t size = 1;
    std::int64_t value_stride = 0;  // elements
    std::int64_t out_stride = 0;
};

struct RangePlan {
    std::int64_t begin = 0;  // in the inner channel dimension
    std::int64_t width = 0;
    Method method = Method::linear;
};

/// A (B, T) output of one stream; null: not asked for. Strides in elements.
struct Plane {
    void* data = nullptr;
    std::int64_t row_stride = 0;
    std::int64_t target_stride = 0;
};

struct StreamPlan {
    const char* values = nullptr;
    DType values_dtype = DType::f32;
    std::int64_t value_episode_stride = 0;  // bytes; 0 unless dense
    std::int64_t value_row_stride = 0;      // bytes

    const char* times = nullptr;
    std::int64_t time_episode_stride = 0;  // elements; 0 unless dense
    std::int64_t time_row_stride = 0;      // elements

    const std::int64_t* offsets = nullptr;  // null unless ragged
    std::int64_t offsets_stride = 0;
    std::int64_t num_episodes = 1;
    std::int64_t num_rows = 0;  // of an episode; of the whole stream if ragged

    Duration latency;
    Duration tolerance;
    bool has_max_gap = false;
    Duration max_gap;
    Outside before = Outside::hold;
    Outside after = Outside::hold;
    bool outside_valid = false;
    double period = 0;
    std::vector<RangePlan> ranges;  // cover the inner channel dimension

    // Channel dimensions: `outer` (usually none) and one `inner`, merged wherever both sides' strides allow it.
    std::vector<ChannelDim> outer;
    ChannelDim inner;

    char* out = nullptr;
    DType out_dtype = DType::f32;
    std::int64_t out_row_stride = 0;     // bytes, over b
    std::int64_t out_target_stride = 0;  // bytes, over j
    Plane valid;
    Plane index;
};

struct AlignPlan {
    std::int64_t num_rows = 0;     // B
    std::int64_t num_targets = 0;  // T
    DType time_dtype = DType::i64;
    Device device;

    // Targets: times[b, j], or anchor[b] + deltas[j] where deltas is set. Strides in elements.
    const char* times = nullptr;
    std::int64_t time_row_stride = 0;
    std::int64_t time_target_stride = 0;
    const char* deltas = nullptr;
    std::int64_t delta_stride = 0;
    const std::int64_t* episode = nullptr;  // null: episode b, or the only one
    std::int64_t episode_stride = 0;

    std::vector<StreamPlan> streams;
};

/// Throw InvalidArgument that names `op` and `argument` and lists the choices.
[[nodiscard]] Method parse_method(std::string_view op, const ArgumentName& argument, std::string_view given);
[[nodiscard]] Outside parse_outside(std::string_view op, const ArgumentName& argument, std::string_view given);

/// An output has the stream's own dtype, or a floating one.
void require_output_dtype(const Names& names, const ArgumentName& argument, DType values, DType out);

/// The contract without outputs: shapes, dtypes, devices, options. Reads no data.
[[nodiscard]] AlignPlan make_plan(std::span<const StreamView> streams, const Query& query, const Names& names);
/// The values output of stream i, C-contiguous, data null.
[[nodiscard]] TensorView output_view(const AlignPlan& plan, const StreamView& stream);
/// The contract of the outputs.
void bind_outputs(AlignPlan& plan, std::span<const StreamView> streams, std::span<const AlignOutput> outputs,
                  const Names& names);
/// Where a stream's output (or the gradient of it) is; channel dimensions without gaps between them become one.
void bind_rows(StreamPlan& stream, const TensorView& out);
/// The contract of the data itself, on the CPU: times, offsets, episodes, outside = error.
void check_data(const AlignPlan& plan, const Names& names, bool check);

/// The same for a plan on a GPU: copies what it reads to the host and waits, so only where it was asked for.
void check_data_cuda(const AlignPlan& plan, const Names& names, bool check, CudaQueue stream);

/// One per backend; a missing one is a link error.
void align_cpu(const AlignPlan& plan);
void align_cuda(const AlignPlan& plan, CudaQueue stream);

/// check_data or check_data_cuda, by device.
void check_data_anywhere(const AlignPlan& plan, const Names& names, bool check, CudaQueue stream);

/// Validates, then runs on the device the tensors live on.
void run(AlignPlan& plan, std::span<const StreamView> streams, std::span<const AlignOutput> outputs, const Names& names,
         const AlignOptions& options, CudaQueue stream);

}  // namespace robocache::align_detail
