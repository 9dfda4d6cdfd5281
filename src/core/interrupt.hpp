// Ending a long call early: Ctrl-C in Python.
#pragma once

#include <chrono>

namespace robocache::detail {

/// While one lives, calls of this thread call `check` between parts of their work, about every `interval`. What it
/// throws ends the call; what the call was writing is then undefined. Other threads that work for the call never call
/// it.
class InterruptScope {
public:
    using Check = void (*)();
    using Clock = std::chrono::steady_clock;

    explicit InterruptScope(Check check, Clock::duration interval = std::chrono::milliseconds(50)) noexcept
        : check_(check), interval_(interval), outer_(current) {
        current = this;
    }
    ~InterruptScope() { current = outer_; }
    InterruptScope(const InterruptScope&) = delete;
    InterruptScope& operator=(const InterruptScope&) = delete;

private:
    friend void poll_interrupt();

    void look();

    static constinit thread_local InterruptScope* current;

    Check check_;
    Clock::duration interval_;
    InterruptScope* outer_;
    Clock::time_point next_{};  // the epoch: not looked at yet, so that short calls read no clock
};

/// For work that may take long, called by it every few microseconds or less often. Throws what the check throws.
inline void poll_interrupt() {
    if (InterruptScope::current != nullptr) InterruptScope::current->look();
}

}  // namespace robocache::detail
