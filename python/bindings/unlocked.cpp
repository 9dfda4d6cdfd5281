// The GIL and signals during a call.
//
// Note [Daemon threads]
// When Python shuts down, it ends every other thread that requests the GIL by pthread_exit, up to Python 3.13. That
// unwinds the thread's stack as an exception would, and in a destructor it ends the process: std::terminate.
// Python 3.14 lets such threads wait for the end of the process instead. So does this file, whatever the version.
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

Unlocked::~Unlocked() {
    try {
        PyEval_RestoreThread(thread_);
    } catch (...) {
        for (;;) pause();
    }
}

void run_signal_handlers() {
    if (!is_main_thread()) return;
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw SignalRaised();
}

}  // namespace robocache::python
