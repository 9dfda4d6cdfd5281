// Python objects that are looked up once.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>

namespace robocache::python {

/// A Python object that the first call looks up. It is never released.
///
/// Not a static local that Python initializes: looking up may import a module, which releases the GIL, and a second
/// thread would then wait for the end of the initialization with the GIL that the first one needs. Here both look up,
/// and find the same object.
class Known {
public:
    /// look_up() returns a nanobind::object.
    template <typename LookUp>
    PyObject* get(const LookUp& look_up) {
        PyObject* found = object_.load(std::memory_order_acquire);
        if (found != nullptr) return found;
        nanobind::object made = look_up();
        if (object_.compare_exchange_strong(found, made.ptr())) found = made.release().ptr();
        return found;
    }

    PyObject* interned(const char* text) {
        return get([&] { return nanobind::steal(PyUnicode_InternFromString(text)); });
    }

    PyObject* attribute(const char* module, const char* name) {
        return get([&] { return nanobind::object(nanobind::module_::import_(module).attr(name)); });
    }

private:
    std::atomic<PyObject*> object_{nullptr};
};

}  // namespace robocache::python
