// normalize on the CPU, prepared once: offset and scale of each channel as the inner loop wants them.
#pragma once

#include <cstdint>
#include <vector>

#include "robocache/tensor.hpp"

namespace robocache::loader_detail {

class Scaling {
public:
    Scaling(const double* offset, const double* scale, std::int64_t num_channels, DType values, DType out);

    /// Elements of whole rows that are scaled in one go.
    [[nodiscard]] std::int64_t run() const { return run_; }

    /// out = (values - offset) * scale for `count` elements, of which the first is of channel 0.
    void apply(const void* values, void* out, std::int64_t count) const { apply_(*this, values, out, count); }

private:
    template <class In, class Out>
    static void apply_as(const Scaling& scaling, const void* values, void* out, std::int64_t count);
    template <class Compute>
    [[nodiscard]] const std::vector<Compute>& numbers() const;

    // `run_` offsets, then as many scales; in the type they are used in, the other one is empty.
    std::vector<float> single_;
    std::vector<double> double_;
    std::int64_t run_;
    void (*apply_)(const Scaling&, const void*, void*, std::int64_t) = nullptr;
};

}  // namespace robocache::loader_detail
