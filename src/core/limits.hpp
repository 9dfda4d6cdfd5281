// Memory and cores available to this process, within the limits of its cgroups (v1 and v2).
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace robocache {

struct Limits {
    /// What can be allocated without swapping and within the limits of all cgroups; 0 where it is not known.
    std::int64_t free_memory_bytes = 0;
    /// The smallest limit of a cgroup, whatever is used of it.
    std::int64_t most_memory_bytes = std::numeric_limits<std::int64_t>::max();
    int affinity_cores = 1;  ///< that this process may run on
    bool is_bound = false;   ///< they are fewer than its cgroup has: the other processes there have others
    double quota_cores = std::numeric_limits<double>::infinity();  ///< of all processes of a cgroup together
};

/// Reads /proc and the mounted cgroup file systems below `root`, "" but for tests. What is missing there limits
/// nothing.
[[nodiscard]] Limits process_limits(const std::string& root = {});

/// Processes of this job on this machine, as set by launchers (torchrun, Open MPI, Intel MPI, MVAPICH, srun); 1 where
/// none does.
[[nodiscard]] int local_ranks();

/// Threads for one of so many processes, at least 1. Quotas are divided among them, and cores unless each process is
/// bound to its own. A part of a core counts as one.
[[nodiscard]] int cores_of_rank(const Limits& limits, int num_ranks);

}  // namespace robocache
