// Features of one sample, composed while its rows are in the caches: rows of hidden columns are read where they lie in
// the stream, or else from memory of the thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "batch/feature/cpu/kernels.hpp"
#include "batch/plan.hpp"

namespace robocache::loader_detail {

class SampleFeatures {
public:
    /// outputs: of the features.
    SampleFeatures(const BatchPlan& plan, std::span<const BatchOutput> outputs)
        : kernels_(best_feature_kernels()), columns_(plan.features.empty() ? 0 : plan.columns.size()) {
        std::size_t num_units = 0;
        for (const ReaderFeature& feature : plan.features) num_units += feature.units.size();
        units_.reserve(num_units);  // addresses stay
        for (std::size_t f = 0; f < plan.features.size(); ++f) add(plan.features[f], outputs[f]);
    }
    SampleFeatures(const SampleFeatures&) = delete;
    SampleFeatures& operator=(const SampleFeatures&) = delete;

    [[nodiscard]] bool is_empty() const { return features_.empty(); }

    /// Rows of a column, of the next sample. padding: null where none of them is.
    void set(std::size_t column, const char* rows, const bool* padding) {
        if (!columns_.empty()) columns_[column] = {rows, padding};
    }

    /// Sample b of the batch. source: of its episode.
    void compose(std::int64_t b, const std::int64_t* source) {
        for (const Patch& patch : patches_) *patch.data = columns_[patch.column].rows + patch.offset_bytes;
        for (const Feature& feature : features_) {
            for (std::size_t i = feature.first_unit; i < feature.end_unit; ++i) {
                FeatureUnit& unit = units_[i].unit;
                unit.out = feature.values + b * feature.sample_bytes + units_[i].out_bytes;
                if (feature.plan->has_sources) unit.source = source;
                kernels_.compose(unit, 0, 1);
            }
            if (feature.padding != nullptr) write_padding(feature, feature.padding + b * feature.plan->num_moments);
        }
    }

private:
    struct Column {
        const char* rows = nullptr;
        const bool* padding = nullptr;
    };
    struct Unit {
        FeatureUnit unit;
        std::int64_t out_bytes;
    };
    /// An operand, and where it is in the rows of its column.
    struct Patch {
        const void** data;
        std::size_t column;
        std::int64_t offset_bytes;
    };
    struct Feature {
        const ReaderFeature* plan;
        char* values;
        bool* padding;  // null: not requested
        std::int64_t sample_bytes;
        std::size_t first_unit;
        std::size_t end_unit;
    };

    void add(const ReaderFeature& plan, const BatchOutput& output) {
        const std::size_t first = units_.size();
        for (std::size_t i = 0; i < plan.units.size(); ++i) {
            FeatureUnit& unit = units_.emplace_back(Unit{plan.units[i], plan.out_bytes[i]}).unit;
            Operand* const operands[] = {&unit.values, &unit.turn, &unit.from_values, &unit.from_turn};
            for (std::size_t k = 0; k < 4; ++k) {
                const OperandPlace& place = plan.places[i][k];
                if (place.column < 0) continue;
                patches_.push_back({&operands[k]->data, static_cast<std::size_t>(place.column), place.offset_bytes});
            }
        }
        features_.push_back({&plan, static_cast<char*>(output.values.data),
                             output.padding ? static_cast<bool*>(output.padding->data) : nullptr,
                             plan.num_moments * plan.width * size_bytes(plan.dtype), first, units_.size()});
    }

    void write_padding(const Feature& feature, bool* out) const {
        const std::int64_t num_moments = feature.plan->num_moments;
        std::fill_n(out, num_moments, false);
        for (const ColumnChannels& each : feature.plan->paddings) {
            const bool* padding = columns_[each.column].padding;
            if (padding == nullptr) continue;
            if (each.moment < 0) {
                for (std::int64_t t = 0; t < num_moments; ++t) out[t] = out[t] | padding[t];
            } else if (padding[each.moment]) {
                std::fill_n(out, num_moments, true);
            }
        }
    }

    const FeatureKernels& kernels_;
    std::vector<Column> columns_;
    std::vector<Unit> units_;
    std::vector<Patch> patches_;
    std::vector<Feature> features_;
};

}  // namespace robocache::loader_detail
