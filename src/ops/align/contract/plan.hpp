// What a validated call of align looks like: plain numbers and pointers, ready for any backend.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/contract.hpp"
#include "robocache/align.hpp"

namespace robocache::align_detail {

using Names = AlignNames;

struct ChannelDim {
    std::int64_t size = 1;
    std::int64_t value_stride = 0;  // elements
    std::int64_t out_stride = 0;
    std::int64_t input_stride = 0;  // of StreamPlan::inputs
};

struct RangePlan {
    std::int64_t begin = 0;  // in the inner channel dimension
    std::int64_t width = 0;
    Method method = Method::linear;
};

/// A (B, T) output of one stream; null: not requested. Strides in elements.
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

    /// Of a gradient that depends on them: the values of the stream; `values` is what is summed up. Else null.
    const char* inputs = nullptr;
    DType inputs_dtype = DType::f32;
    std::int64_t input_episode_stride = 0;  // bytes; 0 unless dense
    std::int64_t input_row_stride = 0;      // bytes

    char* out = nullptr;
    DType out_dtype = DType::f32;
    std::int64_t out_row_stride = 0;     // bytes, over b
    std::int64_t out_target_stride = 0;  // bytes, over j
    Plane valid;
    Plane index;
};

/// One call: the streams, the query and, once bind_outputs has run, the outputs.
struct CallPlan {
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

/// The names of some methods: "linear, cubic or mean".
[[nodiscard]] std::string method_choices(bool (*is_included)(Method));

/// An output has the stream's own dtype, or a floating one.
void require_output_dtype(const Names& names, const ArgumentName& argument, DType values, DType out);

/// The contract without outputs: shapes, dtypes, devices, options. Reads no data.
[[nodiscard]] CallPlan make_plan(std::span<const StreamView> streams, const Query& query, const Names& names);
/// The values output of stream i, C-contiguous, data null.
[[nodiscard]] TensorView output_view(const CallPlan& plan, const StreamView& stream);
/// The contract of the outputs.
void bind_outputs(CallPlan& plan, std::span<const StreamView> streams, std::span<const AlignOutput> outputs,
                  const Names& names);
/// Where the values of a stream (or their gradient) are: row_dims leading dimensions, then channels.
void bind_values(StreamPlan& stream, const TensorView& values, int row_dims);
/// Where the values of a stream are whose gradient has been bound by bind_values.
void bind_inputs(StreamPlan& stream, const TensorView& values, int row_dims);
/// The number of leading dimensions of values that are not channels.
[[nodiscard]] int num_row_dims(const StreamView& stream);
/// Where a stream's output (or the gradient of it) is; channel dimensions without gaps between them become one.
void bind_rows(StreamPlan& stream, const TensorView& out);
/// The contract of the data itself, on the CPU: times, offsets, episodes, outside = error.
void check_data(const CallPlan& plan, const Names& names, bool check);

/// The same for a plan on a GPU: copies what it reads to the host and waits, so only with check=True.
void check_data_cuda(const CallPlan& plan, const Names& names, bool check, CudaQueue stream);

/// One per backend; a missing one is a link error.
void align_cpu(const CallPlan& plan);
void align_cuda(const CallPlan& plan, CudaQueue stream);

}  // namespace robocache::align_detail

namespace robocache {

struct AlignPlan::State {
    align_detail::CallPlan call;  // without outputs
    std::vector<StreamView> streams;
    AlignOptions options;
};

namespace align_detail {

/// The plan's call with its outputs, validated.
[[nodiscard]] CallPlan bind(const AlignPlan& plan, std::span<const AlignOutput> outputs);

}  // namespace align_detail
}  // namespace robocache
