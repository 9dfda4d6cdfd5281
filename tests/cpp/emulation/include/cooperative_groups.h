// Groups of threads, for the emulated GPU.
#pragma once

namespace cooperative_groups {

/// The threads that are together here: any subset may be, so it is each one alone.
struct coalesced_group {
    unsigned thread_rank() const { return 0; }
    unsigned size() const { return 1; }
};

inline coalesced_group coalesced_threads() {
    return {};
}

}  // namespace cooperative_groups
