// What a validated BatchReader knows, and one call of it: plain numbers and pointers, ready for any backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "batch/feature/plan.hpp"
#include "batch/order.hpp"
#include "core/huge_pages.hpp"
#include "ops/align/contract/plan.hpp"

namespace robocache::loader_detail {

struct ColumnPlan {
    std::vector<std::int64_t> deltas;
    DType dtype;    // of the batch
    DType written;  // of what is scaled: all bits of the blend, so that there is one rounding
    bool scaled;
    bool hidden;                // has no output
    std::int64_t num_channels;  // elements of a row
    TensorView row;             // the output for one sample, (1, T, ...); data is null

    [[nodiscard]] auto num_targets() const { return static_cast<std::int64_t>(deltas.size()); }
};

/// One column in one part. `stream` is bound to a contiguous output of dtype `written`.
struct RowsPlan {
    align_detail::StreamPlan stream;
    std::vector<double> offset;  // of each channel, in turn; empty unless scaled
    std::vector<double> scale;   // the same number of them
};

struct BatchPlan {
    Device device;
    OrderPlan order;
    std::vector<TablePlan> tables;
    std::vector<std::vector<Bucket, HugePageAllocator<Bucket>>> buckets;  // on the host, of each table
    std::vector<std::int64_t> part;                                       // of each episode
    std::vector<std::int64_t> local;
    std::vector<EpisodeName> names;  // empty: none were told
    std::int64_t num_parts;
    std::vector<ColumnPlan> columns;
    std::vector<RowsPlan> rows;  // [part * columns + column]
    std::vector<ReaderFeature> features;
    std::vector<TensorView> outputs;  // of one sample, (1, T, ...); data is null

    [[nodiscard]] const RowsPlan& rows_of(std::int64_t part_number, std::size_t column) const {
        return rows[static_cast<std::size_t>(part_number) * columns.size() + column];
    }
};

struct BatchCall {
    OrderPlan order;
    std::uint64_t first_position;  // as anchor_of_position counts
    std::int64_t count;            // samples
    std::span<const BatchOutput> outputs;

    StepPlan steps{nullptr, 1, 0, 0};  // where the device tells the step
    IndexPlan index{};                 // `names` is set by the backend
};

/// Anchors of a bucket, as a shift: about half an episode.
[[nodiscard]] std::int64_t bucket_shift(const TablePlan& table);

/// What a reader keeps besides its plan, on the device of the rows.
class BatchBackend {
public:
    virtual ~BatchBackend() = default;
    virtual void read(const BatchPlan& plan, const BatchCall& call, CudaQueue stream) const = 0;
    /// Where the host reads.
    [[nodiscard]] virtual PendingBatch read_ahead(const BatchPlan& plan, const BatchCall& call) const;
};

[[nodiscard]] std::unique_ptr<BatchBackend> make_host_batch(const BatchPlan& plan);
/// On the GPU. Throws Unsupported for what the kernel does not do.
[[nodiscard]] std::unique_ptr<BatchBackend> make_device_batch(const BatchPlan& plan, CudaQueue stream);

/// A view of host memory as the GPU sees it; throws where it is not pinned.
[[nodiscard]] TensorView on_device(const TensorView& values, Device device, const ArgumentName& argument);

}  // namespace robocache::loader_detail
