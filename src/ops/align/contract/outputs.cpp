// The contract of align's outputs, and where rows of them are.
#include <algorithm>
#include <string>

#include "core/contract.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::align_detail {
namespace {

Plane plane(const CallPlan& plan, const TensorView& tensor, DType dtype, const ArgumentName& argument,
            const Names& names) {
    require_dtype(names.op, argument, tensor, dtype);
    require_device(names.op, argument, tensor, plan.device);
    if (tensor.rank != 2 || tensor.shape[0] != plan.num_rows || tensor.shape[1] != plan.num_targets) {
        fail(names.op, argument,
             "have shape (" + std::to_string(plan.num_rows) + ", " + std::to_string(plan.num_targets) + ")",
             shape_text(tensor));
    }
    return {tensor.data, tensor.strides[0], tensor.strides[1]};
}

/// Merges neighboring channel dimensions that both sides store without a gap: fewer, longer rows.
void merge_channels(StreamPlan& plan) {
    if (plan.outer.empty()) {  // the usual case, without a list
        if (plan.inner.size == 1) plan.inner = {1, 1, 1};
        return;
    }
    std::vector<ChannelDim> dims = plan.outer;
    dims.push_back(plan.inner);
    std::vector<ChannelDim> merged;
    for (const ChannelDim& dim : dims) {
        if (dim.size == 1) continue;
        if (!merged.empty() && merged.back().value_stride == dim.value_stride * dim.size &&
            merged.back().out_stride == dim.out_stride * dim.size &&
            merged.back().input_stride == dim.input_stride * dim.size) {
            merged.back() = {merged.back().size * dim.size, dim.value_stride, dim.out_stride, dim.input_stride};
        } else {
            merged.push_back(dim);
        }
    }
    if (merged.empty()) merged.push_back({1, 1, 1});
    if (plan.ranges.size() == 1) plan.ranges[0].width = merged.back().size;
    plan.inner = merged.back();
    merged.pop_back();
    plan.outer = std::move(merged);
}

void bind_output(const CallPlan& plan, StreamPlan& stream, const StreamView& view, const AlignOutput& output,
                 std::size_t i, const Names& names) {
    const ArgumentName argument("out", i, "");
    const TensorView& out = output.values;
    const TensorView expected = output_view(plan, view);
    if (expected.dtype != stream.values_dtype && out.dtype != expected.dtype) {
        fail(names.op, argument,
             std::string("have dtype ") + name(expected.dtype) + " like " + names.field(i, "dtype").text(),
             name(out.dtype));
    }
    if (out.rank != expected.rank ||
        !std::equal(out.shape.begin(), out.shape.begin() + out.rank, expected.shape.begin())) {
        fail(names.op, argument, "have shape " + shape_text(expected), shape_text(out));
    }
    require_device(names.op, argument, out, plan.device);
    require_output_dtype(names, {"out", i, "dtype"}, stream.values_dtype, out.dtype);
    if (!is_floating(out.dtype) && (stream.before == Outside::nan || stream.after == Outside::nan)) {
        fail(names.op, names.field(i, "outside"), "be hold or error for an output that has no NaN",
             std::string("nan for ") + name(out.dtype));
    }
    for (int d = 0; d < out.rank; ++d) {
        if (out.shape[d] > 1 && out.strides[d] == 0 && out.num_elements() > 0) {
            fail(names.op, argument, "not overlap itself", "stride 0 in dimension " + std::to_string(d));
        }
    }
    bind_rows(stream, out);
    if (output.valid) stream.valid = plane(plan, *output.valid, DType::boolean, {"out", i, "valid"}, names);
    if (output.index) stream.index = plane(plan, *output.index, DType::i64, {"out", i, "index"}, names);
}

}  // namespace

void require_output_dtype(const Names& names, const ArgumentName& argument, DType values, DType out) {
    if (out == values || is_floating(out)) return;
    fail(names.op, argument, std::string("be ") + name(values) + " or a floating dtype", name(out));
}

void bind_rows(StreamPlan& stream, const TensorView& out) {
    const std::int64_t element = size_bytes(out.dtype);
    stream.out = static_cast<char*>(out.data);
    stream.out_dtype = out.dtype;
    stream.out_row_stride = out.strides[0] * element;
    stream.out_target_stride = out.strides[1] * element;
    for (int d = 2; d < out.rank; ++d) {
        ChannelDim& dim = d + 1 < out.rank ? stream.outer[static_cast<std::size_t>(d - 2)] : stream.inner;
        dim.out_stride = out.strides[d];
    }
    merge_channels(stream);
}

void bind_outputs(CallPlan& plan, std::span<const StreamView> streams, std::span<const AlignOutput> outputs,
                  const Names& names) {
    if (outputs.size() != streams.size()) {
        fail(names.op, "out", "have one output for each of the " + std::to_string(streams.size()) + " streams",
             std::to_string(outputs.size()));
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
        bind_output(plan, plan.streams[i], streams[i], outputs[i], i, names);
    }
}

}  // namespace robocache::align_detail
