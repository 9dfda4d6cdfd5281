// compose and accumulate_moments on the CPU: samples, or chunks of rows, spread over the threads.
#include <algorithm>
#include <limits>
#include <vector>

#include "batch/contract.hpp"
#include "batch/feature/cpu/kernels.hpp"
#include "core/cpu_features.hpp"
#include "core/thread_pool.hpp"

namespace robocache {
namespace loader_detail {

const FeatureKernels& best_feature_kernels() {
#ifdef ROBOCACHE_X86_64_V3
    if (has_x86_64_v3()) return feature_kernels_x86_64_v3();
#endif
    return feature_kernels_baseline();
}

std::int64_t moment_ps(const FeatureUnit& unit) {
    const bool turns = unit.math == FeatureMath::rotation || unit.math == FeatureMath::pose;
    const bool copies = !turns && !unit.from_values.is_there() && unit.offset == nullptr;
    const std::int64_t channels_ps = unit.num_channels * (copies ? 100 : 500);
    if (!turns) return channels_ps;
    const bool has_angles = unit.form == RotationForm::rotvec || unit.form == RotationForm::euler;
    return channels_ps + (has_angles ? 30'000 : 4'000);
}

namespace {

void write_padding(const FeaturesPlan& plan, const PaddingUnit& unit, std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
        bool* out = unit.out + b * unit.num_moments;
        std::fill_n(out, unit.num_moments, false);
        for (std::int32_t i = unit.first_input; i < unit.end_input; ++i) {
            const Operand& input = plan.padding_inputs[static_cast<std::size_t>(i)];
            const bool* from = static_cast<const bool*>(input.data) + b * input.sample_stride;
            if (input.row_stride == 0) {
                if (from[0]) std::fill_n(out, unit.num_moments, true);
                continue;
            }
            for (std::int64_t t = 0; t < unit.num_moments; ++t) out[t] = out[t] | from[t];  // bool (B, T): stride 1
        }
    }
}

/// Moments of both from those of each (Chan, Golub and LeVeque).
void merge(const double* part, std::int64_t num_channels, double* all) {
    for (std::int64_t c = 0; c < num_channels; ++c) {
        const auto at = [&](int row) { return row * num_channels + c; };
        const double count = part[at(0)];
        all[at(5)] += part[at(5)];
        if (count == 0) continue;
        const double before = all[at(0)];
        const double total = before + count;
        const double delta = part[at(1)] - all[at(1)];
        all[at(0)] = total;
        all[at(1)] += delta * (count / total);
        all[at(2)] += part[at(2)] + delta * delta * (before * (count / total));
        all[at(3)] = std::min(all[at(3)], part[at(3)]);
        all[at(4)] = std::max(all[at(4)], part[at(4)]);
    }
}

}  // namespace

void compose_cpu(const FeaturesPlan& plan) {
    std::int64_t sample_ps = 1;
    for (const FeatureUnit& unit : plan.units) sample_ps += unit.num_moments * moment_ps(unit);
    constexpr std::int64_t part_ps = 60'000'000;  // waking a thread takes a quarter of this
    const std::int64_t grain = std::clamp<std::int64_t>(part_ps / sample_ps, 1, plan.num_samples);
    const FeatureKernels& kernels = best_feature_kernels();
    parallel_for(plan.num_samples, grain, [&](std::int64_t begin, std::int64_t end) {
        for (const FeatureUnit& unit : plan.units) kernels.compose(unit, begin, end);
        for (const PaddingUnit& unit : plan.paddings) write_padding(plan, unit, begin, end);
    });
}

}  // namespace loader_detail

using namespace loader_detail;

void accumulate_moments(const TensorView& values, const std::optional<TensorView>& padding, const TensorView& moments) {
    constexpr std::string_view op = "accumulate_moments";
    require_rank(op, "values", values, 2);
    require_device(op, "values", values, Device{});
    require_contiguous(op, "values", values);
    if (!is_floating(values.dtype)) fail(op, "values", "have a floating dtype", name(values.dtype));
    const std::int64_t num_rows = values.shape[0];
    const std::int64_t num_channels = values.shape[1];
    if (padding) {
        require_list(op, "padding", *padding, DType::boolean, Device{});
        require_size(op, "padding", *padding, num_rows);
    }
    require_rank(op, "moments", moments, 2);
    require_dtype(op, "moments", moments, DType::f64);
    require_device(op, "moments", moments, Device{});
    require_contiguous(op, "moments", moments);
    if (moments.shape[0] != 6 || moments.shape[1] != num_channels) {
        fail(op, "moments", "have shape (6, " + std::to_string(num_channels) + ")", shape_text(moments));
    }
    const std::int64_t num_chunks = (num_rows + moment_rows - 1) / moment_rows;
    std::vector<double> parts(static_cast<std::size_t>(num_chunks * 6 * num_channels));
    const FeatureKernels& kernels = best_feature_kernels();
    parallel_for(num_chunks, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = i * moment_rows;
            const auto* first = static_cast<const char*>(values.data) + row * num_channels * size_bytes(values.dtype);
            kernels.moments({first, values.dtype, padding ? static_cast<const bool*>(padding->data) + row : nullptr,
                             std::min(moment_rows, num_rows - row), num_channels, parts.data() + i * 6 * num_channels});
        }
    });
    for (std::int64_t i = 0; i < num_chunks; ++i) {
        merge(parts.data() + i * 6 * num_channels, num_channels, static_cast<double*>(moments.data));
    }
}

}  // namespace robocache
