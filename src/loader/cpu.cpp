// The loader's operations on the CPU.
#include <vector>

#include "core/thread_pool.hpp"
#include "loader/kernel.hpp"

namespace robocache::loader_detail {

void sample_anchors_cpu(const SamplePlan& plan) {
    constexpr std::int64_t grain = 4096;  // some 100 microseconds
    parallel_for(plan.count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) sample_one(plan, i);
    });
}

namespace {

template <class In, class Out>
void scale_rows(const NormalisePlan& plan) {
    using Compute = typename ScaledIn<In>::type;
    const std::int64_t width = plan.num_channels;
    // Few channels are repeated so that the inner loop is long, and both numbers are in the type they are used in.
    const std::int64_t repeats = width < 256 ? 256 / width : 1;
    const std::int64_t run = width * repeats;
    std::vector<Compute> offset(static_cast<std::size_t>(run));
    std::vector<Compute> scale(static_cast<std::size_t>(run));
    for (std::int64_t c = 0; c < run; ++c) {
        offset[static_cast<std::size_t>(c)] = static_cast<Compute>(plan.offset[c % width]);
        scale[static_cast<std::size_t>(c)] = static_cast<Compute>(plan.scale[c % width]);
    }
    const std::int64_t total = plan.num_rows * width;
    const std::int64_t grain = (32768 + run - 1) / run;
    parallel_for((total + run - 1) / run, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
            const In* in = static_cast<const In*>(plan.values) + part * run;
            Out* out = static_cast<Out*>(plan.out) + part * run;
            const std::int64_t count = total - part * run < run ? total - part * run : run;
            const Compute* o = offset.data();
            const Compute* s = scale.data();
            for (std::int64_t c = 0; c < count; ++c) out[c] = scaled<Out>(in[c], o[c], s[c]);
        }
    });
}

}  // namespace

void normalise_cpu(const NormalisePlan& plan, DType values, DType out) {
    if (plan.num_rows == 0 || plan.num_channels == 0) return;
    with_type(values, [&]<class In>() { with_floating_type(out, [&]<class Out>() { scale_rows<In, Out>(plan); }); });
}

}  // namespace robocache::loader_detail
