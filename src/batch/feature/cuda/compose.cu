// compose on CUDA: a thread for each moment of each part, all parts of all features in one launch.
#include <algorithm>

#include "batch/feature/plan.hpp"
#include "core/cuda/check.hpp"
#include "core/cuda/for_each.cuh"

namespace robocache::loader_detail {
namespace {

constexpr int most_units = 14;  // kernel parameters have 4 KiB
constexpr int most_paddings = 8;
constexpr int most_inputs = 24;

__device__ double load(const Operand& from, std::int64_t b, std::int64_t t, int c) {
    const std::int64_t i = b * from.sample_stride + t * from.row_stride + c;
    double x = 0;
    with_type(from.dtype, [&]<class T>() { x = as_double(static_cast<const T*>(from.data)[i]); });
    return x;
}

__device__ Quaternion load_turn(const Operand& from, RotationForm stored, std::int64_t b, std::int64_t t) {
    const int x = stored == RotationForm::quaternion_wxyz ? 1 : 0;
    return {load(from, b, t, x), load(from, b, t, x + 1), load(from, b, t, x + 2), load(from, b, t, x == 1 ? 0 : 3)};
}

__device__ void store(const FeatureUnit& unit, std::int64_t b, std::int64_t t, int c, double x) {
    const std::int64_t i = (b * unit.num_moments + t) * unit.width + c;
    if (unit.offset != nullptr) {
        const std::int64_t source = unit.source == nullptr ? 0 : unit.source[b] * unit.width;
        x = (x - unit.offset[source + c]) * unit.scale[source + c];
    }
    with_floating_type(unit.dtype, [&]<class T>() { static_cast<T*>(unit.out)[i] = align_detail::narrow<T>(x); });
}

__device__ void write_turn(const FeatureUnit& unit, std::int64_t b, std::int64_t t) {
    const bool relative = unit.from_turn.is_there();
    Quaternion from{0, 0, 0, 1};
    if (relative) {
        from = load_turn(unit.from_turn, unit.stored, b, 0);
        if (squared_length(from) == 0) from = {0, 0, 0, 1};  // NaN stays
    }
    int first = 0;
    if (unit.math == FeatureMath::pose) {
        Vector3 p{load(unit.values, b, t, 0), load(unit.values, b, t, 1), load(unit.values, b, t, 2)};
        if (relative) {
            const Vector3 way{p.x - load(unit.from_values, b, 0, 0), p.y - load(unit.from_values, b, 0, 1),
                              p.z - load(unit.from_values, b, 0, 2)};
            p = turned_back(matrix_of(from), way);
        }
        store(unit, b, t, 0, p.x);
        store(unit, b, t, 1, p.y);
        store(unit, b, t, 2, p.z);
        first = 3;
    }
    Quaternion q = load_turn(unit.turn, unit.stored, b, t);
    if (relative) q = seen_from(from, q);
    with_form(unit.form, [&]<RotationForm form>() {
        double made[9];
        write_form<form>(q, made);
        for (int c = 0; c < form_size(form); ++c) store(unit, b, t, first + c, made[c]);
    });
}

/// Copies of any dtype have only their bits to move.
__device__ void copy_channel(const FeatureUnit& unit, std::int64_t b, std::int64_t t, int c) {
    with_type(unit.dtype, [&]<class T>() {
        const auto* from = static_cast<const T*>(unit.values.data);
        static_cast<T*>(unit.out)[(b * unit.num_moments + t) * unit.width + c] =
            from[b * unit.values.sample_stride + t * unit.values.row_stride + c];
    });
}

__device__ void write_numbers(const FeatureUnit& unit, std::int64_t b, std::int64_t t) {
    const bool relative = unit.from_values.is_there();
    const bool is_copy = !relative && unit.offset == nullptr && unit.values.dtype == unit.dtype;
    for (int c = 0; c < unit.num_channels; ++c) {
        if (is_copy) {
            copy_channel(unit, b, t, c);
            continue;
        }
        double x = load(unit.values, b, t, c);
        if (relative) {
            const double from = load(unit.from_values, b, 0, c);
            x = unit.math == FeatureMath::angles ? angle_difference(x, from, unit.period) : x - from;
        }
        store(unit, b, t, c, x);
    }
}

/// Some units of a plan, passed by value. `ends`: items up to each unit, then up to each padding.
struct Compose {
    FeatureUnit units[most_units];
    PaddingUnit paddings[most_paddings];
    Operand inputs[most_inputs];
    std::int64_t ends[most_units + most_paddings];
    std::int32_t num_units;
    std::int32_t num_paddings;

    __device__ void operator()(std::int64_t i) const {
        int k = 0;
        while (i >= ends[k]) ++k;
        if (k > 0) i -= ends[k - 1];
        if (k < num_units) {
            const FeatureUnit& unit = units[k];
            const std::int64_t b = i / unit.num_moments;
            const std::int64_t t = i % unit.num_moments;
            if (unit.math == FeatureMath::values || unit.math == FeatureMath::angles) {
                write_numbers(unit, b, t);
            } else {
                write_turn(unit, b, t);
            }
            return;
        }
        const PaddingUnit& unit = paddings[k - num_units];
        const std::int64_t b = i / unit.num_moments;
        const std::int64_t t = i % unit.num_moments;
        bool is_padded = false;
        for (int j = unit.first_input; j < unit.end_input; ++j) {
            const Operand& input = inputs[j];
            is_padded =
                is_padded | static_cast<const bool*>(input.data)[b * input.sample_stride + t * input.row_stride];
        }
        unit.out[i] = is_padded;
    }
};
static_assert(sizeof(Compose) <= 4000, "the parameters of a kernel");

void launch(Compose& compose, std::int64_t num_samples, cudaStream_t stream) {
    std::int64_t end = 0;
    int k = 0;
    for (int u = 0; u < compose.num_units; ++u) {
        compose.ends[k++] = end += num_samples * compose.units[u].num_moments;
    }
    for (int p = 0; p < compose.num_paddings; ++p) {
        compose.ends[k++] = end += num_samples * compose.paddings[p].num_moments;
    }
    for_each(end, compose, stream, "compose");
    compose.num_units = compose.num_paddings = 0;
}

/// Sets some inputs of a padding; a padding with more inputs than fit is refused by compose_cuda.
void add(Compose& compose, const FeaturesPlan& plan, PaddingUnit unit, int& num_inputs) {
    const int first = num_inputs;
    for (std::int32_t j = unit.first_input; j < unit.end_input; ++j) {
        compose.inputs[num_inputs++] = plan.padding_inputs[static_cast<std::size_t>(j)];
    }
    unit.first_input = first;
    unit.end_input = num_inputs;
    compose.paddings[compose.num_paddings++] = unit;
}

}  // namespace

void compose_cuda(const FeaturesPlan& plan, CudaQueue queue) {
    const DeviceGuard guard(plan.device.index);
    const auto stream = static_cast<cudaStream_t>(queue.handle);
    Compose compose{};
    int num_inputs = 0;
    for (const FeatureUnit& unit : plan.units) {
        if (compose.num_units == most_units) launch(compose, plan.num_samples, stream);
        compose.units[compose.num_units++] = unit;
    }
    for (const PaddingUnit& unit : plan.paddings) {
        const int count = unit.end_input - unit.first_input;
        if (count > most_inputs) throw Unsupported("compose: a feature of more than 24 streams on a GPU");
        if (compose.num_paddings == most_paddings || num_inputs + count > most_inputs) {
            launch(compose, plan.num_samples, stream);
            num_inputs = 0;
        }
        add(compose, plan, unit, num_inputs);
    }
    launch(compose, plan.num_samples, stream);
}

}  // namespace robocache::loader_detail
