// What a BatchReader keeps on the GPU: where each episode's rows are, which episode an anchor is in.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "batch/cuda/layout.hpp"
#include "batch/cuda/reader.hpp"
#include "core/cuda/check.hpp"

namespace robocache::loader_detail {
namespace {

using align_detail::StreamPlan;

bool is_computed(DType dtype) {
    return is_floating(dtype) || dtype == DType::u8 || dtype == DType::u16;
}

void require_support(const BatchPlan& plan) {
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const std::size_t c = i % plan.columns.size();
        const ColumnPlan& column = plan.columns[c];
        const StreamPlan& s = plan.rows[i].stream;
        const Method method = s.ranges.size() == 1 ? s.ranges[0].method : Method::cubic;
        if (method != Method::linear && !align_detail::takes_one_row(method)) {
            refuse(c, "a method other than linear, previous, next and nearest");
        }
        // Strides of what there is only one of may be anything.
        if (s.num_rows > 0 && (!s.outer.empty() || (s.inner.size != 1 && s.inner.value_stride != 1))) {
            refuse(c, "rows with gaps");
        }
        if ((s.num_rows > 1 && s.time_row_stride != 1) || (s.num_episodes > 0 && s.offsets_stride != 1)) {
            refuse(c, "times or offsets with gaps");
        }
        if (column.num_channels < 1 || column.num_channels >= (1 << 28)) refuse(c, "rows of no or of 2^28 elements");
        const bool computed = column.scaled || column.dtype != s.values_dtype || is_floating(s.values_dtype);
        if (computed && !is_computed(s.values_dtype)) refuse(c, std::string("values of ") + name(s.values_dtype));
        if (column.num_targets() > max_blocks) refuse(c, "too many moments");
        if (plan.part.size() > static_cast<std::size_t>(max_blocks)) refuse(c, "more than 2^31 - 1 episodes");
    }
}

void index_all_anchors(const std::vector<TablePlan>& tables, const Buffer& memory, const BatchLayout& layout,
                       cudaStream_t stream) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
        TablePlan bare = tables[i];
        bare.buckets = nullptr;
        index_anchors(bare, memory.at<Bucket>(layout.buckets[i]), stream);
    }
}

void index_all_episodes(std::size_t num_episodes, const Buffer& memory, const BatchLayout& layout,
                        cudaStream_t stream) {
    const std::size_t num_columns = layout.episodes.size();
    for (std::size_t c = 0; c < num_columns; ++c) {
        if (!layout.is_first[c]) continue;
        const IndexJob job{memory.at<PartOffsets>(layout.offsets) + c, static_cast<std::int64_t>(num_columns),
                           memory.at<std::int64_t>(layout.part), memory.at<std::int64_t>(layout.local),
                           memory.at<EpisodeIndex>(layout.episodes[c])};
        index_episodes(job, static_cast<std::int64_t>(num_episodes), stream);
    }
}

bool anchors_are_rows(const BatchPlan& plan, std::size_t c) {
    const TablePlan& table = plan.tables[0];
    const StreamPlan& s = plan.rows[c].stream;
    return plan.tables.size() == 1 && plan.num_parts == 1 && !(table.period_ns > 0) &&
           table.num_anchors == s.num_rows && reinterpret_cast<const std::int64_t*>(s.times) == table.times &&
           s.offsets == table.prefix;
}

/// How far apart the moments of a column are, where they are equally far apart and by more than the tolerance, so that
/// a moment before or after the rows stays there; else 0.
double run_step(const ColumnPlan& plan, std::int64_t latency, std::int64_t tolerance) {
    constexpr std::int64_t far = std::int64_t{1} << 60;  // nothing saturates nearer than that
    const std::vector<std::int64_t>& deltas = plan.deltas;
    const auto is_far = [](std::int64_t t) { return t > far || t < -far; };
    if (deltas.size() < 2 || is_far(latency) || std::any_of(deltas.begin(), deltas.end(), is_far)) return 0;
    const std::int64_t step = deltas[1] - deltas[0];
    if (step <= tolerance) return 0;
    for (std::size_t j = 2; j < deltas.size(); ++j) {
        if (deltas[j] - deltas[j - 1] != step) return 0;
    }
    return static_cast<double>(step);
}

std::vector<EpisodeIndex> first_episodes(const DeviceColumn& column, std::size_t num_episodes) {
    std::vector<EpisodeIndex> some(std::min<std::size_t>(num_episodes, 64));
    check_cuda(cudaMemcpy(some.data(), column.episodes, some.size() * sizeof(EpisodeIndex), cudaMemcpyDeviceToHost),
               "BatchReader: cudaMemcpy");
    return some;
}

/// Whether windows lie on the rows of most of these episodes.
bool are_mostly_runs(const DeviceColumn& column, const std::vector<EpisodeIndex>& episodes) {
    const auto fits = [&](const EpisodeIndex& episode) { return episode.period == column.run_step; };
    return column.run_step > 0 &&
           std::count_if(episodes.begin(), episodes.end(), fits) * 2 > static_cast<std::ptrdiff_t>(episodes.size());
}

bool are_in_gpu_memory(const BatchPlan& plan, std::size_t c) {
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const StreamPlan& s = plan.rows_of(p, c).stream;
        if (s.num_rows == 0) continue;
        cudaPointerAttributes attributes{};
        check_cuda(cudaPointerGetAttributes(&attributes, s.values), "BatchReader: cudaPointerGetAttributes");
        if (attributes.type != cudaMemoryTypeDevice) return false;
    }
    return true;
}

}  // namespace

CudaBatch::CudaBatch(const BatchPlan& plan, CudaQueue stream) {
    require_support(plan);
    const DeviceGuard guard(plan.device.index);
    const auto queue = static_cast<cudaStream_t>(stream.handle);
    BatchLayout layout(plan);
    memory_ = std::make_unique<Buffer>(layout.bytes, plan.device.index);
    write_tables(plan, layout);
    write_rows(plan, layout);
    for (std::size_t c = 0; c < columns_.size(); ++c) describe_column(plan, layout, c);
    check_cuda(cudaMemcpyAsync(memory_->at<char>(0), layout.image.bytes().data(), layout.image.bytes().size(),
                               cudaMemcpyHostToDevice, queue),
               "BatchReader: cudaMemcpyAsync");
    index_all_anchors(plan.tables, *memory_, layout, queue);
    index_all_episodes(plan.part.size(), *memory_, layout, queue);
    // From here on the index and the rows are only read, on whatever stream, before earlier work is waited for.
    check_cuda(cudaStreamSynchronize(queue), "BatchReader: cudaStreamSynchronize");
    for (std::size_t c = 0; c < columns_.size(); ++c) learn_from_episodes(plan, c);
}

void CudaBatch::write_tables(const BatchPlan& plan, BatchLayout& layout) {
    for (std::size_t i = 0; i < plan.tables.size(); ++i) {
        TablePlan table = plan.tables[i];
        table.buckets = memory_->at<Bucket>(layout.buckets[i]);
        layout.image.write(layout.tables + i * sizeof(TablePlan), table);
        if (i == 0) table_ = table;
    }
    tables_ = memory_->at<TablePlan>(layout.tables);
    names_ = memory_->at<EpisodeName>(layout.names);
}

void CudaBatch::write_rows(const BatchPlan& plan, BatchLayout& layout) {
    const std::size_t num_columns = plan.columns.size();
    in_alignments_.assign(num_columns, 16);
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const std::size_t c = i % num_columns;
        const StreamPlan& s = plan.rows[i].stream;
        const auto* times = reinterpret_cast<const std::int64_t*>(s.times);
        const PartRows rows{s.values, times, memory_->at<char>(layout.scales[i]), s.max_gap.ns};
        layout.image.write(layout.rows + i * sizeof(PartRows), rows);
        layout.image.write(layout.offsets + i * sizeof(PartOffsets),
                           PartOffsets{times, s.offsets, s.num_episodes, s.num_rows});
        if (i < num_columns) {
            DeviceColumn column{};
            column.rows = rows;
            columns_.push_back(column);
        }
        if (s.num_rows == 0) continue;
        const std::uint64_t alignment = common_alignment(
            {reinterpret_cast<std::uintptr_t>(s.values), static_cast<std::uint64_t>(row_bytes(plan, c))});
        in_alignments_[c] = std::min(in_alignments_[c], alignment);
    }
}

void CudaBatch::describe_column(const BatchPlan& plan, const BatchLayout& layout, std::size_t c) {
    const StreamPlan& s = plan.rows[c].stream;
    DeviceColumn& column = columns_[c];
    column.format.in = s.values_dtype;
    column.parts = plan.num_parts == 1 ? nullptr : memory_->at<PartRows>(layout.rows) + c;
    column.parts_step = static_cast<std::int64_t>(plan.columns.size());
    column.episodes = memory_->at<EpisodeIndex>(layout.episodes[c]);
    column.deltas = memory_->at<std::int64_t>(layout.deltas[c]);
    column.near_deltas = memory_->at<double>(layout.near_deltas[c]);
    column.latency = s.latency.ns;
    column.tolerance = static_cast<std::uint64_t>(s.tolerance.ns);
    column.near_tolerance = static_cast<double>(s.tolerance.ns);
    column.value_row_bytes = row_bytes(plan, c);
    column.run_step = run_step(plan.columns[c], s.latency.ns, s.tolerance.ns);
    if (column.run_step > 0) column.run_first = plan.columns[c].deltas[0] + s.latency.ns;
    column.rules = align_detail::rules_of(s);
    column.method = s.ranges[0].method;
    column.anchors_are_rows = anchors_are_rows(plan, c);
    column.by_channels = Divisor(static_cast<std::uint32_t>(num_pairs(plan, c)));
    column.num_targets = static_cast<std::uint32_t>(plan.columns[c].num_targets());
}

void CudaBatch::learn_from_episodes(const BatchPlan& plan, std::size_t c) {
    const std::vector<EpisodeIndex> episodes = first_episodes(columns_[c], plan.part.size());
    mostly_runs_.push_back(are_mostly_runs(columns_[c], episodes) && are_in_gpu_memory(plan, c));
}

std::unique_ptr<BatchBackend> make_device_batch(const BatchPlan& plan, CudaQueue stream) {
    return std::make_unique<CudaBatch>(plan, stream);
}

TensorView on_device(const TensorView& values, Device device, const ArgumentName& argument) {
    const DeviceGuard guard(device.index);
    TensorView view = values;
    if (values.num_elements() > 0) {
        cudaPointerAttributes attributes{};
        check_cuda(cudaPointerGetAttributes(&attributes, values.data), "BatchReader: cudaPointerGetAttributes");
        if (attributes.type != cudaMemoryTypeHost || attributes.devicePointer == nullptr) {
            fail("BatchReader", argument, "be on " + name(device) + " or in pinned host memory", name(values.device));
        }
        view.data = attributes.devicePointer;
    }
    view.device = device;
    return view;
}

}  // namespace robocache::loader_detail
