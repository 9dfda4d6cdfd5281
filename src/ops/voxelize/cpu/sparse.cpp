// Occupied cells on the CPU: points into buckets (Note [Buckets]), in each bucket the cells that have points are
// numbered in order, and the rest goes as for a dense grid of only those cells.
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/voxelize/cpu/buckets.hpp"

namespace robocache::voxelize_detail {
namespace {

// ---- the box of an unbounded grid -----------------------------------------------------------------------------------

/// Smallest and largest cell among the points of [begin, end) that have one.
template <class Reader>
void widen_box(const Reader& reader, const CellGrid<typename Reader::Scalar>& grid, std::int64_t begin,
               std::int64_t end, std::int64_t low[3], std::int64_t high[3]) {
    for (std::int64_t i = begin; i < end; ++i) {
        typename Reader::Scalar p[3];
        Cell cell;
        (void)reader.read(i, p);
        if (!find_cell(grid, p, cell)) continue;
        const std::int64_t at[3] = {cell.x, cell.y, cell.z};
        for (int a = 0; a < 3; ++a) {
            low[a] = std::min(low[a], at[a]);
            high[a] = std::max(high[a], at[a]);
        }
    }
}

void widen_box(const SparsePlan& plan, std::int64_t begin, std::int64_t end, std::int64_t low[3],
               std::int64_t high[3]) {
    const PointsPlan& points = plan.points;
    const bool packed = points.dtype == DType::f32 && points.axis_stride == 4 && points.row_stride == 12;
    if (!packed) {
        return with_points(plan, [&](const auto& reader) {
            using Scalar = typename std::remove_cvref_t<decltype(reader)>::Scalar;
            widen_box(reader, cells_of(plan.grid, Scalar{}), begin, end, low, high);
        });
    }
    constexpr float most = std::numeric_limits<float>::max();
    Bounds bounds{{most, most, most}, {-most, -most, -most}};
    cpu_kernels<std::uint32_t>().bounds_of_points(reinterpret_cast<const float*>(points.data + begin * 12), end - begin,
                                                  plan.grid.f32, bounds);
    if (bounds.low[0] > bounds.high[0]) return;
    for (int a = 0; a < 3; ++a) {
        low[a] = std::min(low[a], floor_of(bounds.low[a]));
        high[a] = std::max(high[a], floor_of(bounds.high[a]));
    }
}

/// The box around all cells that have points, so that keys are as short as can be.
KeySpace box_of(const SparsePlan& plan) {
    const std::int64_t num_chunks = std::clamp<std::int64_t>(plan.num_points / serial_points, 1, 256);
    const std::int64_t chunk_size = (plan.num_points + num_chunks - 1) / num_chunks;
    struct Box {
        std::int64_t low[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
        std::int64_t high[3] = {INT64_MIN, INT64_MIN, INT64_MIN};
    };
    std::vector<Box> boxes(static_cast<std::size_t>(num_chunks));
    parallel_for(num_chunks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t chunk = begin; chunk < end; ++chunk) {
            Box& box = boxes[static_cast<std::size_t>(chunk)];
            const std::int64_t first = chunk * chunk_size;
            widen_box(plan, first, std::min(first + chunk_size, plan.num_points), box.low, box.high);
        }
    });
    Box all;
    for (const Box& box : boxes) {
        for (int a = 0; a < 3; ++a) {
            all.low[a] = std::min(all.low[a], box.low[a]);
            all.high[a] = std::max(all.high[a], box.high[a]);
        }
    }
    KeySpace space;
    space.num_clouds = static_cast<std::uint64_t>(plan.num_clouds);
    if (all.low[0] > all.high[0]) return space;  // no point is in a cell
    for (int a = 0; a < 3; ++a) {
        space.low[a] = all.low[a];
        space.extent[a] = static_cast<std::uint64_t>(all.high[a] - all.low[a] + 1);
    }
    return space;
}

// ---- whole buckets --------------------------------------------------------------------------------------------------

/// Buckets in one piece each.
template <class Word>
class JoinedBuckets {
public:
    explicit JoinedBuckets(const Buckets<Word, Entry<Word>>& buckets) : begin_(buckets.size() + 1) {
        begin_[0] = 0;
        for (std::int64_t b = 0; b < buckets.size(); ++b) {
            const std::int64_t count = buckets.num_items(b);
            begin_[b + 1] = begin_[b] + count;
            most_items_ = std::max(most_items_, count);
        }
        entries_ = Scratch<Entry<Word>>(begin_[buckets.size()]);
        parallel_for(buckets.size(), 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t b = first; b < last; ++b) {
                Entry<Word>* to = items(b);
                buckets.each_part(
                    b, [&](std::span<const Entry<Word>> part, auto) { to = std::copy(part.begin(), part.end(), to); });
            }
        });
    }
    [[nodiscard]] Entry<Word>* items(std::int64_t bucket) const { return entries_.get() + begin_[bucket]; }
    [[nodiscard]] std::int64_t num_items(std::int64_t bucket) const { return begin_[bucket + 1] - begin_[bucket]; }
    [[nodiscard]] std::int64_t most_items() const { return most_items_; }

private:
    Scratch<std::int64_t> begin_;
    Scratch<Entry<Word>> entries_;
    std::int64_t most_items_ = 0;
};

// ---- the cells of a bucket ------------------------------------------------------------------------------------------

/// Sorts entries by cell, those of one cell staying in their order.
template <class Word>
void sort_entries(Entry<Word>* entries, std::int64_t count, int bits, Entry<Word>* spare) {
    constexpr int digit_bits = 8;
    Entry<Word>* from = entries;
    Entry<Word>* to = spare;
    for (int done = 0; done < bits; done += digit_bits) {
        Word places[1 << digit_bits] = {};
        const auto digit = [&](const Entry<Word>& entry) { return (entry.local >> done) & ((1U << digit_bits) - 1); };
        for (std::int64_t k = 0; k < count; ++k) ++places[digit(from[k])];
        Word total = 0;
        for (Word& place : places) {
            const Word here = place;
            place = total;
            total = static_cast<Word>(total + here);
        }
        for (std::int64_t k = 0; k < count; ++k) to[places[digit(from[k])]++] = from[k];
        std::swap(from, to);
    }
    if (from != entries) std::copy(from, from + count, entries);
}

/// Which of a bucket's cells have points: as bits where cells are not much more than points, else by sorting.
template <class Word>
class CellFinder {
public:
    CellFinder(int shift, std::int64_t most_items) : shift_(shift), as_bits_(shift <= 16) {
        if (as_bits_) {
            num_words_ = ((std::int64_t{1} << shift) + 63) / 64;
            words_ = Scratch<std::uint64_t>(num_words_);
            ranks_ = Scratch<Word>(num_words_);
        } else {
            spare_ = Scratch<Entry<Word>>(most_items);
        }
        cells_ = Scratch<Word>(most_items);
    }

    /// Only how many there are; leaves the entries in the order that number() needs.
    std::int64_t count(Entry<Word>* entries, std::int64_t count) {
        if (as_bits_) {
            mark(entries, count);
            std::int64_t found = 0;
            for (std::int64_t w = 0; w < num_words_; ++w) found += std::popcount(words_[w]);
            return found;
        }
        sort_entries(entries, count, shift_, spare_.get());
        std::int64_t found = 0;
        for (std::int64_t k = 0; k < count; ++k) found += k == 0 || entries[k].local != entries[k - 1].local ? 1 : 0;
        return found;
    }

    /// Replaces the cell of each entry by its number among those that have points; cells() has the cells.
    void number(Entry<Word>* entries, std::int64_t count) {
        if (!as_bits_) return number_sorted(entries, count);
        mark(entries, count);
        Word found = 0;
        for (std::int64_t w = 0; w < num_words_; ++w) {
            ranks_[w] = found;
            for (std::uint64_t left = words_[w]; left != 0; left &= left - 1) {
                cells_[static_cast<std::int64_t>(found++)] = static_cast<Word>(w * 64 + std::countr_zero(left));
            }
        }
        for (std::int64_t k = 0; k < count; ++k) {
            const auto w = static_cast<std::int64_t>(entries[k].local / 64);
            const std::uint64_t below = words_[w] & ((std::uint64_t{1} << (entries[k].local % 64)) - 1);
            entries[k].local = static_cast<Word>(ranks_[w] + static_cast<Word>(std::popcount(below)));
        }
    }

    [[nodiscard]] const Word* cells() const { return cells_.get(); }

private:
    void mark(const Entry<Word>* entries, std::int64_t count) {
        std::memset(words_.get(), 0, static_cast<std::size_t>(num_words_) * sizeof(std::uint64_t));
        for (std::int64_t k = 0; k < count; ++k) {
            words_[static_cast<std::int64_t>(entries[k].local / 64)] |= std::uint64_t{1} << (entries[k].local % 64);
        }
    }

    void number_sorted(Entry<Word>* entries, std::int64_t count) {
        std::int64_t found = -1;
        Word last = 0;
        for (std::int64_t k = 0; k < count; ++k) {
            if (k == 0 || entries[k].local != last) {
                last = entries[k].local;
                cells_[++found] = last;
            }
            entries[k].local = static_cast<Word>(found);
        }
    }

    int shift_;
    bool as_bits_;
    std::int64_t num_words_ = 0;
    Scratch<std::uint64_t> words_;
    Scratch<Word> ranks_;
    Scratch<Entry<Word>> spare_;
    Scratch<Word> cells_;
};

// ---- output ---------------------------------------------------------------------------------------------------------

template <class Word>
struct Worker {
    CellFinder<Word> finder;
    Accumulators<Word> accumulators;
};

template <class Word>
class SparseWriter {
public:
    SparseWriter(const SparsePlan& plan, const KeySpace& space, int shift)
        : plan_(plan), space_(space), shift_(shift), rows_(feature_rows(plan.features, nullptr)) {}

    /// The bucket's `num_cells` cells become rows from `first_row` on, as far as there is room.
    void write(std::int64_t bucket, Entry<Word>* entries, std::int64_t count, std::int64_t first_row,
               std::int64_t num_cells, Worker<Word>& worker) const {
        const std::int64_t room = std::clamp<std::int64_t>(plan_.capacity - first_row, 0, num_cells);
        worker.finder.number(entries, count);
        write_coordinates(bucket, worker.finder.cells(), room, first_row);
        if (plan_.voxel != nullptr) write_voxels(entries, count, first_row, room);
        if (room == 0) return;
        if (room < num_cells) count = keep_first_cells(entries, count, room);
        Accumulators<Word>& accumulators = worker.accumulators;
        accumulators.clear(room);
        Word* counts = accumulators.counts();
        if (plan_.first_points != nullptr) {
            std::fill_n(plan_.first_points + first_row * plan_.max_points, room * plan_.max_points, -1);
        }
        for (std::int64_t k = 0; k < count; ++k) {
            const auto cell = static_cast<std::int64_t>(entries[k].local);
            const auto seen = static_cast<std::int64_t>(counts[cell]++);
            if (plan_.first_points != nullptr && seen < plan_.max_points) {
                plan_.first_points[(first_row + cell) * plan_.max_points + seen] =
                    static_cast<std::int64_t>(entries[k].index);
            }
        }
        if (plan_.counts != nullptr) {
            for (std::int64_t m = 0; m < room; ++m) plan_.counts[first_row + m] = static_cast<std::int32_t>(counts[m]);
        }
        if (plan_.out == nullptr) return;
        const std::span<const Entry<Word>> all(entries, static_cast<std::size_t>(count));
        accumulators.add([&](const auto& body) { body(all, std::span<const Entry<Word>>()); }, rows_);
        const std::int64_t row_bytes = plan_.features.num_channels * size_bytes(plan_.out_dtype);
        accumulators.finish(static_cast<char*>(plan_.out) + first_row * row_bytes, plan_.out_dtype, 0, 0);
    }

private:
    void write_coordinates(std::int64_t bucket, const Word* cells, std::int64_t room, std::int64_t first_row) const {
        const Word base = static_cast<Word>(static_cast<std::uint64_t>(bucket) << shift_);
        const auto ex = static_cast<Word>(space_.extent[0]);
        const auto ey = static_cast<Word>(space_.extent[1]);
        const auto ez = static_cast<Word>(space_.extent[2]);
        std::int32_t* to = plan_.coordinates + first_row * 4;
        Word line = 0;  // the key of (cloud, x, y, 0)
        Word cloud = 0;
        Word x = 0;
        Word y = 0;
        for (std::int64_t m = 0; m < room; ++m, to += 4) {
            const Word key = base + cells[m];
            if (m == 0 || key - line >= ez) {  // another line along z
                Word rest = key / ez;
                line = rest * ez;
                y = rest % ey;
                rest /= ey;
                x = rest % ex;
                cloud = rest / ex;
            }
            to[0] = static_cast<std::int32_t>(cloud);
            to[1] = static_cast<std::int32_t>(static_cast<std::int64_t>(x) + space_.low[0]);
            to[2] = static_cast<std::int32_t>(static_cast<std::int64_t>(y) + space_.low[1]);
            to[3] = static_cast<std::int32_t>(static_cast<std::int64_t>(key - line) + space_.low[2]);
        }
    }

    void write_voxels(const Entry<Word>* entries, std::int64_t count, std::int64_t first_row, std::int64_t room) const {
        for (std::int64_t k = 0; k < count; ++k) {
            const auto cell = static_cast<std::int64_t>(entries[k].local);
            plan_.voxel[entries[k].index] = cell < room ? first_row + cell : -1;
        }
    }

    static std::int64_t keep_first_cells(Entry<Word>* entries, std::int64_t count, std::int64_t room) {
        std::int64_t kept = 0;
        for (std::int64_t k = 0; k < count; ++k) {
            if (static_cast<std::int64_t>(entries[k].local) < room) entries[kept++] = entries[k];
        }
        return kept;
    }

    const SparsePlan& plan_;
    const KeySpace& space_;
    int shift_;
    FeatureRows rows_;
};

/// About two thousand points in a bucket, which has at least one cell. Less than the bits of a word.
int sparse_shift(std::uint64_t last_key, std::int64_t num_points, int word_bits) {
    constexpr std::int64_t points_of_bucket = 2048;
    constexpr int most_bucket_bits = 10;
    const int bucket_bits =
        std::min(ceil_log2(static_cast<std::uint64_t>(num_points / points_of_bucket + 1)), most_bucket_bits);
    return std::clamp(64 - std::countl_zero(last_key) - bucket_bits, 0, word_bits - 1);
}

/// No point has a voxel yet.
void clear_voxels(const SparsePlan& plan) {
    if (plan.voxel == nullptr) return;
    parallel_for(plan.num_points, serial_points,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(plan.voxel + begin, plan.voxel + end, -1); });
}

template <class Word>
void run(const SparsePlan& plan, const KeySpace& space) {
    const int shift = sparse_shift(space.last(), plan.num_points, 8 * static_cast<int>(sizeof(Word)));
    const KeyReader<Word> keys(plan, space, shift);
    const Buckets<Word, Entry<Word>> buckets(keys);
    const JoinedBuckets<Word> joined(buckets);
    const std::int64_t workers = num_workers(buckets.size(), plan.num_points * (plan.features.num_channels + 1));
    const std::int64_t most_items = joined.most_items();
    const std::int64_t most_cells = shift < 62 ? std::min(most_items, std::int64_t{1} << shift) : most_items;
    const Reduction reduction = plan.out != nullptr ? plan.reduction : Reduction::count;
    std::vector<Worker<Word>> pool;
    pool.reserve(static_cast<std::size_t>(workers));
    for (std::int64_t w = 0; w < workers; ++w) {
        pool.push_back({CellFinder<Word>(shift, most_items),
                        Accumulators<Word>(reduction, plan.deterministic, plan.features.num_channels, most_cells)});
    }
    Scratch<std::int64_t> first_rows(buckets.size() + 1);
    each_item(buckets.size(), workers, [&](std::int64_t worker, std::int64_t bucket) {
        first_rows[bucket + 1] =
            pool[static_cast<std::size_t>(worker)].finder.count(joined.items(bucket), joined.num_items(bucket));
    });
    first_rows[0] = 0;
    for (std::int64_t b = 0; b < buckets.size(); ++b) first_rows[b + 1] += first_rows[b];
    clear_voxels(plan);
    const SparseWriter<Word> writer(plan, space, shift);
    each_item(buckets.size(), workers, [&](std::int64_t worker, std::int64_t bucket) {
        writer.write(bucket, joined.items(bucket), joined.num_items(bucket), first_rows[bucket],
                     first_rows[bucket + 1] - first_rows[bucket], pool[static_cast<std::size_t>(worker)]);
    });
    plan.found[0] = first_rows[buckets.size()];
    plan.found[1] = std::accumulate(buckets.dropped(), buckets.dropped() + plan.num_clouds, std::int64_t{0});
}

}  // namespace

void voxelize_sparse_cpu(const SparsePlan& plan) {
    if (plan.num_clouds == 0) {  // there may be points all the same, in offsets that nobody checked
        plan.found[0] = plan.found[1] = 0;
        return clear_voxels(plan);
    }
    const KeySpace space = plan.bounded() ? key_space(plan.grid, plan.num_clouds) : box_of(plan);
    if (needs_wide_words(space, plan.num_points)) return run<std::uint64_t>(plan, space);
    run<std::uint32_t>(plan, space);
}

}  // namespace robocache::voxelize_detail
