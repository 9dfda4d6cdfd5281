// Signals during a call.
#include "unlocked.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace nb = nanobind;

namespace robocache::python {
namespace {

/// Of the process: a forked child begins with one too, so this is true wherever Python handles signals. No other thread
/// has to take the GIL for nothing.
bool is_main_thread() {
    return syscall(SYS_gettid) == getpid();
}

}  // namespace

void run_signal_handlers() {
    if (!is_main_thread()) return;
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw SignalRaised();
}

}  // namespace robocache::python
