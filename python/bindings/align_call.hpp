// The arguments of an align call from Python: tuples into StreamViews, with everything that keeps them alive.
#pragma once

#include <nanobind/stl/string.h>

#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/contract.hpp"
#include "ops/align/backward.hpp"
#include "ops/align/plan.hpp"
#include "tensor_argument.hpp"

namespace robocache::python {

namespace nb = nanobind;
using align_detail::AlignPlan;
using align_detail::Names;
using align_detail::StreamNames;

inline std::string_view text(nb::handle object) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<std::size_t>(size)};
}

inline std::string repr_of(nb::handle object) {
    return nb::cast<std::string>(nb::repr(object));
}

/// ("op", "query name", (("values name", "times name", bare), ...)); the strings live as long as the Python objects.
inline Names read_names(const nb::tuple& names) {
    Names result;
    result.op = text(names[0]);
    result.query_times = text(names[1]);
    for (nb::handle item : nb::borrow<nb::tuple>(names[2])) {
        const auto stream = nb::borrow<nb::tuple>(item);
        result.streams.push_back({text(stream[0]), text(stream[1]), nb::cast<bool>(stream[2])});
    }
    return result;
}

/// A number in the unit of the times: whole nanoseconds for int64, seconds for floating.
inline Duration read_duration(nb::handle number, DType times, const Argument& argument) {
    if (times != DType::i64) {
        const double seconds = PyFloat_AsDouble(number.ptr());
        if (PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            fail(argument.op, argument.name, "be a number of seconds", repr_of(number));
        }
        return {0, seconds};
    }
    nb::object whole = nb::steal(PyNumber_Index(number.ptr()));
    PyErr_Clear();
    if (!whole.is_valid() && PyFloat_Check(number.ptr())) {
        const double value = PyFloat_AsDouble(number.ptr());
        if (std::floor(value) == value) whole = nb::steal(PyLong_FromDouble(value));  // 1e7; not 0.5, NaN
        PyErr_Clear();
    }
    int overflow = 0;
    const long long ns = whole.is_valid() ? PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow) : 0;
    if (!whole.is_valid() || overflow != 0) {
        fail(argument.op, argument.name, "be a whole number of nanoseconds with int64 times", repr_of(number));
    }
    return {ns, static_cast<double>(ns) / 1e9};
}

/// All arguments of one call, with everything that keeps them alive.
class AlignCall {
public:
    AlignCall(const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query) : names_(read_names(names)) {
        for (nb::handle stream : streams) add_stream(nb::borrow<nb::tuple>(stream));
        query_.times = optional_tensor(query[0], names_.query_times);
        query_.episode = optional_tensor(query[1], "episode");
        query_.anchor = optional_tensor(query[2], "anchor");
        query_.deltas = optional_tensor(query[3], "deltas");
        plan_ = align_detail::make_plan(views_, query_, names_);
    }

    /// ((shape, dtype name), ...) of the outputs.
    nb::list shapes() const {
        nb::list result;
        for (std::size_t i = 0; i < views_.size(); ++i) {
            const TensorView out = expected(i);
            nb::list shape;
            for (int d = 0; d < out.rank; ++d) shape.append(out.shape[d]);
            result.append(nb::make_tuple(nb::tuple(shape), name(out.dtype)));
        }
        return result;
    }

    /// Checks everything and computes nothing; `given` may be None where outputs are yet to be made.
    void check(nb::handle given, bool check_data) {
        std::vector<AlignOutput> outputs;
        if (given.is_none()) {
            for (std::size_t i = 0; i < views_.size(); ++i) outputs.push_back({expected(i), {}, {}});
        } else {
            outputs = read_outputs(given);
        }
        const Stream stream = tensors_.front().current_stream();
        const nb::gil_scoped_release unlocked;
        align_detail::bind_outputs(plan_, views_, outputs, names_);
        align_detail::check_data_anywhere(plan_, names_, check_data, stream);
    }

    void run(const nb::sequence& given, bool check_data) {
        const std::vector<AlignOutput> outputs = read_outputs(given);
        const Stream stream = tensors_.front().current_stream();
        const nb::gil_scoped_release unlocked;
        align_detail::run(plan_, views_, outputs, names_, {check_data}, stream);
    }

    /// Throws if a stream whose entry of `wanted` is true has a method without a gradient.
    void require_gradient(const nb::sequence& wanted) const {
        for (std::size_t i = 0; i < plan_.streams.size(); ++i) {
            if (nb::cast<bool>(wanted[i])) align_detail::require_gradient(plan_.streams[i], i, names_);
        }
    }

    /// For each stream (gradient of the output, gradient of the values to add to), or None.
    void run_backward(const nb::sequence& given) {
        std::vector<std::optional<AlignGradient>> gradients;
        for (nb::handle item : given) {
            std::optional<AlignGradient>& gradient = gradients.emplace_back();
            if (item.is_none()) continue;
            const auto pair = nb::borrow<nb::tuple>(item);
            gradient = {tensor(pair[0], "gradients"), tensor(pair[1], "gradients", Access::write)};
        }
        const Stream stream = tensors_.front().current_stream();
        const nb::gil_scoped_release unlocked;
        align_detail::run_backward(views_, query_, gradients, names_, stream);
    }

private:
    std::vector<AlignOutput> read_outputs(nb::handle given) {
        std::vector<AlignOutput> outputs;
        for (nb::handle item : given) outputs.push_back(output(nb::borrow<nb::tuple>(item), outputs.size()));
        return outputs;
    }

    /// (values, valid, index, column); with a column, this stream's part of a fused output.
    AlignOutput output(const nb::tuple& given, std::size_t i) {
        const std::string argument = "out[" + std::to_string(i) + "]";
        AlignOutput out{tensor(given[0], argument, Access::write),
                        optional_tensor(given[1], argument + ".valid", Access::write),
                        optional_tensor(given[2], argument + ".index", Access::write)};
        if (i < views_.size() && out_dtypes_[i] != views_[i].values.dtype && out.values.dtype != out_dtypes_[i]) {
            fail(names_.op, argument,
                 std::string("have dtype ") + name(out_dtypes_[i]) + " like " + names_.field(i, "dtype"),
                 name(out.values.dtype));
        }
        if (given[3].is_none() || i >= views_.size()) return out;
        const auto column = nb::cast<std::int64_t>(given[3]);
        const TensorView part = expected(i);
        out.values = out.values.slice(part.rank - 1, column, column + part.shape[part.rank - 1]);
        if (out.valid) {
            out.valid = out.valid->slice(2, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
            out.valid->rank = 2;
        }
        return out;
    }

    TensorView tensor(nb::handle object, std::string_view argument, Access access = Access::read) {
        return tensors_.emplace_back(read_tensor(object, {names_.op, argument}, access)).view;
    }

    std::optional<TensorView> optional_tensor(nb::handle object, std::string_view argument,
                                              Access access = Access::read) {
        if (object.is_none()) return std::nullopt;
        return tensor(object, argument, access);
    }

    void add_stream(const nb::tuple& spec) {
        const std::size_t i = views_.size();
        const auto field = [&](std::string_view name) { return names_.field(i, name); };
        StreamView view;
        view.values = tensor(spec[0], names_.values(i));
        view.times = tensor(spec[1], names_.times(i));
        view.offsets = optional_tensor(spec[2], field("offsets"));
        read_method(view, spec[3], field("method"));
        view.latency = read_duration(spec[4], view.times.dtype, {names_.op, field("latency")});
        if (!spec[5].is_none()) {
            view.max_gap = read_duration(spec[5], view.times.dtype, {names_.op, field("max_gap")});
        }
        read_outside(view, spec[6], field("outside"));
        if (!nb::try_cast(spec[7], view.outside_valid)) {
            fail(names_.op, field("outside_valid"), "be True or False", repr_of(spec[7]));
        }
        if (!nb::try_cast(spec[8], view.period)) fail(names_.op, field("period"), "be a number", repr_of(spec[8]));
        const std::string dtype = field("dtype");
        out_dtypes_.push_back(spec[9].is_none() ? view.values.dtype
                                                : dtype_from_name(text(spec[9]), {names_.op, dtype}));
        align_detail::require_output_dtype(names_, dtype, view.values.dtype, out_dtypes_.back());
        views_.push_back(view);
    }

    /// A name for both sides, or (before, after).
    void read_outside(StreamView& view, nb::handle outside, const std::string& argument) const {
        const bool pair = nb::isinstance<nb::sequence>(outside) && nb::len(outside) == 2;
        nb::object before = nb::borrow(outside);
        nb::object after = before;
        if (pair && !PyUnicode_Check(outside.ptr())) {
            before = outside[nb::int_(0)];
            after = outside[nb::int_(1)];
        }
        if (!PyUnicode_Check(before.ptr()) || !PyUnicode_Check(after.ptr())) {
            fail(names_.op, argument, "be a name or (before, after)", repr_of(outside));
        }
        view.before = align_detail::parse_outside(names_.op, argument, text(before));
        view.after = align_detail::parse_outside(names_.op, argument, text(after));
    }

    void read_method(StreamView& view, nb::handle method, const std::string& argument) {
        if (method.is_none()) return;
        if (PyUnicode_Check(method.ptr())) {
            view.method = align_detail::parse_method(names_.op, argument, text(method));
            return;
        }
        if (!nb::isinstance<nb::sequence>(method)) {
            fail(names_.op, argument, "be a name or a list of (begin, end, name)", repr_of(method));
        }
        std::vector<ChannelRange>& ranges = ranges_.emplace_back();
        for (nb::handle item : method) {
            std::int64_t begin = 0;
            std::int64_t end = 0;
            nb::object name = nb::none();
            if (nb::isinstance<nb::sequence>(item) && nb::len(item) == 3 && nb::try_cast(item[nb::int_(0)], begin) &&
                nb::try_cast(item[nb::int_(1)], end)) {
                name = item[nb::int_(2)];
            }
            if (!PyUnicode_Check(name.ptr())) {
                fail(names_.op, argument, "be a name or a list of (begin, end, name)", repr_of(item));
            }
            ranges.push_back({begin, end, align_detail::parse_method(names_.op, argument, text(name))});
        }
        view.ranges = ranges;
    }

    TensorView expected(std::size_t i) const {
        TensorView out = align_detail::output_view(plan_, views_[i]);
        out.dtype = out_dtypes_[i];
        return out;
    }

    Names names_;
    std::deque<TensorArgument> tensors_;
    std::deque<std::vector<ChannelRange>> ranges_;
    std::vector<StreamView> views_;
    std::vector<DType> out_dtypes_;
    Query query_;
    AlignPlan plan_;
};

}  // namespace robocache::python
