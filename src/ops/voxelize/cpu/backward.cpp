// The gradient of a dense grid of features on the CPU.
#include <vector>

#include "ops/voxelize/cpu/buckets.hpp"

namespace robocache::voxelize_detail {
namespace {

/// Calls body with the element type of a floating dtype.
template <class Body>
void with_floating(DType dtype, const Body& body) {
    switch (dtype) {
        case DType::f64: return body(double{});
        case DType::f16: return body(Half{});
        case DType::bf16: return body(BFloat16{});
        default: return body(float{});
    }
}

/// Every point of a cell gets the cell's gradient, divided by `counts` where there are any.
template <class Word, class Grad>
void share_out(const BackwardPlan& plan, const KeySpace& space, const std::int64_t* counts) {
    const KeyReader<Word> keys(plan, space, dense_shift(space.last(), 1));
    const auto none = static_cast<std::uint32_t>(keys.num_buckets());
    const std::int64_t channels = plan.features.num_channels;
    const Grad* gradient = static_cast<const Grad*>(plan.out_gradient);
    parallel_for(plan.num_points, serial_points, [&](std::int64_t begin, std::int64_t end) {
        const Scratch<Word> key(end - begin);
        const Scratch<std::uint32_t> bucket(end - begin);
        keys.read(begin, end, key.get(), bucket.get(), [](std::int64_t, std::int64_t) {});
        for (std::int64_t k = 0; k < end - begin; ++k) {
            float* to = plan.gradient + (begin + k) * plan.gradient_row_stride;
            const bool is_inside = bucket[k] != none;
            const std::int64_t cell = is_inside ? static_cast<std::int64_t>(key[k]) : 0;
            const Grad* from = gradient + cell * channels;
            const float n = is_inside && counts != nullptr ? static_cast<float>(counts[cell]) : 1.0F;
            for (std::int64_t c = 0; c < channels; ++c) {
                to[c * plan.gradient_channel_stride] = is_inside ? widen(from[c]) / n : 0.0F;
            }
        }
    });
}

template <class Word>
void share_out(const BackwardPlan& plan, const KeySpace& space) {
    Scratch<std::int64_t> counts;
    if (plan.reduction == Reduction::mean) {
        counts = Scratch<std::int64_t>(plan.total_cells());
        DensePlan counting;
        counting.points = plan.points;
        counting.num_points = plan.num_points;
        counting.num_clouds = plan.num_clouds;
        counting.grid = plan.grid;
        counting.reduction = Reduction::count;
        counting.out = counts.get();
        counting.out_dtype = DType::i64;
        voxelize_cpu(counting);
    }
    with_floating(plan.out_gradient_dtype, [&]<class Grad>(Grad) { share_out<Word, Grad>(plan, space, counts.get()); });
}

/// The feature of channel c, whatever its dtype.
float feature_at(const FeatureRows& rows, const char* row, std::int64_t c) {
    const char* at = row + c * rows.channel_stride;
    switch (rows.dtype) {
        case DType::f16: return widen(*reinterpret_cast<const Half*>(at));
        case DType::bf16: return widen(*reinterpret_cast<const BFloat16*>(at));
        case DType::u8: return widen(*reinterpret_cast<const std::uint8_t*>(at));
        default: return *reinterpret_cast<const float*>(at);
    }
}

/// The first point of a cell that has its extreme takes the gradient. Entries are in input order.
template <class Word, class Grad, class Value>
void give_to_first(const BackwardPlan& plan, std::span<const Entry<Word>> entries, std::int64_t first_cell,
                   std::uint8_t* taken) {
    const std::int64_t channels = plan.features.num_channels;
    const FeatureRows rows = feature_rows(plan.features, nullptr);
    const Grad* gradient = static_cast<const Grad*>(plan.out_gradient) + first_cell * channels;
    const Value* values = static_cast<const Value*>(plan.values) + first_cell * channels;
    for (const Entry<Word>& entry : entries) {
        const auto i = static_cast<std::int64_t>(entry.index);
        const std::int64_t at = static_cast<std::int64_t>(entry.local) * channels;
        float* to = plan.gradient + i * plan.gradient_row_stride;
        const char* row = rows.row(i);
        for (std::int64_t c = 0; c < channels; ++c) {
            const bool takes = taken[at + c] == 0 &&
                               extreme_key(feature_at(rows, row, c), true) == extreme_key(widen(values[at + c]), true);
            if (takes) taken[at + c] = 1;
            to[c * plan.gradient_channel_stride] = takes ? widen(gradient[at + c]) : 0.0F;
        }
    }
}

void clear(const BackwardPlan& plan) {
    parallel_for(plan.num_points, serial_points, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            float* to = plan.gradient + i * plan.gradient_row_stride;
            for (std::int64_t c = 0; c < plan.features.num_channels; ++c) to[c * plan.gradient_channel_stride] = 0;
        }
    });
}

template <class Word>
void give_to_first(const BackwardPlan& plan, const KeySpace& space) {
    const std::int64_t channels = plan.features.num_channels;
    const int shift = dense_shift(space.last(), channels * 9);
    const KeyReader<Word> keys(plan, space, shift);
    const Buckets<Word, Entry<Word>> buckets(keys);
    const std::int64_t workers = num_workers(buckets.size(), plan.num_points * (channels + 1));
    const std::int64_t most_values = std::min(std::int64_t{1} << shift, plan.total_cells()) * channels;
    std::vector<Scratch<std::uint8_t>> taken;
    taken.reserve(static_cast<std::size_t>(workers));
    for (std::int64_t w = 0; w < workers; ++w) taken.emplace_back(most_values);
    clear(plan);
    each_item(buckets.size(), workers, [&](std::int64_t worker, std::int64_t bucket) {
        std::uint8_t* flags = taken[static_cast<std::size_t>(worker)].get();
        std::memset(flags, 0, static_cast<std::size_t>(most_values));
        with_floating(plan.out_gradient_dtype, [&]<class Grad>(Grad) {
            with_floating(plan.values_dtype, [&]<class Value>(Value) {
                buckets.each_part(bucket, [&](std::span<const Entry<Word>> entries, auto) {
                    give_to_first<Word, Grad, Value>(plan, entries, bucket << shift, flags);
                });
            });
        });
    });
}

/// Every point of a bucket gets its share of its cell's gradient, by what the accumulators know of the cell.
template <class Word, class Grad>
void give_slopes(const BackwardPlan& plan, std::span<const Entry<Word>> entries, std::int64_t first_cell,
                 const Accumulators<Word>& accumulators) {
    using R = Rounds<Sums::deviation>;
    const std::int64_t channels = plan.features.num_channels;
    const FeatureRows rows = feature_rows(plan.features, nullptr);
    const Grad* gradient = static_cast<const Grad*>(plan.out_gradient) + first_cell * channels;
    const Planes& planes = accumulators.planes();
    for (const Entry<Word>& entry : entries) {
        const auto i = static_cast<std::int64_t>(entry.index);
        const auto n = static_cast<std::int64_t>(accumulators.counts()[entry.local]);
        float* to = plan.gradient + i * plan.gradient_row_stride;
        const char* row = rows.row(i);
        for (std::int64_t c = 0; c < channels; ++c) {
            const std::int64_t at = static_cast<std::int64_t>(entry.local) * channels + c;
            const std::uint32_t words[] = {planes.words[0][at], planes.words[1][at]};
            const std::int64_t sums[] = {planes.sums[0][at], planes.sums[1][at]};
            const float slope = R::slope(feature_at(rows, row, c), words, sums, n);
            to[c * plan.gradient_channel_stride] = widen(gradient[at]) * slope;
        }
    }
}

template <class Word>
void give_slopes(const BackwardPlan& plan, const KeySpace& space) {
    const std::int64_t channels = plan.features.num_channels;
    const int shift = dense_shift(space.last(), Accumulators<Word>::cell_bytes(plan.reduction, false, channels));
    const KeyReader<Word> keys(plan, space, shift);
    const Buckets<Word, Entry<Word>> buckets(keys);
    const std::int64_t workers = num_workers(buckets.size(), plan.num_points * (channels + 1));
    const std::int64_t most_cells = std::min(std::int64_t{1} << shift, plan.total_cells());
    std::vector<Accumulators<Word>> all;
    all.reserve(static_cast<std::size_t>(workers));
    for (std::int64_t w = 0; w < workers; ++w) all.emplace_back(plan.reduction, false, channels, most_cells);
    clear(plan);
    each_item(buckets.size(), workers, [&](std::int64_t worker, std::int64_t bucket) {
        Accumulators<Word>& accumulators = all[static_cast<std::size_t>(worker)];
        const std::int64_t first_cell = bucket << shift;
        accumulators.clear(std::min(most_cells, plan.total_cells() - first_cell));
        const auto each_part = [&](const auto& body) { buckets.each_part(bucket, body); };
        each_part([&](std::span<const Entry<Word>> entries, auto) {
            for (const Entry<Word>& entry : entries) ++accumulators.counts()[entry.local];
        });
        accumulators.add(each_part, feature_rows(plan.features, nullptr));
        with_floating(plan.out_gradient_dtype, [&]<class Grad>(Grad) {
            each_part([&](std::span<const Entry<Word>> entries, auto) {
                give_slopes<Word, Grad>(plan, entries, first_cell, accumulators);
            });
        });
    });
}

template <class Word>
void run(const BackwardPlan& plan, const KeySpace& space) {
    switch (traits_of(plan.reduction).family) {
        case ReductionFamily::extreme: return give_to_first<Word>(plan, space);
        case ReductionFamily::deviation: return give_slopes<Word>(plan, space);
        default: return share_out<Word>(plan, space);
    }
}

}  // namespace

void voxelize_backward_cpu(const BackwardPlan& plan) {
    if (plan.num_clouds == 0) return clear(plan);
    const KeySpace space = key_space(plan.grid, plan.num_clouds);
    if (needs_wide_words(space, plan.num_points)) return run<std::uint64_t>(plan, space);
    run<std::uint32_t>(plan, space);
}

}  // namespace robocache::voxelize_detail
