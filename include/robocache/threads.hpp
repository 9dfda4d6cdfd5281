// The number of CPU threads. Results do not depend on it.
#pragma once

namespace robocache {

/// Threads a call may use: set_num_threads, else ROBOCACHE_NUM_THREADS, else the cores that this process may run on and
/// the CPU quotas of its cgroups grant, shared with the other ranks on this machine.
/// One inside a forked child until set_num_threads is called there.
[[nodiscard]] int num_threads();

/// Takes effect with the next call. Throws InvalidArgument below 1.
void set_num_threads(int count);

}  // namespace robocache
