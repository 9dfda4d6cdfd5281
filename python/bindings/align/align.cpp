// align for Python: with outputs that Python makes once the contract has spoken, or, for torch tensors, made here.
#include <nanobind/stl/string.h>

#include <optional>

#include "align/call.hpp"
#include "bindings.hpp"

namespace robocache::python {
namespace {

bool are_plain_tensors(const nb::sequence& streams, const nb::tuple& query) {
    for (std::size_t i = 0; i < nb::len(streams); ++i) {
        const auto fields = nb::borrow<nb::tuple>(streams[i]);
        for (const int field : {0, 1, 2}) {
            if (!fields[field].is_none() && !is_plain_tensor(fields[field])) return false;
        }
    }
    for (nb::handle array : query) {
        if (!array.is_none() && !is_plain_tensor(array)) return false;
    }
    return true;
}

/// Nothing for None: as the device has it.
std::optional<bool> read_check(const nb::tuple& names, nb::handle check) {
    if (check.is_none()) return std::nullopt;
    bool value = false;
    if (!nb::try_cast(check, value)) fail(text(names[0]), "check", "be True or False", repr_of(check));
    return value;
}

/// A call on plain torch tensors. None for any other, and for one that is refused: the general way says why.
template <class Body>
nb::object directly(const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const Body& body) {
    if (!are_plain_tensors(streams, query)) return nb::none();
    try {
        AlignCall call(names, streams, query);
        return body(call, nb::object(streams[0][0]));
    } catch (const InvalidArgument&) {
        return nb::none();
    }
}

}  // namespace

void bind_align(nb::module_& m) {
    m.def(
        "align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, const nb::callable& allocate,
           nb::handle check, nb::handle queue) {
            const bool check_data = read_check(names, check).value_or(true);
            AlignCall call(names, streams, query, queue);
            call.run(nb::cast<nb::sequence>(allocate(call.shapes())), check_data);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("allocate"), nb::arg("check"),
        nb::arg("queue") = nb::none());
    m.def(
        "check_align",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, nb::handle outputs,
           nb::handle check, nb::handle queue) {
            const bool check_data = read_check(names, check).value_or(true);
            AlignCall call(names, streams, query, queue);
            return call.check(outputs, check_data);
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("outputs").none(), nb::arg("check"),
        nb::arg("queue") = nb::none());
    m.def(
        "align_tensors",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, bool valid, bool index,
           bool batched, nb::handle check) {
            return directly(names, streams, query, [&](AlignCall& call, nb::handle like) -> nb::object {
                return call.run_into_new(like, valid, index, batched, read_check(names, check));
            });
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("valid"), nb::arg("index"), nb::arg("batched"),
        nb::arg("check").none());
    m.def(
        "fuse_tensors",
        [](const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, bool valid, nb::handle check) {
            return directly(names, streams, query, [&](AlignCall& call, nb::handle like) -> nb::object {
                return call.run_into_one(like, valid, read_check(names, check));
            });
        },
        nb::arg("names"), nb::arg("streams"), nb::arg("query"), nb::arg("valid"), nb::arg("check").none());
}

}  // namespace robocache::python
