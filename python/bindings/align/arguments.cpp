// Reading the arguments of align: names, streams with their options, the query.
#include "align/arguments.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <string>

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// The strings live as long as the Python objects.
std::vector<StreamNames> read_stream_names(const nb::tuple& names) {
    std::vector<StreamNames> result;
    for (nb::handle item : nb::borrow<nb::tuple>(names[2])) {
        const auto stream = nb::borrow<nb::tuple>(item);
        result.push_back({text(stream[0]), text(stream[1]), nb::cast<bool>(stream[2])});
    }
    return result;
}

/// A number in the unit of the times: whole nanoseconds for int64, seconds for floating.
Duration read_duration(nb::handle number, DType times, const Argument& argument) {
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

}  // namespace

AlignArguments::AlignArguments(const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query,
                               nb::handle queue)
    : stream_names_(read_stream_names(names)), reader_(queue) {
    names_ = {text(names[0]), text(names[1]), text(names[1]) == "times", stream_names_};
    const std::size_t num_streams = nb::len(streams);
    streams_.reserve(num_streams);
    for (std::size_t i = 0; i < num_streams; ++i) add_stream(nb::borrow<nb::tuple>(streams[i]));
    query_.times = optional_tensor(query[0], names_.query_times);
    query_.episode = optional_tensor(query[1], "episode");
    query_.anchor = optional_tensor(query[2], "anchor");
    query_.deltas = optional_tensor(query[3], "deltas");
}

void AlignArguments::add_stream(const nb::tuple& fields) {
    const std::size_t i = streams_.size();
    const auto field = [&](std::string_view name) { return names_.field(i, name); };
    StreamView& view = streams_.emplace_back();
    view.values = tensor(fields[0], names_.values(i));
    view.times = tensor(fields[1], names_.times(i));
    view.offsets = optional_tensor(fields[2], field("offsets"));
    read_method(view, fields[3], field("method"));
    view.latency = read_duration(fields[4], view.times.dtype, {names_.op, field("latency")});
    if (!fields[5].is_none()) {
        view.max_gap = read_duration(fields[5], view.times.dtype, {names_.op, field("max_gap")});
    }
    read_outside(view, fields[6], field("outside"));
    if (!nb::try_cast(fields[7], view.outside_valid)) {
        fail(names_.op, field("outside_valid"), "be True or False", repr_of(fields[7]));
    }
    if (!nb::try_cast(fields[8], view.period)) fail(names_.op, field("period"), "be a number", repr_of(fields[8]));
    if (nb::len(fields) > 10) {
        view.tolerance = read_duration(fields[10], view.times.dtype, {names_.op, field("tolerance")});
    }
    if (!fields[9].is_none()) view.dtype = dtype_from_name(text(fields[9]), {names_.op, field("dtype")});
}

/// A name for both sides, or (before, after).
void AlignArguments::read_outside(StreamView& view, nb::handle outside, const ArgumentName& name) const {
    nb::object before = nb::borrow(outside);
    nb::object after = before;
    if (!PyUnicode_Check(outside.ptr()) && nb::isinstance<nb::sequence>(outside) && nb::len(outside) == 2) {
        before = outside[nb::int_(0)];
        after = outside[nb::int_(1)];
    }
    if (!PyUnicode_Check(before.ptr()) || !PyUnicode_Check(after.ptr())) {
        fail(names_.op, name, "be a name or (before, after)", repr_of(outside));
    }
    view.before = outside_from_name(text(before), names_.op, name);
    view.after = outside_from_name(text(after), names_.op, name);
}

void AlignArguments::read_method(StreamView& view, nb::handle method, const ArgumentName& name) {
    if (method.is_none()) return;
    if (PyUnicode_Check(method.ptr())) {
        view.method = method_from_name(text(method), names_.op, name);
        return;
    }
    if (!nb::isinstance<nb::sequence>(method)) {
        fail(names_.op, name, "be a name or a list of (begin, end, name)", repr_of(method));
    }
    std::vector<ChannelRange>& ranges = ranges_.emplace_back();
    for (nb::handle item : method) {
        std::int64_t begin = 0;
        std::int64_t end = 0;
        nb::object method_name = nb::none();
        if (nb::isinstance<nb::sequence>(item) && nb::len(item) == 3 && nb::try_cast(item[nb::int_(0)], begin) &&
            nb::try_cast(item[nb::int_(1)], end)) {
            method_name = item[nb::int_(2)];
        }
        if (!PyUnicode_Check(method_name.ptr())) {
            fail(names_.op, name, "be a name or a list of (begin, end, name)", repr_of(item));
        }
        ranges.push_back({begin, end, method_from_name(text(method_name), names_.op, name)});
    }
    view.ranges = ranges;
}

}  // namespace robocache::python
