// The index of a batch: the episode and the anchor of each sample. The last blocks of the batch's launch write it.
#pragma once

#include "batch/cuda/table.hpp"
#include "batch/order.hpp"
#include "core/cuda/overlap.cuh"

namespace robocache::loader_detail {

/// Returns false in blocks that belong to a column. In the others every thread writes the index of one sample.
__device__ inline bool write_index(const BatchTable& table) {
    if (blockIdx.x < table.first_index_block) return false;
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x - table.first_index_block) * blockDim.x + threadIdx.x;
    Anchor found{};
    if (i < table.count) {
        std::uint64_t position = table.first_position + static_cast<std::uint64_t>(i);
        OrderPlan order = table.order;
        table.steps.apply(order, position);
        found = anchor_of_position(order.num_tables == 1 ? &table.table : table.tables, order, position);
    }
    if (!table.is_told_earlier) wait_for_earlier_work();
    if (i < table.count) table.index.write(i, found);
    return true;
}

}  // namespace robocache::loader_detail
