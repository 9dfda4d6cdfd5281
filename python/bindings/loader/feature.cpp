// Features for Python: how columns of a batch become features, described once; then composed batch by batch.
#include "robocache/feature.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/outputs.hpp"
#include "arrays/tensor_reader.hpp"
#include "batch/contract.hpp"
#include "batch/feature/tails.hpp"
#include "bindings.hpp"
#include "core/contract.hpp"
#include "core/cuda/memory.hpp"
#include "loader/features.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

constexpr std::string_view op = "compose";

constexpr std::array<std::string_view, 4> maths{"values", "angles", "rotation", "pose"};
constexpr std::array<std::string_view, 7> forms{"quaternion_xyzw", "quaternion_wxyz", "6d",   "6d_columns",
                                                "matrix",          "rotvec",          "euler"};

template <class Enum, std::size_t count>
Enum named(const std::array<std::string_view, count>& names, const std::string& name, const char* argument) {
    for (std::size_t i = 0; i < count; ++i) {
        if (names[i] == name) return static_cast<Enum>(i);
    }
    std::string known;
    for (const std::string_view one : names) known.append(known.empty() ? "" : ", ").append(one);
    fail(op, argument, "be one of " + known, "'" + name + "'");
}

class Composer {
public:
    explicit Composer(std::vector<GivenFeature> features) : features_(std::move(features)) {}

    /// columns: [values, padding, values, padding, ...] of a batch. Returns the same of all features. source: (B,)
    /// int64, or None.
    nb::list compose_batch(const nb::list& columns, const nb::object& source) const {
        TensorReader reader;
        std::vector<TensorView> inputs;
        for (std::size_t i = 0; i < nb::len(columns); ++i) {
            inputs.push_back(reader.read(columns[i], {op, {"columns", i, ""}}));
            if (inputs.back().rank < 2) fail(op, {"columns", i, ""}, "have samples and moments", "fewer dimensions");
        }
        std::optional<TensorView> source_view;
        if (!source.is_none()) source_view = reader.read(source, {op, "source"});
        nb::list made;
        std::vector<std::vector<FeaturePart>> parts(features_.size());
        std::vector<std::vector<FeatureChannels>> paddings(features_.size());
        std::vector<FeatureView> views;
        for (std::size_t f = 0; f < features_.size(); ++f) {
            const GivenFeature& given = features_[f];
            for (const GivenPart& part : given.parts) parts[f].push_back(part_of(part, inputs));
            for (const auto& [column, moment] : given.paddings) {
                paddings[f].push_back({at(inputs, 2 * column + 1), 0, moment});
            }
            FeatureView& view = views.emplace_back();
            view.parts = parts[f];
            view.paddings = paddings[f];
            make_outputs(given, inputs.empty() ? 0 : inputs[0].shape[0], reader, view, made);
            if (!given.offset.is_none()) {
                view.offset = reader.read(given.offset, {op, "offset"});
                view.scale = reader.read(given.scale, {op, "scale"});
                view.source = source_view;
            }
        }
        {
            const Unlocked unlocked;
            compose(views, reader.stream());
        }
        return made;
    }

    int traverse(visitproc visit, void* arg) const {
        for (const GivenFeature& feature : features_) {
            if (const int stopped = feature.traverse(visit, arg)) return stopped;
        }
        return 0;
    }
    void clear() { features_.clear(); }

private:
    static const TensorView& at(const std::vector<TensorView>& inputs, std::int64_t i) {
        if (i < 0 || i >= static_cast<std::int64_t>(inputs.size())) {
            fail(op, "columns", "be at least " + std::to_string(i + 1), std::to_string(inputs.size()));
        }
        return inputs[static_cast<std::size_t>(i)];
    }

    static std::optional<FeatureChannels> channels_of(const std::optional<GivenChannels>& given,
                                                      const std::vector<TensorView>& inputs) {
        if (!given) return std::nullopt;
        return FeatureChannels{as_rows(at(inputs, 2 * given->at(0))), given->at(1), given->at(2)};
    }

    static FeaturePart part_of(const GivenPart& given, const std::vector<TensorView>& inputs) {
        return {given.math,
                given.num_channels,
                given.period,
                given.stored,
                given.form,
                channels_of(given.values, inputs),
                channels_of(given.turn, inputs),
                channels_of(given.from_values, inputs),
                channels_of(given.from_turn, inputs)};
    }

    static void make_outputs(const GivenFeature& given, std::int64_t batch_size, TensorReader& reader,
                             FeatureView& view, nb::list& made) {
        TensorView values = given.values(batch_size, dtype_from_name(given.dtype, {op, "dtype"}));
        made.append(new_output(given.values_like, values.dtype, values, reader));
        TensorView padding = given.padding(batch_size);
        made.append(new_output(given.padding_like, DType::boolean, padding, reader));
        view.values = as_rows(values);
        view.padding = padding;
    }

    std::vector<GivenFeature> features_;
};

void accumulate(nb::handle values, const nb::object& padding, nb::handle moments) {
    TensorReader reader;
    const TensorView rows = reader.read(values, {"accumulate_moments", "values"});
    std::optional<TensorView> left_out;
    if (!padding.is_none()) left_out = reader.read(padding, {"accumulate_moments", "padding"});
    const TensorView into = reader.read(moments, {"accumulate_moments", "moments"}, Access::write);
    const Unlocked unlocked;
    accumulate_moments(rows, left_out, into);
}

/// Tails of rows of float32 or float64.
class AnyTails {
public:
    AnyTails(nb::handle brackets, const std::string& dtype) : dtype_(dtype_from_name(dtype, {name, "dtype"})) {
        TensorReader reader;
        const TensorView ends = read(reader, brackets, "brackets", 3, DType::f64);
        if (ends.shape[0] != 2 || ends.shape[1] != 2)
            fail(name, "brackets", "have shape (2, 2, C)", "shape " + shape_text(ends));
        num_channels_ = ends.shape[2];
        if (dtype_ == DType::f32) {
            single_.emplace(ends);
        } else if (dtype_ == DType::f64) {
            wide_.emplace(ends);
        } else {
            fail(name, "dtype", "be float32 or float64", dtype);
        }
    }

    void add(nb::handle values, nb::handle padding) {
        TensorReader reader;
        const TensorView rows = read(reader, values, "values", 2, dtype_);
        if (rows.shape[1] != num_channels_)
            fail(name, "values", "have the channels of brackets", "shape " + shape_text(rows));
        const TensorView left_out = read(reader, padding, "padding", 1, DType::boolean);
        loader_detail::require_size(name, "padding", left_out, rows.shape[0]);
        const auto* is_pad = static_cast<const bool*>(left_out.data);
        const Unlocked unlocked;
        if (single_) single_->add(static_cast<const float*>(rows.data), is_pad, rows.shape[0]);
        if (wide_) wide_->add(static_cast<const double*>(rows.data), is_pad, rows.shape[0]);
    }

    void values_at(nb::handle ranks, nb::handle values) {
        TensorReader reader;
        const TensorView wanted = read(reader, ranks, "ranks", 3, DType::i64);
        const TensorView made = read(reader, values, "values", 3, DType::f64, Access::write);
        for (const TensorView& each : {wanted, made}) {
            const bool fits = each.shape[0] == 2 && each.shape[1] == wanted.shape[1] && each.shape[2] == num_channels_;
            if (!fits) fail(name, "values", "have the shape (2, R, C) of ranks", "shape " + shape_text(each));
        }
        const auto* from = static_cast<const std::int64_t*>(wanted.data);
        auto* to = static_cast<double*>(made.data);
        const Unlocked unlocked;
        if (single_) single_->values_at(from, wanted.shape[1], to);
        if (wide_) wide_->values_at(from, wanted.shape[1], to);
    }

private:
    static constexpr std::string_view name = "Tails";

    static TensorView read(TensorReader& reader, nb::handle given, const char* argument, int rank, DType dtype,
                           Access access = Access::read) {
        const TensorView view = reader.read(given, {name, argument}, access);
        require_rank(name, argument, view, rank);
        require_dtype(name, argument, view, dtype);
        require_device(name, argument, view, Device{});
        loader_detail::require_contiguous(name, argument, view);
        return view;
    }

    DType dtype_;
    std::int64_t num_channels_ = 0;
    std::optional<loader_detail::Tails<float>> single_;
    std::optional<loader_detail::Tails<double>> wide_;
};

PyType_Slot cycle_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) {
                                  Py_VISIT(Py_TYPE(self));
                                  return nb::inst_ready(self) ? nb::inst_ptr<Composer>(self)->traverse(visit, arg) : 0;
                              })},
                             {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) {
                                  if (nb::inst_ready(self)) nb::inst_ptr<Composer>(self)->clear();
                                  return 0;
                              })},
                             {0, nullptr}};

}  // namespace

void bind_feature(nb::module_& m) {
    nb::class_<AnyTails>(m, "Tails")
        .def(nb::init<nb::handle, const std::string&>(), nb::arg("brackets"), nb::arg("dtype"))
        .def("add", &AnyTails::add, nb::arg("values"), nb::arg("padding"))
        .def("values_at", &AnyTails::values_at, nb::arg("ranks"), nb::arg("values"));
    nb::class_<GivenPart>(m, "FeaturePart")
        .def(
            "__init__",
            [](GivenPart* self, const std::string& math, std::int64_t num_channels, double period,
               const std::string& stored, const std::string& form, std::optional<GivenChannels> values,
               std::optional<GivenChannels> turn, std::optional<GivenChannels> from_values,
               std::optional<GivenChannels> from_turn) {
                for (const auto* given : {&values, &turn, &from_values, &from_turn}) {
                    if (*given && (*given)->size() != 3) {
                        fail(op, "channels", "be column, channel and moment", std::to_string((*given)->size()));
                    }
                }
                new (self) GivenPart{named<FeatureMath>(maths, math, "math"),
                                     num_channels,
                                     period,
                                     named<RotationForm>(forms, stored, "stored"),
                                     named<RotationForm>(forms, form, "form"),
                                     std::move(values),
                                     std::move(turn),
                                     std::move(from_values),
                                     std::move(from_turn)};
            },
            nb::arg("math"), nb::arg("num_channels") = 0, nb::arg("period") = 0.0,
            nb::arg("stored") = "quaternion_xyzw", nb::arg("form") = "quaternion_xyzw",
            nb::arg("values").none() = nb::none(), nb::arg("turn").none() = nb::none(),
            nb::arg("from_values").none() = nb::none(), nb::arg("from_turn").none() = nb::none());
    nb::class_<GivenFeature>(m, "FeatureRows")
        .def(
            "__init__",
            [](GivenFeature* self, std::vector<GivenPart> parts,
               std::vector<std::pair<std::int64_t, std::int64_t>> paddings, std::string dtype,
               std::vector<std::int64_t> row, std::int64_t num_moments, nb::object offset, nb::object scale,
               nb::object values_like, nb::object padding_like) {
                if (row.size() + 2 > TensorView::max_rank) fail(op, "row", "have fewer dimensions", "too many");
                new (self) GivenFeature{
                    std::move(parts),  std::move(paddings), std::move(dtype),       std::move(row),         num_moments,
                    std::move(offset), std::move(scale),    std::move(values_like), std::move(padding_like)};
            },
            nb::arg("parts"), nb::arg("paddings"), nb::arg("dtype"), nb::arg("row"), nb::arg("num_moments"),
            nb::arg("offset").none(), nb::arg("scale").none(), nb::arg("values_like"), nb::arg("padding_like"));
    nb::class_<Composer>(m, "Composer", nb::type_slots(cycle_slots))
        .def(nb::init<std::vector<GivenFeature>>(), nb::arg("features"))
        .def("compose", &Composer::compose_batch, nb::arg("columns"), nb::arg("source").none() = nb::none());
    m.def("accumulate_moments", &accumulate, nb::arg("values"), nb::arg("padding").none(), nb::arg("moments"));
}

}  // namespace robocache::python
