// What a call does while C++ runs: the GIL is released, and signals are looked at.
#pragma once

#include <nanobind/nanobind.h>

#include "core/interrupt.hpp"

namespace robocache::python {

/// Thrown out of a long call after a Python signal handler has raised: KeyboardInterrupt, or whatever it raised.
class SignalRaised : public nanobind::python_error {};

/// Runs the handlers of signals that have come in, on the main thread, where Python runs them. Throws SignalRaised.
void run_signal_handlers();

/// Releases the GIL and takes it back in the end; long calls of this thread run signal handlers meanwhile
/// (interrupt.hpp). A daemon thread that requests the GIL while Python shuts down stops here: Note [Daemon threads].
class Unlocked {
public:
    Unlocked() : thread_(PyEval_SaveThread()) {}
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* thread_;
    detail::InterruptScope scope_{&run_signal_handlers};
};

}  // namespace robocache::python
