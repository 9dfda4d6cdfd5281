// align for Python: asks Python for the outputs once the contract has spoken.
#include "align_call.hpp"
#include "bindings.hpp"

namespace robocache::python {

void bind_align(nb::module_& m) {
    m.def(
        "align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const nb::callable& allocate,
           bool check) {
            AlignCall call(names, streams, query);
            call.run(nb::cast<nb::sequence>(allocate(call.shapes())), check);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("allocate"), nb::arg("check"));
    m.def(
        "check_align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, nb::handle outputs,
           bool check) {
            AlignCall call(names, streams, query);
            call.check(outputs, check);
            return call.shapes();
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("outputs").none(), nb::arg("check"));
}

}  // namespace robocache::python
