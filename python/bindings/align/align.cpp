// align for Python: with outputs that Python makes once the call is planned, or, for torch tensors, made here.
#include "align/call.hpp"
#include "bindings.hpp"

namespace robocache::python {

namespace {

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

}  // namespace

void bind_align(nb::module_& m) {
    m.def("align_methods", &methods);
    m.def(
        "align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const nb::callable& allocate,
           nb::handle check, nb::handle queue) {
            AlignCall call(names, streams, query, check, queue);
            call.run(nb::cast<nb::sequence>(allocate(call.shapes())));
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("allocate"), nb::arg("check").none(),
        nb::arg("queue") = nb::none());
    m.def(
        "check_align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, nb::handle outputs,
           nb::handle check,
           nb::handle queue) { return AlignCall(names, streams, query, check, queue).check(outputs); },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("outputs").none(), nb::arg("check").none(),
        nb::arg("queue") = nb::none());
    m.def(
        "align_tensors",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, bool valid, bool index,
           bool batched, nb::handle check) {
            return AlignCall(names, streams, query, check).run_into_new(streams[0][0], valid, index, batched);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("valid"), nb::arg("index"), nb::arg("batched"),
        nb::arg("check").none());
    m.def(
        "fuse_tensors",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, bool valid, nb::handle check) {
            return AlignCall(names, streams, query, check).run_into_one(streams[0][0], valid);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("valid"), nb::arg("check").none());
}

}  // namespace robocache::python
