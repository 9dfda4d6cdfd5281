// The loader's own operations: which anchor is at a position of the shuffled order, and channels scaled to one range.
// A training batch is sample_anchors, then align with the anchors it wrote, then normalise. The contract:
// docs/loader.md.
#pragma once

#include <cstdint>
#include <span>

#include "robocache/tensor.hpp"

namespace robocache {

/// The moments of one dataset that batches are built around, numbered through its episodes.
///   rows of a stream   times (num_anchors,) i64 ns
///   regular            times (E,) i64 ns: the first anchor of each episode; anchor k is k periods later
struct AnchorTable {
    TensorView prefix;             ///< (E + 1,) i64: the anchors before each episode; rises from 0 to num_anchors
    TensorView times;              ///< contiguous, like `prefix`
    std::int64_t num_anchors = 0;  ///< at least 1
    double period_ns = 0;          ///< above 0: regular anchors
    std::int64_t quota = 1;        ///< samples out of every block of a mixture, whose size is the sum of all quotas
};

/// Which order. One table: every epoch is a permutation of its anchors. Several: blocks in which each table has its
/// quota, at shuffled places; a table goes through its anchors again and again, each time in another order.
struct SampleOrder {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    std::int64_t epoch_size = 0;  ///< mixtures: positions of an epoch
    bool shuffle = true;          ///< false: ascending
};

/// Tables of a mixture, at most.
inline constexpr std::size_t max_anchor_tables = 64;

/// Writes episode (B,) and anchor (B,), both i64 and contiguous, for positions first_position ... + B - 1 of the epoch.
/// Episodes are numbered through all tables. A pure function: no state, no permutation in memory, the same bits on
/// every device. Stream-ordered on a device; allocates nothing and never synchronises there.
void sample_anchors(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t first_position,
                    const TensorView& episode, const TensorView& anchor, Stream stream = {});

/// out = (values - offset) * scale for each channel: values (R, C) of any dtype, out (R, C) floating, offset and scale
/// (C,) f64, all contiguous. Computed in f32 (f64 for f64 values and for integers of 32 bits or more), then one
/// rounding. `out` may be `values` where both have the same dtype. Stream-ordered on a device.
void normalise(const TensorView& values, const TensorView& offset, const TensorView& scale, const TensorView& out,
               Stream stream = {});

}  // namespace robocache
