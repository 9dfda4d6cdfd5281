// The kernel that writes the index of a batch: one thread for each sample.
#pragma once

#include "batch/order.hpp"
#include "core/cuda/overlap.cuh"

namespace robocache::loader_detail {

struct SampleIndex {
    TablePlan table;          // where there is one
    const TablePlan* tables;  // where there are more
    OrderPlan order;
    StepPlan steps;
    IndexPlan index;
    std::uint64_t first_position;
    std::int64_t count;
};

constexpr int index_samples_threads = 128;

__global__ void __launch_bounds__(index_samples_threads)
    robocache_index_samples(const __grid_constant__ SampleIndex job) {
    allow_next_kernel();
    // A step is somebody's earlier work; everything else that is read here was there before the reader.
    if (job.steps.step != nullptr) wait_for_earlier_work();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * index_samples_threads + threadIdx.x;
    Anchor found{};
    if (i < job.count) {
        std::uint64_t position = job.first_position + static_cast<std::uint64_t>(i);
        OrderPlan order = job.order;
        job.steps.apply(order, position);
        found = anchor_of_position(order.num_tables == 1 ? &job.table : job.tables, order, position);
    }
    wait_for_earlier_work();
    if (i < job.count) job.index.write(i, found);
}

}  // namespace robocache::loader_detail
