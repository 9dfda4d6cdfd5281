// What the loader's operations ask of their arguments.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "batch/order.hpp"
#include "core/contract.hpp"

namespace robocache::loader_detail {

void require_contiguous(std::string_view op, const ArgumentName& argument, const TensorView& tensor);
void require_size(std::string_view op, const ArgumentName& argument, const TensorView& tensor, std::int64_t size);
/// One dimension, contiguous.
void require_list(std::string_view op, const ArgumentName& argument, const TensorView& tensor, DType dtype,
                  Device device);

/// Fills `plans`, one for each table; returns what they have in common.
[[nodiscard]] OrderPlan plan_tables(std::string_view op, std::span<const AnchorTable> tables, Device device,
                                    TablePlan* plans);

/// The order of an epoch, for `count` positions from first_position on, of tables on a device. Returns the first
/// position as the kernels count: through all epochs for a mixture.
[[nodiscard]] std::uint64_t set_order(std::string_view op, const SampleOrder& order, std::int64_t first_position,
                                      std::int64_t count, const TablePlan* tables, Device device, OrderPlan& plan);

}  // namespace robocache::loader_detail
