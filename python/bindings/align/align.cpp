// align, resample and fuse for Python, and the gradient of align: one call each.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "align/call.hpp"
#include "bindings.hpp"

namespace robocache::python {
namespace {

PyType_Slot stream_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) {
                                   Py_VISIT(Py_TYPE(self));
                                   return nb::inst_ready(self) ? nb::inst_ptr<StreamObject>(self)->traverse(visit, arg)
                                                               : 0;
                               })},
                              {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) {
                                   if (nb::inst_ready(self)) nb::inst_ptr<StreamObject>(self)->clear();
                                   return 0;
                               })},
                              {0, nullptr}};

void bind_structs(nb::module_& m) {
    nb::class_<Names>(m, "AlignNames")
        .def(nb::init<std::string, std::string, std::vector<std::string>, std::vector<std::string>>(), nb::arg("op"),
             nb::arg("query_times"), nb::arg("values") = std::vector<std::string>(),
             nb::arg("times") = std::vector<std::string>());
    nb::class_<StreamObject>(m, "Stream", nb::type_slots(stream_slots))
        .def(
            "__init__",
            [](StreamObject* self, nb::handle values, nb::handle times, nb::handle offsets, nb::handle method,
               nb::handle latency, nb::handle max_gap, nb::handle outside, nb::handle outside_valid, nb::handle period,
               nb::handle dtype, nb::handle tolerance) {
                new (self) StreamObject({values, times, offsets, method, latency, max_gap, outside, outside_valid,
                                         period, dtype, tolerance});
            },
            nb::arg("values").none(), nb::arg("times").none(), nb::arg("offsets").none(), nb::arg("method").none(),
            nb::arg("latency").none(), nb::arg("max_gap").none(), nb::arg("outside").none(),
            nb::arg("outside_valid").none(), nb::arg("period").none(), nb::arg("dtype").none(),
            nb::arg("tolerance").none());
}

/// [(name, family, takes_integers, gradient), ...]
nb::list methods() {
    constexpr const char* families[] = {"row", "blend", "quaternion", "window"};
    constexpr const char* gradients[] = {"none", "times", "values"};
    nb::list result;
    for (const MethodTraits& traits : method_traits()) {
        result.append(nb::make_tuple(nb::str(traits.name.data(), traits.name.size()),
                                     families[static_cast<std::size_t>(traits.family)], traits.takes_integers,
                                     gradients[static_cast<std::size_t>(traits.gradient)]));
    }
    return result;
}

void bind_calls(nb::module_& m) {
    m.def(
        "align",
        [](const Names& names, const nb::list& streams, nb::handle times, nb::handle episode, nb::handle anchor,
           nb::handle deltas, bool valid, bool index, nb::handle check, nb::handle out, nb::handle gradient,
           nb::handle allocate, nb::handle queue) {
            AlignCall call(names.view(), given_streams(streams), {times, episode, anchor, deltas}, check, queue);
            call.require_gradient(gradient);
            return call.run_all({valid, index, true}, out, allocate);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("times").none(), nb::arg("episode").none(),
        nb::arg("anchor").none(), nb::arg("deltas").none(), nb::arg("valid"), nb::arg("index"), nb::arg("check").none(),
        nb::arg("out") = nb::none(), nb::arg("gradient") = nb::none(), nb::arg("allocate") = nb::none(),
        nb::arg("queue") = nb::none());
    m.def(
        "resample",
        [](const Names& names, nb::handle values, nb::handle times, nb::handle target_times, nb::handle method,
           nb::handle latency, nb::handle max_gap, nb::handle outside, nb::handle outside_valid, nb::handle period,
           nb::handle dtype, nb::handle tolerance, bool valid, nb::handle check) {
            const GivenStream stream{values,  times,         nb::none(), method, latency,  max_gap,
                                     outside, outside_valid, period,     dtype,  tolerance};
            AlignCall call(names.view(), {&stream, 1}, {target_times}, check, nb::none());
            return call.run_one({valid, false, false}, nb::none());
        },
        nb::arg("names"), nb::arg("values").none(), nb::arg("times").none(), nb::arg("target_times").none(),
        nb::arg("method").none(), nb::arg("latency").none(), nb::arg("max_gap").none(), nb::arg("outside").none(),
        nb::arg("outside_valid").none(), nb::arg("period").none(), nb::arg("dtype").none(), nb::arg("tolerance").none(),
        nb::arg("valid"), nb::arg("check").none());
    m.def(
        "fuse",
        [](const Names& names, const nb::list& streams, nb::handle times, bool valid, bool batched, nb::handle check,
           nb::handle gradient, nb::handle allocate, nb::handle queue) {
            AlignCall call(names.view(), given_streams(streams), {times}, check, queue);
            call.require_gradient(gradient);
            return call.run_fused({valid, false, batched}, allocate);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("times").none(), nb::arg("valid"), nb::arg("batched"),
        nb::arg("check").none(), nb::arg("gradient") = nb::none(), nb::arg("allocate") = nb::none(),
        nb::arg("queue") = nb::none());
    m.def(
        "check_align",
        [](const Names& names, const nb::list& streams, nb::handle times, nb::handle episode, nb::handle anchor,
           nb::handle deltas, nb::handle check, nb::handle out, nb::handle queue) {
            AlignCall call(names.view(), given_streams(streams), {times, episode, anchor, deltas}, check, queue);
            return call.check(out);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("times").none(), nb::arg("episode").none(),
        nb::arg("anchor").none(), nb::arg("deltas").none(), nb::arg("check").none(), nb::arg("out") = nb::none(),
        nb::arg("queue") = nb::none());
    m.def(
        "align_backward",
        [](const Names& names, const nb::list& streams, nb::handle times, nb::handle episode, nb::handle anchor,
           nb::handle deltas, const nb::list& grads, const nb::list& sums) {
            const nb::bool_ unchecked(false);  // the call whose gradient this is has checked its arguments
            AlignCall call(names.view(), given_streams(streams), {times, episode, anchor, deltas}, unchecked,
                           nb::none());
            call.run_backward(grads, sums);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("times").none(), nb::arg("episode").none(),
        nb::arg("anchor").none(), nb::arg("deltas").none(), nb::arg("grads"), nb::arg("sums"));
}

}  // namespace

void bind_align(nb::module_& m) {
    m.def("align_methods", &methods);
    bind_structs(m);
    bind_calls(m);
}

}  // namespace robocache::python
