// The loader's operations on the CPU.
#include <algorithm>
#include <type_traits>

#include "batch/order.hpp"
#include "batch/scaling.hpp"
#include "core/thread_pool.hpp"

namespace robocache::loader_detail {

void sample_anchors_cpu(const SamplePlan& plan) {
    constexpr std::int64_t grain = 4096;  // some 100 microseconds
    parallel_for(plan.count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) sample_one(plan, i);
    });
}

// Few channels are repeated so that the inner loop is long.
Scaling::Scaling(const double* offset, const double* scale, std::int64_t num_channels, DType values, DType out)
    : run_(num_channels < 256 ? 256 / num_channels * num_channels : num_channels) {
    const auto fill = [&]<class Compute>(std::vector<Compute>& numbers) {
        numbers.reserve(static_cast<std::size_t>(2 * run_));
        for (const double* from : {offset, scale}) {
            for (std::int64_t c = 0; c < run_; ++c) numbers.push_back(static_cast<Compute>(from[c % num_channels]));
        }
    };
    with_type(values, [&]<class In>() {
        if constexpr (std::is_same_v<typename ScaledIn<In>::type, float>) {
            fill(single_);
        } else {
            fill(double_);
        }
        with_floating_type(out, [&]<class Out>() { apply_ = &apply_as<In, Out>; });
    });
}

template <class Compute>
const std::vector<Compute>& Scaling::numbers() const {
    if constexpr (std::is_same_v<Compute, float>) {
        return single_;
    } else {
        return double_;
    }
}

template <class In, class Out>
void Scaling::apply_as(const Scaling& scaling, const void* values, void* out, std::int64_t count) {
    using Compute = typename ScaledIn<In>::type;
    const Compute* offset = scaling.numbers<Compute>().data();
    const Compute* scale = offset + scaling.run_;
    for (std::int64_t done = 0; done < count; done += scaling.run_) {
        const In* from = static_cast<const In*>(values) + done;
        Out* to = static_cast<Out*>(out) + done;
        const std::int64_t size = std::min(scaling.run_, count - done);
        for (std::int64_t c = 0; c < size; ++c) to[c] = scaled<Out>(from[c], offset[c], scale[c]);
    }
}

void normalize_cpu(const NormalizePlan& plan, DType values, DType out) {
    if (plan.num_rows == 0 || plan.num_channels == 0) return;
    const Scaling scaling(plan.offset, plan.scale, plan.num_channels, values, out);
    const std::int64_t total = plan.num_rows * plan.num_channels;
    const std::int64_t run = scaling.run();
    const std::int64_t grain = (32768 + run - 1) / run;
    parallel_for((total + run - 1) / run, grain, [&](std::int64_t begin, std::int64_t end) {
        scaling.apply(static_cast<const char*>(plan.values) + begin * run * size_bytes(values),
                      static_cast<char*>(plan.out) + begin * run * size_bytes(out),
                      std::min(end * run, total) - begin * run);
    });
}

}  // namespace robocache::loader_detail
