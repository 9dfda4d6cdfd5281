// Checks for an interrupt during a long call.
#include "core/interrupt.hpp"

#include <utility>

namespace robocache::detail {

constinit thread_local InterruptScope* InterruptScope::current = nullptr;

void InterruptScope::look() {
    const Clock::time_point now = Clock::now();
    if (next_ != Clock::time_point{}) {
        if (now < next_) return;
        // The check may run anything, calls of this library among it: they have scopes of their own, or none.
        struct Restore {
            InterruptScope* scope;
            ~Restore() { current = scope; }
        };
        const Restore restore{std::exchange(current, nullptr)};
        check_();
    }
    next_ = Clock::now() + interval_;
}

}  // namespace robocache::detail
