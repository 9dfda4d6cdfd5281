// What a BatchReader keeps on the GPU: made in index.cpp, read in launch.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "batch/cuda/table.hpp"
#include "batch/plan.hpp"
#include "core/cuda/check.hpp"
#include "core/cuda/memory.hpp"

namespace robocache::loader_detail {

inline constexpr std::int64_t max_blocks = (std::int64_t{1} << 31) - 1;

/// Memory on a GPU, for as long as this lives.
class Buffer {
public:
    Buffer(std::size_t bytes, int device) : data_(static_cast<char*>(allocate_cuda(bytes, device))) {}
    ~Buffer() { free_cuda(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    template <class T>
    [[nodiscard]] T* at(std::size_t offset) const {
        return reinterpret_cast<T*>(data_ + offset);
    }

private:
    char* data_;
};

/// The widest power of two up to 16 that divides all of them.
[[nodiscard]] inline std::uint64_t common_alignment(std::initializer_list<std::uint64_t> numbers) {
    std::uint64_t bits = 16;
    for (const std::uint64_t number : numbers) bits |= number;
    return bits & (~bits + 1);
}

struct BatchLayout;

class CudaBatch final : public BatchBackend {
public:
    CudaBatch(const BatchPlan& plan, CudaQueue stream);

    void read(const BatchPlan& plan, const BatchCall& call, CudaQueue stream) const override {
        const DeviceGuard guard(plan.device.index);
        for (std::size_t c = 0; c < columns_.size(); c += max_batch_columns) {
            read_columns(plan, call, c, std::min(c + max_batch_columns, columns_.size()), stream);
        }
    }

private:
    void write_tables(const BatchPlan& plan, BatchLayout& layout);
    void write_rows(const BatchPlan& plan, BatchLayout& layout);
    void describe_column(const BatchPlan& plan, const BatchLayout& layout, std::size_t c);
    void learn_from_episodes(const BatchPlan& plan, std::size_t c);

    void read_columns(const BatchPlan& plan, const BatchCall& call, std::size_t begin, std::size_t end,
                      CudaQueue stream) const;
    DeviceColumn bound(const ColumnPlan& plan, std::size_t c, const BatchCall& call) const;

    std::unique_ptr<Buffer> memory_;
    const TablePlan* tables_ = nullptr;
    TablePlan table_{};  // the first
    const EpisodeName* names_ = nullptr;
    std::vector<DeviceColumn> columns_;         // without outputs
    std::vector<std::uint64_t> in_alignments_;  // of the rows of all parts
    std::vector<bool> mostly_runs_;             // windows that lie on rows in GPU memory, of most episodes
};

}  // namespace robocache::loader_detail
