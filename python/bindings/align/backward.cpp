// The gradient of align for Python.
#include "align/call.hpp"
#include "bindings.hpp"

namespace robocache::python {

void bind_align_backward(nb::module_& m) {
    m.def(
        "align_backward",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const nb::sequence& gradients) {
            AlignCall(names, streams, query, nb::bool_(false)).run_backward(gradients);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("gradients"));
    m.def(
        "require_align_gradient",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const nb::sequence& wanted) {
            AlignCall(names, streams, query, nb::bool_(false)).require_gradient(wanted);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("wanted"));
}

}  // namespace robocache::python
