// The loader's own operations: which anchor is at a position of the shuffled order, and channels scaled to one range.
// A training batch is sample_anchors, then align with the anchors it wrote, then normalize; BatchReader does all three
// at once. The contract: docs/loader.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "robocache/align.hpp"
#include "robocache/feature.hpp"
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
    std::optional<TensorView> slots = std::nullopt;  ///< (num_anchors,) i64 of make_alias_table: anchors by weight
};

/// Writes slots (N,) i64 for weights (N,) f64, both on the host and contiguous, N below 2^31. With these slots an
/// anchor is drawn with the probability weight / sum of weights, to within 2^-32 / N. An anchor of weight 0 is never
/// drawn, all others can be. Slots are integers, so draws are the same on every device. Throws InvalidArgument for
/// weights that are negative, not finite or all zero.
void make_alias_table(const TensorView& weights, const TensorView& slots);

/// The order of samples. One table: every epoch is a permutation of its anchors. Several tables, or one whose epoch has
/// another size than the table: blocks in which each table has its quota, at shuffled places. A table is then traversed
/// repeatedly, each time in another order, and an epoch continues where the last one ended. From a table with slots
/// anchors are drawn with replacement instead, independently for each position of an epoch (of a mixture, of all
/// epochs).
struct SampleOrder {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    std::int64_t epoch_size = 0;  ///< positions of an epoch; 0 for one table: its anchors
    bool shuffle = true;          ///< false: ascending; ignored if anchors have weights
    /// (N,) i64 on the device of the tables, instead of the order of an epoch: the sample at position p is anchor
    /// numbers[p], counted through all tables. On a GPU numbers are not checked; one out of range is the last
    /// anchor.
    std::optional<TensorView> numbers = std::nullopt;
};

/// Tables of a mixture, at most.
inline constexpr std::size_t max_anchor_tables = 64;

/// Writes episode (B,) and anchor (B,), both i64 and contiguous, for positions first_position ... + B - 1 of the epoch.
/// Episodes are numbered through all tables. A pure function: no state, no permutation in memory, the same bits on
/// every device. Queue-ordered on a device; allocates nothing and never synchronizes there.
void sample_anchors(std::span<const AnchorTable> tables, const SampleOrder& order, std::int64_t first_position,
                    const TensorView& episode, const TensorView& anchor, CudaQueue queue = {});

/// out = (values - offset) * scale for each channel: values (R, C) of any dtype, out (R, C) floating, offset and scale
/// (C,) f64, all contiguous. Computed in f32 (f64 for f64 values and for integers of 32 bits or more), then one
/// rounding. `out` may be `values` where both have the same dtype. Queue-ordered on a device.
void normalize(const TensorView& values, const TensorView& offset, const TensorView& scale, const TensorView& out,
               CudaQueue queue = {});

/// Bytes [begin, end) of an array.
struct ByteRange {
    std::int64_t part = 0;  ///< which array
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

/// Copies ranges of several host arrays into `out`, one after the other: the encoded pictures of a batch. Threads share
/// the work. Throws InvalidArgument for a range outside of its array, or an `out` of another size.
void gather_bytes(std::span<const std::span<const std::uint8_t>> parts, std::span<const ByteRange> ranges,
                  std::span<std::uint8_t> out);

/// One key of a batch: the moments around an anchor at which a stream is read, and the form of its values.
struct BatchColumn {
    std::span<const std::int64_t> deltas{};  ///< ns from the anchor to each of T moments; at least one
    DType dtype = DType::f32;                ///< of the batch: the stream's own, or a floating one
    bool scaled = false;                     ///< normalized with BatchRows::offset and scale; dtype must be floating
    bool hidden = false;                     ///< no output: only features read it
};

/// The rows of one column in one part: ragged, with int64 times, and the statistics of their dataset. A column has the
/// same settings in every part, except for max_gap.
struct BatchRows {
    StreamView stream;
    std::optional<TensorView> offset{};  ///< (C,) f64 on the host, for a row's elements in turn; see normalize
    std::optional<TensorView> scale{};
};

/// A feature (feature.hpp) that a reader on the host makes of its columns, sample by sample, as soon as they are read.
/// The same bits as compose. It has the moments of its first part.
struct BatchFeature {
    std::span<const FeaturePartOf<ColumnChannels>> parts{};
    std::span<const ColumnChannels> paddings{};  ///< as FeatureView::paddings; `channel` is ignored
    DType dtype = DType::f32;                    ///< of the batch
    std::optional<TensorView> offset{};          ///< (S, D) f64 on the host; S > 1: a row for each EpisodeNames::source
    std::optional<TensorView> scale{};
};

/// For each episode of all tables: its dataset, and its number there. On the host.
struct EpisodeNames {
    TensorView source;   ///< (E,) i64
    TensorView episode;  ///< (E,) i64
};

/// The inputs of a reader. Views of memory that must not change while the reader exists.
struct BatchSource {
    std::span<const AnchorTable> tables{};
    TensorView part;   ///< (E,) i64 on the host: for each episode of all tables, its part
    TensorView local;  ///< (E,) i64 on the host: and its number there
    std::span<const BatchColumn> columns{};
    std::span<const BatchRows> rows{};                 ///< rows[part * columns + column]
    std::optional<EpisodeNames> names = std::nullopt;  ///< copied; needed for an index
    std::span<const BatchFeature> features{};          ///< only where the rows are on the host
};

/// The output of one column or feature of a batch: memory of the caller, on the device of the reader.
struct BatchOutput {
    TensorView values;                    ///< (B, T, ...), contiguous; of a feature (B, T, D)
    std::optional<TensorView> padding{};  ///< (B, T) bool: true where the result of align is not valid
};

/// The origin of each sample of a batch: (B,) i64 each, contiguous, on the device of the reader.
struct BatchIndex {
    TensorView source;   ///< EpisodeNames::source of its episode
    TensorView episode;  ///< EpisodeNames::episode
    TensorView anchor;   ///< ns
};

/// Positions that depend on a number on the device, so that each replay of a captured graph reads another batch. `step`
/// counts through the epochs; its batch begins at step % num_steps * stride + first in epoch step / num_steps.
struct BatchSteps {
    TensorView step;  ///< () i64 on the device; not negative
    std::int64_t num_steps = 1;
    std::int64_t stride = 0;
    std::int64_t first = 0;
};

/// A batch that the library's threads read while the caller continues: BatchReader::read_ahead.
class PendingBatch {
public:
    ~PendingBatch();  ///< Drops work that has not begun, and waits for the rest.
    PendingBatch(PendingBatch&&) noexcept;
    PendingBatch& operator=(PendingBatch&&) noexcept;

    /// Whether wait() returns at once.
    [[nodiscard]] bool is_done() const;
    /// Returns when the batch is complete; the calling thread does a part of the work.
    void wait() const;

    struct State;
    explicit PendingBatch(std::unique_ptr<State> state) noexcept;

private:
    std::unique_ptr<State> state_;
};

/// Reads a batch in one call: positions of the shuffled order, their anchors, the rows around them, scaled. It has the
/// same bits as sample_anchors, align and normalize one after the other, on every device.
///
/// On a GPU: one launch for all columns; values may be in pinned host memory. The reader keeps an index of the episodes
/// there, about 64 bytes for each episode and column. Throws Unsupported where only the three operations can be used:
/// methods other than linear, previous, next and nearest, strided rows, integers scaled in 64 bits.
class BatchReader {
public:
    /// Validates the source, once. Waits for `queue` on a GPU.
    explicit BatchReader(const BatchSource& source, CudaQueue queue = {});
    ~BatchReader();
    BatchReader(BatchReader&&) noexcept;
    BatchReader& operator=(BatchReader&&) noexcept;

    [[nodiscard]] std::size_t num_columns() const noexcept;
    /// Columns that are not hidden, in their order, then features.
    [[nodiscard]] std::size_t num_outputs() const noexcept;
    [[nodiscard]] Device device() const noexcept;
    /// The shape and dtype of BatchOutput::values; `data` is null.
    [[nodiscard]] TensorView output(std::size_t number, std::int64_t batch_size) const;

    /// Writes the batch of positions first_position ... + B - 1, and its index if requested. Throws before
    /// writing anything. Queue-ordered on a device; allocates nothing and never synchronizes there.
    void read(const SampleOrder& order, std::int64_t first_position, std::span<const BatchOutput> outputs,
              CudaQueue queue = {}, const std::optional<BatchIndex>& index = {}) const;
    /// The same on the CPU, in the background; batches are read in the order of these calls. Outputs are written with
    /// non-temporal stores, because they are usually copied to a device. Outputs and reader must outlive the batch.
    [[nodiscard]] PendingBatch read_ahead(const SampleOrder& order, std::int64_t first_position,
                                          std::span<const BatchOutput> outputs,
                                          const std::optional<BatchIndex>& index = {}) const;
    /// The same for a step in device memory; `order.epoch` is ignored.
    void read(const SampleOrder& order, const BatchSteps& steps, std::span<const BatchOutput> outputs,
              CudaQueue queue = {}, const std::optional<BatchIndex>& index = {}) const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace robocache
