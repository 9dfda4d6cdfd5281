// The threads of one rank, by cores, quotas and ranks. tests/core/test_limits.py has the files that limits are read
// from.
#include "core/limits.hpp"

#include <gtest/gtest.h>

namespace robocache {
namespace {

Limits limits_of(int cores, bool is_bound, double quota) {
    Limits limits;
    limits.affinity_cores = cores;
    limits.is_bound = is_bound;
    limits.quota_cores = quota;
    return limits;
}

constexpr double none = std::numeric_limits<double>::infinity();

TEST(Limits, RanksShareCoresUnlessEachIsBoundToItsOwn) {
    EXPECT_EQ(cores_of_rank(limits_of(16, false, none), 1), 16);
    EXPECT_EQ(cores_of_rank(limits_of(16, false, none), 4), 4);
    EXPECT_EQ(cores_of_rank(limits_of(16, false, none), 5), 3);
    EXPECT_EQ(cores_of_rank(limits_of(16, true, none), 4), 16);
    EXPECT_EQ(cores_of_rank(limits_of(2, false, none), 8), 1);
}

TEST(Limits, QuotasAreSharedByAllRanksAndAPartOfACoreCountsAsOne) {
    EXPECT_EQ(cores_of_rank(limits_of(16, false, 1.5), 1), 2);
    EXPECT_EQ(cores_of_rank(limits_of(16, false, 0.25), 1), 1);
    EXPECT_EQ(cores_of_rank(limits_of(16, false, 8.0), 4), 2);
    EXPECT_EQ(cores_of_rank(limits_of(8, true, 8.0), 4), 2);
    EXPECT_EQ(cores_of_rank(limits_of(8, true, 64.0), 4), 8);
    EXPECT_EQ(cores_of_rank(limits_of(8, false, 64.0), 1), 8);
}

}  // namespace
}  // namespace robocache
