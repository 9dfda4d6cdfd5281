// Batches on the CPU: samples side by side, each read by align.
#include <vector>

#include "core/thread_pool.hpp"
#include "loader/batch.hpp"

namespace robocache::loader_detail {
namespace {

/// What a step that is told in memory means: the order of its epoch and its first position.
BatchCall at_step(BatchCall call) {
    if (call.step == nullptr) return call;
    const std::int64_t epoch = *call.step / call.num_steps;
    const auto begin = static_cast<std::uint64_t>(*call.step % call.num_steps * call.stride);
    call.order.key = key_of(call.order.seed, static_cast<std::uint64_t>(epoch), 1);
    call.first_position += begin + static_cast<std::uint64_t>(epoch) * static_cast<std::uint64_t>(call.epoch_size);
    return call;
}

}  // namespace

void read_batch_cpu(const BatchPlan& plan, const BatchCall& told) {
    const BatchCall call = at_step(told);
    for (std::int64_t b = 0; b < call.count; ++b) {
        const Anchor found =
            anchor_of_position(plan.tables.data(), call.order, call.first_position + static_cast<std::uint64_t>(b));
        const auto e = static_cast<std::size_t>(found.episode);
        for (std::size_t c = 0; c < plan.columns.size(); ++c) {
            const ColumnPlan& column = plan.columns[c];
            const RowsPlan& rows = plan.rows_of(plan.part[e], c);
            align_detail::AlignPlan one;
            one.num_rows = 1;
            one.num_targets = column.num_targets();
            one.times = reinterpret_cast<const char*>(&found.time);
            one.deltas = reinterpret_cast<const char*>(column.deltas.data());
            one.delta_stride = 1;
            one.episode = &plan.local[e];
            one.streams = {rows.stream};
            align_detail::StreamPlan& stream = one.streams[0];
            const std::int64_t elements = column.num_targets() * column.num_channels;
            std::vector<char> scratch;
            char* out = static_cast<char*>(call.outputs[c].values.data) + b * elements * size_bytes(column.dtype);
            stream.out = out;
            if (column.scaled) {
                scratch.resize(static_cast<std::size_t>(elements * size_bytes(column.written)));
                stream.out = scratch.data();
            }
            bool* padding = nullptr;
            if (call.outputs[c].padding) {
                padding = static_cast<bool*>(call.outputs[c].padding->data) + b * column.num_targets();
                stream.valid = {padding, 0, 1};
            }
            align_detail::align_cpu(one);
            if (column.scaled) {
                const auto channels = static_cast<std::int64_t>(rows.offset.size());
                normalise_cpu(
                    {scratch.data(), out, rows.offset.data(), rows.scale.data(), elements / channels, channels},
                    column.written, column.dtype);
            }
            for (std::int64_t j = 0; padding != nullptr && j < column.num_targets(); ++j) padding[j] = !padding[j];
        }
    }
}

}  // namespace robocache::loader_detail
