// Reading the arguments of align: names, streams with their options, the query.
#include "align/arguments.hpp"

#include <nanobind/stl/string.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace robocache::python {
namespace {

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

std::array<nb::handle, 11> fields_of(const GivenStream& s) {
    return {s.values,  s.times,         s.offsets, s.method, s.latency,  s.max_gap,
            s.outside, s.outside_valid, s.period,  s.dtype,  s.tolerance};
}

}  // namespace

Names::Names(std::string op, std::string query_times, std::vector<std::string> values, std::vector<std::string> times)
    : op_(std::move(op)), query_times_(std::move(query_times)), values_(std::move(values)), times_(std::move(times)) {
    for (std::size_t i = 0; i < values_.size(); ++i) streams_.push_back({values_[i], times_.at(i), true});
    // Only a query called "times" may be an anchor and deltas instead.
    view_ = {op_, query_times_, query_times_ == "times", streams_};
}

StreamObject::StreamObject(const GivenStream& given) : given_(given) {
    for (nb::handle field : fields_of(given_)) field.inc_ref();
}

int StreamObject::traverse(visitproc visit, void* arg) const {
    if (is_cleared_) return 0;
    for (nb::handle field : fields_of(given_)) Py_VISIT(field.ptr());
    return 0;
}

void StreamObject::clear() {
    if (is_cleared_) return;
    is_cleared_ = true;
    for (nb::handle field : fields_of(given_)) field.dec_ref();
}

std::vector<GivenStream> given_streams(const nb::list& streams) {
    std::vector<GivenStream> given;
    given.reserve(nb::len(streams));
    for (nb::handle stream : streams) given.push_back(nb::cast<const StreamObject&>(stream).given());
    return given;
}

AlignArguments::AlignArguments(const AlignNames& names, std::span<const GivenStream> streams, const GivenQuery& query,
                               nb::handle queue)
    : names_(names), reader_(queue) {
    streams_.reserve(streams.size());
    for (const GivenStream& stream : streams) add_stream(stream);
    query_.times = optional_tensor(query.times, names_.query_times);
    query_.episode = optional_tensor(query.episode, "episode");
    query_.anchor = optional_tensor(query.anchor, "anchor");
    query_.deltas = optional_tensor(query.deltas, "deltas");
}

void AlignArguments::add_stream(const GivenStream& given) {
    const std::size_t i = streams_.size();
    const auto field = [&](std::string_view name) { return names_.field(i, name); };
    StreamView& view = streams_.emplace_back();
    view.values = tensor(given.values, names_.values(i));
    view.times = tensor(given.times, names_.times(i));
    view.offsets = optional_tensor(given.offsets, field("offsets"));
    const auto duration = [&](nb::handle number, std::string_view name) {
        return read_duration(number, view.times.dtype, {names_.op, field(name)});
    };
    read_method(view, given.method, field("method"));
    view.latency = duration(given.latency, "latency");
    if (!given.max_gap.is_none()) view.max_gap = duration(given.max_gap, "max_gap");
    read_outside(view, given.outside, field("outside"));
    if (!nb::try_cast(given.outside_valid, view.outside_valid)) {
        fail(names_.op, field("outside_valid"), "be True or False", repr_of(given.outside_valid));
    }
    if (!nb::try_cast(given.period, view.period)) {
        fail(names_.op, field("period"), "be a number", repr_of(given.period));
    }
    view.tolerance = duration(given.tolerance, "tolerance");
    if (!given.dtype.is_none()) view.dtype = dtype_from_name(text(given.dtype), {names_.op, field("dtype")});
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
