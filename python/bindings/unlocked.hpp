// What a call does while C++ runs: the GIL is released, and signals are looked at.
#pragma once

#include <nanobind/nanobind.h>

#include "core/interrupt.hpp"

namespace robocache::python {

/// Thrown out of a long call after a Python signal handler has raised: KeyboardInterrupt, or whatever it raised.
class SignalRaised : public nanobind::python_error {};

/// Runs the handlers of signals that have come in, on the main thread, where Python runs them. Throws SignalRaised.
void run_signal_handlers();

/// Releases the GIL; long calls of this thread run signal handlers meanwhile (interrupt.hpp).
class Unlocked {
    nanobind::gil_scoped_release released_;
    detail::InterruptScope scope_{&run_signal_handlers};
};

}  // namespace robocache::python
