// The contract of the loader's operations, then dispatch to the device the tensors live on.
#include "robocache/loader.hpp"

#include <bit>
#include <cmath>
#include <string>

#include "core/contract.hpp"
#include "loader/kernel.hpp"

namespace robocache {
namespace {

using loader_detail::NormalisePlan;
using loader_detail::SamplePlan;
using loader_detail::TablePlan;

void require_contiguous(std::string_view op, const ArgumentName& argument, const TensorView& tensor) {
    std::int64_t stride = 1;
    for (int d = tensor.rank - 1; d >= 0; --d) {
        if (tensor.shape[d] > 1 && tensor.strides[d] != stride) {
            fail(op, argument, "be contiguous", "a stride of " + std::to_string(tensor.strides[d]));
        }
        stride *= tensor.shape[d];
    }
}

void require_size(std::string_view op, const ArgumentName& argument, const TensorView& tensor, std::int64_t size) {
    if (tensor.shape[0] != size) {
        fail(op, argument, "have shape (" + std::to_string(size) + ",)", shape_text(tensor));
    }
}

void require_list(std::string_view op, const ArgumentName& argument, const TensorView& tensor, DType dtype,
                  Device device) {
    require_rank(op, argument, tensor, 1);
    require_dtype(op, argument, tensor, dtype);
    require_device(op, argument, tensor, device);
    require_contiguous(op, argument, tensor);
}

TablePlan plan_of(const AnchorTable& table, std::size_t i, Device device) {
    constexpr std::string_view op = "sample_anchors";
    const auto named = [&](std::string_view field) { return ArgumentName("tables", i, field); };
    require_list(op, named("prefix"), table.prefix, DType::i64, device);
    require_list(op, named("times"), table.times, DType::i64, device);
    const std::int64_t num_episodes = table.prefix.shape[0] - 1;
    if (num_episodes < 1)
        fail(op, named("prefix"), "have a number for each episode and one more", shape_text(table.prefix));
    if (table.num_anchors < 1) fail(op, named("num_anchors"), "be at least 1", std::to_string(table.num_anchors));
    if (!(table.period_ns >= 0) || std::isinf(table.period_ns)) {
        fail(op, named("period_ns"), "be 0 or above", std::to_string(table.period_ns));
    }
    require_size(op, named("times"), table.times, table.period_ns > 0 ? num_episodes : table.num_anchors);
    const auto* prefix = static_cast<const std::int64_t*>(table.prefix.data);
    if (device.type != DeviceType::cuda && (prefix[0] != 0 || prefix[num_episodes] != table.num_anchors)) {
        fail(op, named("prefix"), "rise from 0 to " + std::to_string(table.num_anchors),
             std::to_string(prefix[0]) + " to " + std::to_string(prefix[num_episodes]));
    }
    return {prefix,
            static_cast<const std::int64_t*>(table.times.data),
            num_episodes,
            table.num_anchors,
            table.period_ns,
            0,
            0,
            static_cast<std::int32_t>(std::bit_width(static_cast<std::uint64_t>(table.num_anchors - 1)))};
}

/// Positions of a mixture count on through the epochs.
std::int64_t first_of_epoch(const SampleOrder& order, std::int64_t positions) {
    if (order.epoch_size < positions) {
        fail("sample_anchors", "epoch_size", "hold all positions asked for, " + std::to_string(positions),
             std::to_string(order.epoch_size));
    }
    std::int64_t first = 0;
    if (__builtin_mul_overflow(order.epoch, order.epoch_size, &first) || first > INT64_MAX - order.epoch_size) {
        fail("sample_anchors", "epoch", "count fewer than 2^63 positions", std::to_string(order.epoch));
    }
    return first;
}

}  // namespace

void sample_anchors(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t first_position,
                    const TensorView& episode, const TensorView& anchor, [[maybe_unused]] Stream stream) {
    constexpr std::string_view op = "sample_anchors";
    if (tables.empty() || tables.size() > max_anchor_tables) {
        fail(op, "tables", "be 1 to " + std::to_string(max_anchor_tables), std::to_string(tables.size()));
    }
    const Device device = episode.device;
    require_list(op, "episode", episode, DType::i64, device);
    require_list(op, "anchor", anchor, DType::i64, device);
    require_size(op, "anchor", anchor, episode.shape[0]);
    if (order.epoch < 0) fail(op, "epoch", "be 0 or above", std::to_string(order.epoch));
    const std::int64_t count = episode.shape[0];
    if (first_position < 0 || first_position > INT64_MAX - count) {
        fail(op, "first_position", "be 0 or above", std::to_string(first_position));
    }

    SamplePlan plan{};
    std::int64_t block_size = 0;
    std::int64_t num_episodes = 0;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        plan.tables[i] = plan_of(tables[i], i, device);
        const std::int64_t quota = tables[i].quota;
        if (quota < 1 || quota > (1 << 24)) {
            fail(op, ArgumentName("tables", i, "quota"), "be 1 to 16777216", std::to_string(quota));
        }
        plan.tables[i].block_end = static_cast<std::int32_t>(block_size += quota);
        plan.tables[i].first_episode = num_episodes;
        num_episodes += plan.tables[i].num_episodes;
    }
    std::int64_t first = first_position;
    if (tables.size() > 1) {
        first += first_of_epoch(order, first_position + count);
    } else if (first_position + count > tables[0].num_anchors) {
        fail(op, "first_position",
             "leave " + std::to_string(count) + " of " + std::to_string(tables[0].num_anchors) + " anchors",
             std::to_string(first_position));
    }
    plan.num_tables = static_cast<std::int64_t>(tables.size());
    plan.block_size = static_cast<std::uint64_t>(block_size);
    plan.block_bits = static_cast<std::int32_t>(std::bit_width(plan.block_size - 1));
    plan.seed = order.seed;
    plan.epoch = static_cast<std::uint64_t>(order.epoch);
    plan.first_position = static_cast<std::uint64_t>(first);
    plan.episode = static_cast<std::int64_t*>(episode.data);
    plan.anchor = static_cast<std::int64_t*>(anchor.data);
    plan.count = count;
    plan.shuffle = order.shuffle;
    if (device.type != DeviceType::cuda) return loader_detail::sample_anchors_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    loader_detail::sample_anchors_cuda(plan, device.index, stream);
#else
    throw Unsupported("sample_anchors: this build contains no CUDA code, got tensors on " + name(device));
#endif
}

void normalise(const TensorView& values, const TensorView& offset, const TensorView& scale, const TensorView& out,
               [[maybe_unused]] Stream stream) {
    constexpr std::string_view op = "normalise";
    const Device device = values.device;
    require_rank(op, "values", values, 2);
    require_contiguous(op, "values", values);
    require_rank(op, "out", out, 2);
    require_device(op, "out", out, device);
    require_contiguous(op, "out", out);
    if (out.shape != values.shape) fail(op, "out", "have shape " + shape_text(values), shape_text(out));
    if (!is_floating(out.dtype)) fail(op, "out", "have a floating dtype", name(out.dtype));
    if (out.data == values.data && out.dtype != values.dtype && values.num_elements() > 0) {
        fail(op, "out", std::string("have dtype ") + name(values.dtype) + " where it is the values", name(out.dtype));
    }
    for (const auto& [argument, tensor] :
         {std::pair<const char*, const TensorView&>{"offset", offset}, {"scale", scale}}) {
        require_list(op, argument, tensor, DType::f64, device);
        require_size(op, argument, tensor, values.shape[1]);
    }
    const NormalisePlan plan{values.data,
                             out.data,
                             static_cast<const double*>(offset.data),
                             static_cast<const double*>(scale.data),
                             values.shape[0],
                             values.shape[1]};
    if (device.type != DeviceType::cuda) return loader_detail::normalise_cpu(plan, values.dtype, out.dtype);
#ifdef ROBOCACHE_HAS_CUDA
    loader_detail::normalise_cuda(plan, values.dtype, out.dtype, device.index, stream);
#else
    throw Unsupported("normalise: this build contains no CUDA code, got tensors on " + name(device));
#endif
}

}  // namespace robocache
