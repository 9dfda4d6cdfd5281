// The module robocache._core: exceptions, system information, memory, and the operations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <string_view>

#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "core/limits.hpp"
#include "core/thread_pool.hpp"
#include "robocache/robocache.hpp"

namespace nb = nanobind;
using namespace robocache;

namespace {

constexpr const char* FORMAT_ERROR_DOC = R"(A file is not what its format says: damaged, truncated, or dirty.

The message names the file, the place and, where there is one, the option that would let reading continue.

>>> import robocache
>>> issubclass(robocache.FormatError, RuntimeError)
True)";
constexpr const char* NUM_THREADS_DOC = R"(How many CPU threads a call may use. Results do not depend on it.

``set_num_threads``, else ``ROBOCACHE_NUM_THREADS``, else the cores that this process may use within the CPU quotas,
shared with the other ranks on this machine. One in a forked child until it calls ``set_num_threads``.

>>> import robocache
>>> robocache.num_threads() >= 1
True)";
constexpr const char* SET_NUM_THREADS_DOC =
    R"(Sets how many CPU threads a call may use, from the next call on. At least 1.

>>> import robocache
>>> before = robocache.num_threads()
>>> robocache.set_num_threads(2)
>>> robocache.num_threads()
2
>>> robocache.set_num_threads(before))";

/// Numbers that are no int are a ValueError like those that are out of range, not nanobind's list of overloads.
void set_threads(nb::handle count) {
    int number = 0;
    if (!nb::try_cast(count, number)) {
        throw InvalidArgument("set_num_threads: count must be a whole number from 1 to 4096, got " +
                              python::repr_of(count));
    }
    set_num_threads(number);
}

void map_exceptions(nb::module_& m) {
    // NOLINTNEXTLINE(bugprone-unused-raii, bugprone-throw-keyword-missing): registers a type, throws nothing
    nb::exception<FormatError>(m, "FormatError", PyExc_RuntimeError).doc() = FORMAT_ERROR_DOC;
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const InvalidArgument& e) {
            PyErr_SetString(PyExc_ValueError, e.what());
        } catch (const Unsupported& e) {
            PyErr_SetString(PyExc_NotImplementedError, e.what());
        } catch (const OutOfMemory& e) {
            PyErr_SetString(PyExc_MemoryError, e.what());
        } catch (const CudaError& e) {
            PyErr_SetString(PyExc_RuntimeError, e.what());
        }
    });
}

nb::dict cuda_status_dict() {
    const CudaStatus status = cuda_status();
    nb::dict result;
    result["compiled"] = status.compiled;
    result["available"] = status.available;
    result["runtime_version"] = status.runtime_version;
    result["driver_version"] = status.driver_version;
    result["devices"] = status.devices;
    result["reason"] = status.reason;
    return result;
}

/// `root`: where /proc and the cgroups are, for tests.
nb::dict process_limits_dict(const std::string& root) {
    const Limits limits = process_limits(root);
    nb::dict result;
    result["free_memory_bytes"] = limits.free_memory_bytes;
    result["most_memory_bytes"] = limits.most_memory_bytes;
    result["affinity_cores"] = limits.affinity_cores;
    result["is_bound"] = limits.is_bound;
    result["quota_cores"] = limits.quota_cores;
    return result;
}

/// At shutdown nanobind lists the objects that are still alive. Python itself leaks some: those in frames of daemon
/// threads, of threads of other libraries and of workers that are killed. The process frees that memory, and users take
/// the list for a defect, so it is off by default. ROBOCACHE_LEAK_WARNINGS=1 turns it on; tests/core/test_exit.py uses
/// it to find leaks of our own bindings.
void set_leak_warnings() {
    const char* asked = std::getenv("ROBOCACHE_LEAK_WARNINGS");
    nb::set_leak_warnings(asked != nullptr && std::string_view(asked) == "1");
}

}  // namespace

NB_MODULE(_core, m) {
    set_leak_warnings();
    map_exceptions(m);
    detail::watch_forks();
    m.def("version", &version);
    m.def("cpu_instruction_set", &cpu_instruction_set);
    m.def("cuda_status", &cuda_status_dict);
    m.def("process_limits", &process_limits_dict, nb::arg("root") = "");
    m.def("local_ranks", &local_ranks);
    m.def("num_threads", &num_threads, NUM_THREADS_DOC);
    m.def("set_num_threads", &set_threads, nb::arg("count").none(), nb::sig("def set_num_threads(count: int) -> None"),
          SET_NUM_THREADS_DOC);
    python::bind_host_memory(m);
    python::bind_memory(m);
    python::bind_cache(m);
    python::bind_align(m);
    python::bind_loader(m);
    python::bind_batch(m);
    python::bind_feature(m);
    python::bind_texts(m);
    python::bind_decode(m);
    python::bind_voxelize(m);
    python::bind_voxelize_sparse(m);
    python::bind_jax(m);
}
