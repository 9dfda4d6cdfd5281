// Dense grids on the CPU: points into buckets (Note [Buckets]), then each bucket's cells by one thread.
#include <vector>

#include "core/cpu_features.hpp"
#include "ops/voxelize/cpu/buckets.hpp"

namespace robocache::voxelize_detail {

template <class Word>
const CpuKernels<Word>& cpu_kernels() {
#ifdef ROBOCACHE_X86_64_V3
    if (has_x86_64_v3()) return kernels_x86_64_v3(Word{});
#endif
    return kernels_baseline(Word{});
}
template const CpuKernels<std::uint32_t>& cpu_kernels();
template const CpuKernels<std::uint64_t>& cpu_kernels();

namespace {

/// out[i] from counts[i], by reduction and dtype.
template <class Word>
void write_counts(const DensePlan& plan, const Word* counts, std::int64_t num_cells, void* to) {
    const auto each = [&]<class Out>(Out* out, const auto& value) {
        for (std::int64_t i = 0; i < num_cells; ++i) out[i] = static_cast<Out>(value(counts[i]));
    };
    if (plan.reduction == Reduction::occupancy) {
        const auto occupied = [](Word n) { return n > 0 ? 1 : 0; };
        switch (plan.out_dtype) {
            case DType::i32: return each(static_cast<std::int32_t*>(to), occupied);
            case DType::f32: return each(static_cast<float*>(to), occupied);
            default: return each(static_cast<std::uint8_t*>(to), occupied);
        }
    }
    switch (plan.out_dtype) {
        case DType::u8: return each(static_cast<std::uint8_t*>(to), [](Word n) { return n < 255 ? n : Word{255}; });
        case DType::i64: return each(static_cast<std::int64_t*>(to), [](Word n) { return n; });
        default: return each(static_cast<std::int32_t*>(to), [](Word n) { return n; });
    }
}

template <class Word, class Item>
class DenseWriter {
public:
    DenseWriter(const DensePlan& plan, const Buckets<Word, Item>& buckets, int shift)
        : plan_(plan),
          buckets_(buckets),
          shift_(shift),
          channels_(plan.has_features() ? plan.features.num_channels : 1),
          rows_(feature_rows(plan.features, plan.from_depth ? &plan.depth : nullptr)) {}

    void write(std::int64_t bucket, Accumulators<Word>& accumulators) const {
        const std::int64_t first = bucket << shift_;
        const std::int64_t num_cells = std::min(std::int64_t{1} << shift_, plan_.total_cells() - first);
        char* out = static_cast<char*>(plan_.out) + first * channels_ * size_bytes(plan_.out_dtype);
        const bool in_place = counts_in_place();
        Word* counts = in_place ? reinterpret_cast<Word*>(out) : accumulators.counts();
        if (in_place) {
            std::fill_n(counts, num_cells, Word{0});
        } else {
            accumulators.clear(num_cells);
        }
        const auto each_part = [&](const auto& body) { buckets_.each_part(bucket, body); };
        each_part([&](std::span<const Item> items, std::span<const Item>) {
            each_by_quarters(std::ssize(items),
                             [&](std::int64_t k, int) { ++counts[local_of(items[static_cast<std::size_t>(k)])]; });
        });
        if constexpr (std::is_same_v<Item, Entry<Word>>) {
            accumulators.add(each_part, rows_);
            accumulators.finish(out, plan_.out_dtype, plan_.fill, plan_.total_cells());
        } else if (!in_place) {
            write_counts(plan_, counts, num_cells, out);
        }
        if (plan_.counts == nullptr) return;
        for (std::int64_t i = 0; i < num_cells; ++i) plan_.counts[first + i] = static_cast<std::int32_t>(counts[i]);
    }

private:
    /// Whether the output is what is counted: then nothing is copied.
    [[nodiscard]] bool counts_in_place() const {
        return sizeof(Word) == 4 && plan_.reduction == Reduction::count && plan_.out_dtype == DType::i32;
    }

    static Word local_of(const Entry<Word>& entry) { return entry.local; }
    static Word local_of(Word entry) { return entry; }
    static Word local_of(std::uint16_t entry) { return entry; }

    const DensePlan& plan_;
    const Buckets<Word, Item>& buckets_;
    int shift_;
    std::int64_t channels_;
    FeatureRows rows_;
};

template <class Word, class Item>
void run(const DensePlan& plan, const KeySpace& space, int shift) {
    const KeyReader<Word> keys(plan, space, shift);
    const Buckets<Word, Item> buckets(keys);
    const std::int64_t channels = plan.has_features() ? plan.features.num_channels : 1;
    const std::int64_t workers = num_workers(buckets.size(), (plan.num_points + plan.total_cells()) * channels);
    std::vector<Accumulators<Word>> accumulators;
    accumulators.reserve(static_cast<std::size_t>(workers));
    for (std::int64_t w = 0; w < workers; ++w) {
        accumulators.emplace_back(plan.reduction, plan.deterministic, plan.features.num_channels,
                                  std::min(std::int64_t{1} << shift, plan.total_cells()));
    }
    if (plan.dropped != nullptr) std::copy_n(buckets.dropped(), plan.num_clouds, plan.dropped);
    const DenseWriter<Word, Item> writer(plan, buckets, shift);
    each_item(buckets.size(), workers, [&](std::int64_t worker, std::int64_t bucket) {
        writer.write(bucket, accumulators[static_cast<std::size_t>(worker)]);
    });
}

template <class Word>
void run_words(const DensePlan& plan, const KeySpace& space) {
    const std::int64_t cell_bytes =
        Accumulators<Word>::cell_bytes(plan.reduction, plan.deterministic, plan.features.num_channels);
    const int shift = dense_shift(space.last(), cell_bytes);
    if (plan.has_features()) return run<Word, Entry<Word>>(plan, space, shift);
    if (shift <= 16) return run<Word, std::uint16_t>(plan, space, shift);
    run<Word, Word>(plan, space, shift);
}

}  // namespace

void voxelize_cpu(const DensePlan& plan) {
    if (plan.num_clouds == 0) return;
    const KeySpace space = key_space(plan.grid, plan.num_clouds);
    if (needs_wide_words(space, plan.num_points)) return run_words<std::uint64_t>(plan, space);
    run_words<std::uint32_t>(plan, space);
}

}  // namespace robocache::voxelize_detail
