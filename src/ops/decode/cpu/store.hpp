// Writes rows of finished pixels into the output of a call.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decode/contract/plan.hpp"
#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {

/// Where one picture of the output begins.
struct PictureOutput {
    void* data;
    bool flip;
    Factors factors;
};

/// Writes row y: style.out_width pixels of style.channels interleaved bytes.
class RowStore {
public:
    explicit RowStore(const Style& style);
    /// `scratch`: memory of the calling thread.
    void write(const PictureOutput& output, int y, const std::uint8_t* row, std::vector<std::uint8_t>& scratch) const;

private:
    void write_planes(const PictureOutput& output, int y, const std::uint8_t* row,
                      std::vector<std::uint8_t>& scratch) const;
    template <class T>
    void write_as(const PictureOutput& output, int y, const std::uint8_t* row) const;
    template <class T, int channels>
    void write_pixels(const PictureOutput& output, int y, const std::uint8_t* row) const;

    const CpuKernels& kernels_ = cpu_kernels();
    const Style& style_;
    std::vector<std::uint32_t> values_;  // bits of the finished value of each byte, by channel
};

}  // namespace robocache::decode_detail
