// The contract of the loader's operations, then dispatch to the device the tensors live on.
#include "robocache/loader.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "batch/contract.hpp"

namespace robocache {
namespace loader_detail {

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

namespace {

constexpr std::int64_t most_weighted_anchors = INT32_MAX;

void require_aliases(std::string_view op, const ArgumentName& argument, const std::int64_t* slots, std::int64_t count) {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < count; ++i) most = std::max(most, slot_of(slots[i]).alias);
    if (most >= count) {
        fail(op, argument, "have aliases below " + std::to_string(count), std::to_string(most));
    }
}

TablePlan plan_of(std::string_view op, const AnchorTable& table, std::size_t i, Device device) {
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
    const std::int64_t* slots = nullptr;
    if (table.slots) {
        if (table.num_anchors > most_weighted_anchors) {
            fail(op, named("num_anchors"), "be below 2^31 where anchors have weights",
                 std::to_string(table.num_anchors));
        }
        require_list(op, named("slots"), *table.slots, DType::i64, device);
        require_size(op, named("slots"), *table.slots, table.num_anchors);
        slots = static_cast<const std::int64_t*>(table.slots->data);
        if (device.type != DeviceType::cuda) require_aliases(op, named("slots"), slots, table.num_anchors);
    }
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
            static_cast<std::int32_t>(std::bit_width(static_cast<std::uint64_t>(table.num_anchors - 1))),
            nullptr,
            0,
            slots};
}

/// Positions of a mixture count on through the epochs.
std::int64_t first_of_epoch(std::string_view op, const SampleOrder& order, std::int64_t positions) {
    if (order.epoch_size < positions) {
        fail(op, "epoch_size", "hold all positions asked for, " + std::to_string(positions),
             std::to_string(order.epoch_size));
    }
    std::int64_t first = 0;
    if (__builtin_mul_overflow(order.epoch, order.epoch_size, &first) || first > INT64_MAX - order.epoch_size) {
        fail(op, "epoch", "count fewer than 2^63 positions", std::to_string(order.epoch));
    }
    return first;
}

/// Numbers of samples, for positions [first, first + count). On a GPU their values are not looked at.
const std::int64_t* checked_numbers(std::string_view op, const TensorView& given, std::int64_t first,
                                    std::int64_t count, std::span<const TablePlan> tables, Device device) {
    require_list(op, "numbers", given, DType::i64, device);
    if (first + count > given.shape[0]) {
        fail(op, "numbers", "have " + std::to_string(first + count) + " entries", shape_text(given));
    }
    const auto* numbers = static_cast<const std::int64_t*>(given.data);
    if (device.type == DeviceType::cuda) return numbers;
    std::int64_t num_samples = 0;
    for (const TablePlan& table : tables) num_samples += table.num_anchors;
    for (std::int64_t i = first; i < first + count; ++i) {
        if (numbers[i] >= 0 && numbers[i] < num_samples) continue;
        fail(op, ArgumentName("numbers", static_cast<std::size_t>(i), ""),
             "be from 0 to " + std::to_string(num_samples - 1), std::to_string(numbers[i]));
    }
    return numbers;
}

}  // namespace

OrderPlan plan_tables(std::string_view op, std::span<const AnchorTable> tables, Device device, TablePlan* plans) {
    if (tables.empty() || tables.size() > max_anchor_tables) {
        fail(op, "tables", "be 1 to " + std::to_string(max_anchor_tables), std::to_string(tables.size()));
    }
    std::int64_t block_size = 0;
    std::int64_t num_episodes = 0;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        plans[i] = plan_of(op, tables[i], i, device);
        const std::int64_t quota = tables[i].quota;
        if (quota < 1 || quota > (1 << 24)) {
            fail(op, ArgumentName("tables", i, "quota"), "be 1 to 16777216", std::to_string(quota));
        }
        plans[i].block_end = static_cast<std::int32_t>(block_size += quota);
        plans[i].first_episode = num_episodes;
        num_episodes += plans[i].num_episodes;
    }
    OrderPlan order{};
    order.num_tables = static_cast<std::int64_t>(tables.size());
    order.block_size = static_cast<std::uint64_t>(block_size);
    order.block_bits = static_cast<std::int32_t>(std::bit_width(order.block_size - 1));
    return order;
}

std::uint64_t set_order(std::string_view op, const SampleOrder& order, std::int64_t first_position, std::int64_t count,
                        const TablePlan* tables, Device device, OrderPlan& plan) {
    if (order.epoch < 0) fail(op, "epoch", "be 0 or above", std::to_string(order.epoch));
    if (first_position < 0 || first_position > INT64_MAX - count) {
        fail(op, "first_position", "be 0 or above", std::to_string(first_position));
    }
    if (order.numbers) {
        plan.numbers = checked_numbers(op, *order.numbers, first_position, count,
                                       {tables, static_cast<std::size_t>(plan.num_tables)}, device);
        return static_cast<std::uint64_t>(first_position);
    }
    const std::int64_t num_anchors = tables[0].num_anchors;
    std::int64_t first = first_position;
    // An epoch that is no pass through the only table: a mixture of one, whose block is all its own.
    if (plan.num_tables == 1 && order.epoch_size > 0 && order.epoch_size != num_anchors) plan.num_tables = 2;
    if (plan.num_tables > 1) {
        first += first_of_epoch(op, order, first_position + count);
    } else if (first_position + count > num_anchors) {
        fail(op, "first_position", "leave " + std::to_string(count) + " of " + std::to_string(num_anchors) + " anchors",
             std::to_string(first_position));
    }
    plan.seed = order.seed;
    plan.key = key_of(order.seed, static_cast<std::uint64_t>(order.epoch), 1);
    plan.shuffle = order.shuffle;
    return static_cast<std::uint64_t>(first);
}

}  // namespace loader_detail

using namespace loader_detail;

void sample_anchors(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t first_position,
                    const TensorView& episode, const TensorView& anchor, [[maybe_unused]] CudaQueue stream) {
    constexpr std::string_view op = "sample_anchors";
    const Device device = episode.device;
    SamplePlan plan{};
    plan.order = plan_tables(op, tables, device, plan.tables);
    require_list(op, "episode", episode, DType::i64, device);
    require_list(op, "anchor", anchor, DType::i64, device);
    require_size(op, "anchor", anchor, episode.shape[0]);
    plan.count = episode.shape[0];
    plan.first_position = set_order(op, order, first_position, plan.count, plan.tables, device, plan.order);
    plan.episode = static_cast<std::int64_t*>(episode.data);
    plan.anchor = static_cast<std::int64_t*>(anchor.data);
    if (device.type != DeviceType::cuda) return sample_anchors_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    sample_anchors_cuda(plan, device.index, stream);
#else
    throw Unsupported("sample_anchors: this build contains no CUDA code, got tensors on " + name(device));
#endif
}

void normalize(const TensorView& values, const TensorView& offset, const TensorView& scale, const TensorView& out,
               [[maybe_unused]] CudaQueue stream) {
    constexpr std::string_view op = "normalize";
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
    const NormalizePlan plan{values.data,
                             out.data,
                             static_cast<const double*>(offset.data),
                             static_cast<const double*>(scale.data),
                             values.shape[0],
                             values.shape[1]};
    if (device.type != DeviceType::cuda) return normalize_cpu(plan, values.dtype, out.dtype);
#ifdef ROBOCACHE_HAS_CUDA
    normalize_cuda(plan, values.dtype, out.dtype, device.index, stream);
#else
    throw Unsupported("normalize: this build contains no CUDA code, got tensors on " + name(device));
#endif
}

}  // namespace robocache
