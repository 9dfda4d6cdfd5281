// The contract of compose and accumulate_moments, then dispatch to the device the tensors live on.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "batch/contract.hpp"
#include "batch/feature/plan.hpp"
#include "robocache/feature.hpp"

namespace robocache {
namespace loader_detail {
namespace {

constexpr std::string_view op = "compose";

/// What the parts of one feature have in common.
struct Shared {
    Device device;
    std::int64_t num_samples;
    std::int64_t num_moments;
    std::size_t feature;

    [[nodiscard]] ArgumentName named(std::string_view field) const { return {"features", feature, field}; }
};

Operand operand_of(const Shared& shared, const FeatureChannels& given, int rank, std::int64_t num_channels,
                   const char* field) {
    const TensorView& rows = given.rows;
    require_rank(op, shared.named(field), rows, rank);
    require_device(op, shared.named(field), rows, shared.device);
    require_contiguous(op, shared.named(field), rows);
    const std::int64_t width = rank == 3 ? rows.shape[2] : 1;
    const bool is_one = given.moment >= 0;
    const bool fits = rows.shape[0] == shared.num_samples &&
                      (is_one ? given.moment < rows.shape[1] : rows.shape[1] == shared.num_moments) &&
                      given.channel >= 0 && given.channel + num_channels <= width;
    if (!fits) {
        fail(op, shared.named(field),
             "have " + std::to_string(shared.num_samples) + " samples, their moments and " +
                 std::to_string(num_channels) + " channels from " + std::to_string(given.channel) + " on",
             "shape " + shape_text(rows));
    }
    const std::int64_t first = (is_one ? given.moment * width : 0) + given.channel;
    return {static_cast<const char*>(rows.data) + first * size_bytes(rows.dtype), rows.shape[1] * width,
            is_one ? 0 : width, rows.dtype};
}

Operand optional_operand(const Shared& shared, const std::optional<FeatureChannels>& given, std::int64_t num_channels,
                         const char* field) {
    return given ? operand_of(shared, *given, 3, num_channels, field) : Operand{};
}

bool is_quaternion(RotationForm form) {
    return form == RotationForm::quaternion_xyzw || form == RotationForm::quaternion_wxyz;
}

/// A part, without its output. `channels`: those of the output.
FeatureUnit unit_of(const Shared& shared, const FeaturePart& part, std::int64_t& channels) {
    FeatureUnit unit{};
    const bool turns = part.math == FeatureMath::rotation || part.math == FeatureMath::pose;
    const bool has_values = part.math != FeatureMath::rotation;
    const std::int64_t count = part.math == FeatureMath::pose ? 3 : has_values ? part.num_channels : 0;
    if (part.values.has_value() != has_values || part.turn.has_value() != turns) {
        fail(op, shared.named("parts"), "have the inputs of their math", "others");
    }
    const bool relative = part.from_values || part.from_turn;
    if (relative && (part.from_values.has_value() != has_values || part.from_turn.has_value() != turns)) {
        fail(op, shared.named("parts"), "be relative as a whole", "an anchor for a half");
    }
    if (turns && !is_quaternion(part.stored)) fail(op, shared.named("parts"), "store quaternions", "another form");
    if (part.math == FeatureMath::angles && !(part.period > 0)) {
        fail(op, shared.named("period"), "be above 0", number_text(part.period));
    }
    unit.math = part.math;
    unit.stored = part.stored;
    unit.form = part.form;
    unit.num_channels = static_cast<std::int32_t>(count);
    unit.period = part.period;
    unit.num_moments = shared.num_moments;
    unit.values = optional_operand(shared, part.values, count, "values");
    unit.turn = optional_operand(shared, part.turn, 4, "turn");
    unit.from_values = optional_operand(shared, part.from_values, count, "from_values");
    unit.from_turn = optional_operand(shared, part.from_turn, 4, "from_turn");
    channels = count + (turns ? num_channels(part.form) : 0);
    return unit;
}

void require_output(const Shared& shared, const FeatureView& feature, std::int64_t width) {
    const TensorView& out = feature.values;
    require_contiguous(op, shared.named("values"), out);
    if (out.shape[2] != width) {
        fail(op, shared.named("values"), "have " + std::to_string(width) + " channels", shape_text(out));
    }
    require_rank(op, shared.named("padding"), feature.padding, 2);
    require_dtype(op, shared.named("padding"), feature.padding, DType::boolean);
    require_device(op, shared.named("padding"), feature.padding, shared.device);
    require_contiguous(op, shared.named("padding"), feature.padding);
    if (feature.padding.shape[0] != shared.num_samples || feature.padding.shape[1] != shared.num_moments) {
        fail(op, shared.named("padding"), "have a number for each moment", "shape " + shape_text(feature.padding));
    }
    if (is_floating(out.dtype)) return;
    for (const FeaturePart& part : feature.parts) {  // only copies
        const bool same = part.math == FeatureMath::values && !part.from_values && part.values->rows.dtype == out.dtype;
        if (!same || feature.offset) fail(op, shared.named("values"), "have a floating dtype", name(out.dtype));
    }
}

void set_scale(const FeatureView& feature, std::int64_t channel, FeatureUnit& unit) {
    if (!feature.offset) return;
    unit.offset = static_cast<const double*>(feature.offset->data) + channel;
    unit.scale = static_cast<const double*>(feature.scale->data) + channel;
    unit.source = feature.source ? static_cast<const std::int64_t*>(feature.source->data) : nullptr;
}

void require_scale(const Shared& shared, const FeatureView& feature, std::int64_t width) {
    if (feature.offset.has_value() != feature.scale.has_value()) {
        fail(op, shared.named("scale"), "be given with offset", "one of them");
    }
    if (!feature.offset) return;
    for (const TensorView& list : {*feature.offset, *feature.scale}) {
        require_rank(op, shared.named("offset"), list, 2);
        require_dtype(op, shared.named("offset"), list, DType::f64);
        require_device(op, shared.named("offset"), list, shared.device);
        require_contiguous(op, shared.named("offset"), list);
        if (list.shape[1] != width || list.shape[0] < 1 || (list.shape[0] > 1 && !feature.source)) {
            fail(op, shared.named("offset"), "have " + std::to_string(width) + " numbers for each source",
                 "shape " + shape_text(list));
        }
    }
    if (!feature.source) return;
    require_list(op, shared.named("source"), *feature.source, DType::i64, shared.device);
    require_size(op, shared.named("source"), *feature.source, shared.num_samples);
}

void add_feature(const FeatureView& feature, std::size_t number, FeaturesPlan& plan) {
    require_rank(op, ArgumentName("features", number, "values"), feature.values, 3);
    const Shared shared{feature.values.device, feature.values.shape[0], feature.values.shape[1], number};
    if (number == 0) {
        plan.device = shared.device;
        plan.num_samples = shared.num_samples;
    }
    require_device(op, shared.named("values"), feature.values, plan.device);
    if (shared.num_samples != plan.num_samples) {
        fail(op, shared.named("values"), "have " + std::to_string(plan.num_samples) + " samples",
             shape_text(feature.values));
    }
    const std::size_t first = plan.units.size();
    std::vector<std::int64_t> channels;
    std::int64_t width = 0;
    for (const FeaturePart& part : feature.parts) {
        channels.push_back(width);
        std::int64_t count = 0;
        plan.units.push_back(unit_of(shared, part, count));
        width += count;
    }
    require_output(shared, feature, width);
    require_scale(shared, feature, width);
    const std::int64_t size = size_bytes(feature.values.dtype);
    for (std::size_t i = 0; i < channels.size(); ++i) {
        FeatureUnit& unit = plan.units[first + i];
        unit.dtype = feature.values.dtype;
        unit.width = static_cast<std::int32_t>(width);
        unit.out = static_cast<char*>(feature.values.data) + channels[i] * size;
        set_scale(feature, channels[i], unit);
    }
    const auto begin = static_cast<std::int32_t>(plan.padding_inputs.size());
    for (const FeatureChannels& padding : feature.paddings) {
        require_dtype(op, shared.named("paddings"), padding.rows, DType::boolean);
        plan.padding_inputs.push_back(operand_of(shared, padding, 2, 1, "paddings"));
    }
    plan.paddings.push_back({begin, static_cast<std::int32_t>(plan.padding_inputs.size()), shared.num_moments,
                             static_cast<bool*>(feature.padding.data)});
}

/// One sample of every column and feature of a reader: compose's contract reads views.
struct OneSample {
    explicit OneSample(std::span<const ColumnRows> columns) {
        for (const ColumnRows& column : columns) {
            rows.push_back(view(column.dtype, column.num_moments, column.num_channels));
            padding.push_back(padding_of(column.num_moments));
        }
    }

    TensorView view(DType dtype, std::int64_t num_moments, std::int64_t num_channels) {
        return {memory_of(num_moments * num_channels * size_bytes(dtype)), dtype, {1, num_moments, num_channels}};
    }
    TensorView padding_of(std::int64_t num_moments) {
        return {memory_of(num_moments), DType::boolean, {1, num_moments}};
    }
    void* memory_of(std::int64_t bytes) {
        return memory.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))).data();
    }

    std::vector<std::vector<char>> memory;
    std::vector<TensorView> rows, padding;
};

FeatureChannels channels_of(const OneSample& sample, std::size_t feature, const ColumnChannels& given,
                            bool of_padding) {
    const std::vector<TensorView>& columns = of_padding ? sample.padding : sample.rows;
    if (given.column >= columns.size()) {
        fail(op, ArgumentName("features", feature, "column"), "be below " + std::to_string(columns.size()),
             std::to_string(given.column));
    }
    return {columns[given.column], of_padding ? 0 : given.channel, given.moment};
}

std::optional<FeatureChannels> channels_of(const OneSample& sample, std::size_t feature,
                                           const std::optional<ColumnChannels>& given) {
    return given ? std::optional(channels_of(sample, feature, *given, false)) : std::nullopt;
}

/// Channels that a part has in the output.
std::int64_t width_of(const FeaturePart& part) {
    const std::int64_t turned = part.turn ? num_channels(part.form) : 0;
    return turned + (part.math == FeatureMath::pose ? 3 : part.math == FeatureMath::rotation ? 0 : part.num_channels);
}

OperandPlace place_of(const OneSample& sample, const std::optional<ColumnChannels>& given, const Operand& operand) {
    if (!given) return {};
    const auto* first = static_cast<const char*>(sample.rows[given->column].data);
    return {static_cast<std::int64_t>(given->column), static_cast<const char*>(operand.data) - first};
}

ReaderFeature plan_reader_feature(const BatchFeature& given, std::size_t number, OneSample& sample,
                                  std::int64_t num_sources) {
    ReaderFeature made;
    made.dtype = given.dtype;
    made.paddings.assign(given.paddings.begin(), given.paddings.end());
    std::vector<FeaturePart> parts;
    for (const auto& part : given.parts) {
        parts.push_back({part.math, part.num_channels, part.period, part.stored, part.form,
                         channels_of(sample, number, part.values), channels_of(sample, number, part.turn),
                         channels_of(sample, number, part.from_values), channels_of(sample, number, part.from_turn)});
        made.width += width_of(parts.back());
    }
    const auto& first = parts.empty()     ? std::optional<FeatureChannels>{}
                        : parts[0].values ? parts[0].values
                                          : parts[0].turn;
    if (!first) fail(op, ArgumentName("features", number, "parts"), "have a column each", "none");
    made.num_moments = first->moment < 0 ? first->rows.shape[1] : 1;
    std::vector<FeatureChannels> paddings;
    paddings.reserve(made.paddings.size());
    for (const ColumnChannels& each : made.paddings) paddings.push_back(channels_of(sample, number, each, true));
    FeatureView view{parts,
                     paddings,
                     sample.view(given.dtype, made.num_moments, made.width),
                     sample.padding_of(made.num_moments),
                     given.offset,
                     given.scale,
                     {}};
    std::int64_t source = 0;
    made.has_sources = given.offset && given.offset->rank > 0 && given.offset->shape[0] > 1;
    if (made.has_sources) {
        if (given.offset->shape[0] < num_sources || num_sources == 0) {
            fail(op, ArgumentName("features", number, "offset"), "have a row for each source that episodes name",
                 shape_text(*given.offset));
        }
        view.source = TensorView(&source, DType::i64, {1}, Device{});
    }
    FeaturesPlan plan;
    plan.num_samples = 1;
    add_feature(view, number, plan);
    for (std::size_t i = 0; i < plan.units.size(); ++i) {
        FeatureUnit& unit = plan.units[i];
        made.out_bytes.push_back(static_cast<const char*>(unit.out) - static_cast<const char*>(view.values.data));
        made.places.push_back({place_of(sample, given.parts[i].values, unit.values),
                               place_of(sample, given.parts[i].turn, unit.turn),
                               place_of(sample, given.parts[i].from_values, unit.from_values),
                               place_of(sample, given.parts[i].from_turn, unit.from_turn)});
        made.units.push_back(unit);
    }
    return made;
}

}  // namespace

std::vector<ReaderFeature> plan_reader_features(std::span<const BatchFeature> features,
                                                std::span<const ColumnRows> columns, std::int64_t num_sources) {
    OneSample sample(columns);
    std::vector<ReaderFeature> made;
    for (const BatchFeature& feature : features) {
        made.push_back(plan_reader_feature(feature, made.size(), sample, num_sources));
    }
    return made;
}

}  // namespace loader_detail

using namespace loader_detail;

std::int64_t num_channels(RotationForm form) noexcept {
    return form_size(form);
}

void compose(std::span<const FeatureView> features, [[maybe_unused]] CudaQueue queue) {
    if (features.empty()) return;
    FeaturesPlan plan;
    for (std::size_t i = 0; i < features.size(); ++i) add_feature(features[i], i, plan);
    if (plan.num_samples == 0) return;
    if (plan.device.type != DeviceType::cuda) return compose_cpu(plan);
#ifdef ROBOCACHE_HAS_CUDA
    compose_cuda(plan, queue);
#else
    throw Unsupported("compose: this build contains no CUDA code, got tensors on " + name(plan.device));
#endif
}

}  // namespace robocache
