// align and its gradient on CUDA: the choice of the kernels and their launches, and the check of data that lies on a
// GPU. Allocates nothing on the device; waits only to check.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/check.hpp"
#include "ops/align/contract/backward.hpp"
#include "ops/align/cuda/tables.hpp"

namespace robocache::align_detail {

namespace {

/// A strided array of a plan, brought to the host: the whole stretch of memory it spans.
class HostCopy {
public:
    /// Extents and strides (elements) of up to two dimensions; returns where element (0, 0) is on the host.
    template <class T>
    const T* fetch(const void* data, std::int64_t rows, std::int64_t row_stride, std::int64_t columns,
                   std::int64_t column_stride, cudaStream_t stream) {
        if (data == nullptr || rows <= 0 || columns <= 0) return static_cast<const T*>(data);
        const std::int64_t along_rows = (rows - 1) * row_stride;
        const std::int64_t along_columns = (columns - 1) * column_stride;
        const std::int64_t low = std::min<std::int64_t>(along_rows, 0) + std::min<std::int64_t>(along_columns, 0);
        const std::int64_t high = std::max<std::int64_t>(along_rows, 0) + std::max<std::int64_t>(along_columns, 0);
        std::vector<char>& memory = kept_.emplace_back(static_cast<std::size_t>(high - low + 1) * sizeof(T));
        check_cuda(cudaMemcpyAsync(memory.data(), static_cast<const T*>(data) + low, memory.size(),
                                   cudaMemcpyDeviceToHost, stream),
                   "align: reading times for check=True");
        return reinterpret_cast<const T*>(memory.data()) - low;
    }

private:
    std::vector<std::vector<char>> kept_;
};

template <class Time>
void check_on_host(CallPlan plan, const Names& names, bool check, cudaStream_t stream) {
    HostCopy host;
    const std::int64_t query_rows = plan.num_rows;
    plan.times = reinterpret_cast<const char*>(host.fetch<Time>(plan.times, query_rows, plan.time_row_stride,
                                                                plan.deltas == nullptr ? plan.num_targets : 1,
                                                                plan.time_target_stride, stream));
    plan.deltas =
        reinterpret_cast<const char*>(host.fetch<Time>(plan.deltas, 1, 0, plan.num_targets, plan.delta_stride, stream));
    plan.episode = host.fetch<std::int64_t>(plan.episode, query_rows, plan.episode_stride, 1, 0, stream);
    for (StreamPlan& s : plan.streams) {
        const std::int64_t episodes = s.offsets == nullptr ? s.num_episodes : 1;
        s.times = reinterpret_cast<const char*>(
            host.fetch<Time>(s.times, episodes, s.time_episode_stride, s.num_rows, s.time_row_stride, stream));
        s.offsets = host.fetch<std::int64_t>(s.offsets, 1, 0, s.num_episodes + 1, s.offsets_stride, stream);
    }
    check_cuda(cudaStreamSynchronize(stream), "align: reading times for check=True");
    check_data(plan, names, check);
}

bool must_look(const CallPlan& plan, bool check) {
    for (const StreamPlan& s : plan.streams) check = check || s.before == Outside::error || s.after == Outside::error;
    return check;
}

// ---- launches -------------------------------------------------------------------------------------------------------

AlignKernels kernels_for(DType times) {
    switch (times) {
        case DType::f32: return align_kernels_f32();
        case DType::f64: return align_kernels_f64();
        default: return align_kernels_i64();
    }
}

void launch_short(const CallPlan& plan, const StreamPlan& s, const AlignKernels& kernels, cudaStream_t stream) {
    const bool seven = s.inner.size == 7;
    const auto kernel = s.values_dtype == DType::f32   ? kernels.short_f32
                        : s.values_dtype == DType::f16 ? (seven ? kernels.short_f16x7 : kernels.short_f16)
                                                       : (seven ? kernels.short_bf16x7 : kernels.short_bf16);
    ShortTable table{};
    for (; table.rows.first_row < plan.num_rows; table.rows.first_row += table.rows.num_rows()) {
        const Launch launch = make_table(plan, s, size_bytes(plan.time_dtype), table);
        launch_overlapped(kernel, launch, stream, table, "align: launching align_short");
    }
}

template <int capacity>
void launch_rows(const CallPlan& plan, std::span<const StreamPlan* const> streams, void (*kernel)(RowsTable<capacity>),
                 cudaStream_t stream) {
    RowsTable<capacity> table{};
    for (; table.first_row < plan.num_rows; table.first_row += table.num_rows()) {
        const Launch launch = make_table(plan, streams, table);
        launch_overlapped(kernel, launch, stream, table, "align: launching align_rows");
    }
}

void launch_general(const CallPlan& plan, const StreamPlan& s, const AlignKernels& kernels, cudaStream_t stream) {
    GeneralTable table{};
    const Launch launch = make_table(plan, s, table);
    launch_overlapped(kernels.general, launch, stream, table, "align: launching align_general");
}

}  // namespace

void check_data_cuda(const CallPlan& plan, const Names& names, bool check, CudaQueue stream) {
    if (!must_look(plan, check)) return;
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    switch (plan.time_dtype) {
        case DType::f32: return check_on_host<float>(plan, names, check, handle);
        case DType::f64: return check_on_host<double>(plan, names, check, handle);
        default: return check_on_host<std::int64_t>(plan, names, check, handle);
    }
}

void align_cuda(const CallPlan& plan, CudaQueue stream) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    const DeviceGuard guard(plan.device.index);
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    const AlignKernels kernels = kernels_for(plan.time_dtype);
    std::vector<const StreamPlan*> simple;
    for (const StreamPlan& s : plan.streams) {
        if (is_simple(s)) {
            simple.push_back(&s);
        } else {
            launch_general(plan, s, kernels, handle);
        }
    }
    const std::span<const StreamPlan* const> all(simple);
    for (std::size_t i = 0; i < all.size(); i += max_streams) {
        const auto some = all.subspan(i, std::min<std::size_t>(max_streams, all.size() - i));
        if (some.size() == 1 && is_short(plan, *some[0], size_bytes(plan.time_dtype))) {
            launch_short(plan, *some[0], kernels, handle);
        } else if (some.size() <= few_streams) {
            launch_rows(plan, some, kernels.few_rows, handle);
        } else {
            launch_rows(plan, some, kernels.many_rows, handle);
        }
    }
}

void align_backward_cuda(const CallPlan& plan, CudaQueue stream) {
    if (plan.num_rows == 0 || plan.num_targets == 0) return;
    const DeviceGuard guard(plan.device.index);
    const BackwardKernels kernels = backward_kernels(plan.time_dtype);
    for (const StreamPlan& s : plan.streams) {
        BackwardTable table{};
        const Launch launch = make_table(plan, s, table);
        if (launch.blocks == 0) continue;
        launch_overlapped(s.values_dtype == DType::f64 ? kernels.f64 : kernels.f32, launch,
                          static_cast<cudaStream_t>(stream.handle), table,
                          "align_backward: launching align_backward_kernel");
    }
}

}  // namespace robocache::align_detail
