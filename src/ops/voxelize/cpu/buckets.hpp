// Points sorted by ranges of cells, so that a thread has a range of cells for itself and finds it in its caches.
//
// Note [Buckets]
// Bucket b has the points whose key >> shift is b, in input order. That order is the same for every number of threads,
// and so is every sum made in it. Each chunk of points is sorted by buckets on its own, in memory that fits a cache, so
// a bucket has a part in every chunk.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/huge_pages.hpp"
#include "core/interrupt.hpp"
#include "core/thread_pool.hpp"
#include "ops/voxelize/cpu/keys.hpp"
#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache::voxelize_detail {

/// Memory of the host for the time of a call, not initialized. Large blocks are made of large pages where the system
/// has them: it is a new one for every call, and thousands of page faults would cost more than the work in it.
template <class T>
class Scratch {
public:
    Scratch() = default;
    explicit Scratch(std::int64_t count) {
        std::size_t bytes = 0;
        if (!__builtin_mul_overflow(static_cast<std::size_t>(count), sizeof(T), &bytes)) {
            data_.reset(static_cast<T*>(allocate_pages(bytes, huge_page)));
        }
        if (data_ == nullptr) {
            throw OutOfMemory("voxelize: no " + std::to_string(count) + " times " + std::to_string(sizeof(T)) +
                              " bytes of host memory left");
        }
    }
    [[nodiscard]] T* get() const { return data_.get(); }
    T& operator[](std::int64_t i) const { return data_.get()[i]; }

private:
    struct Free {
        void operator()(T* data) const { std::free(data); }
    };
    std::unique_ptr<T, Free> data_;
};

/// Calls body(worker, item) for every item of [0, count), from at most `workers` threads with numbers of their own.
template <class Body>
void each_item(std::int64_t count, std::int64_t workers, const Body& body) {
    std::atomic<std::int64_t> next{0};
    parallel_for(std::min(workers, count), 1, [&](std::int64_t begin, std::int64_t end) {
        try {
            for (std::int64_t worker = begin; worker < end; ++worker) {
                for (std::int64_t item = next++; item < count; item = next++) {
                    body(worker, item);
                    detail::poll_interrupt();
                }
            }
        } catch (...) {
            next = count;  // the others begin no more
            throw;
        }
    });
}

constexpr std::int64_t serial_points = 16384;  // fewer are not worth waking a thread for

/// Threads for `num_items` pieces of a call that touches this many points and values.
inline std::int64_t num_workers(std::int64_t num_items, std::int64_t work) {
    return work <= 2 * serial_points ? 1 : std::min<std::int64_t>(num_threads(), num_items);
}

template <class Word>
void put_entry(Entry<Word>& entry, Word local, std::int64_t index) {
    entry.local = local;
    entry.index = static_cast<Word>(index);
}
inline void put_entry(std::uint16_t& entry, std::uint32_t local, std::int64_t) {
    entry = static_cast<std::uint16_t>(local);
}
inline void put_entry(std::uint16_t& entry, std::uint64_t local, std::int64_t) {
    entry = static_cast<std::uint16_t>(local);
}
template <class Word>
void put_entry(Word& entry, Word local, std::int64_t) {
    entry = local;
}

// Points of a scan come in runs of the same cell: a loop over them waits for the count before to
// be stored. So the quarters of a chunk are gone through side by side, each with counters of its own where they matter.
constexpr int quarters = 4;

/// Calls body(k, quarter) for every k of [0, count), those of a quarter in order.
template <class Body>
__attribute__((always_inline)) inline void each_by_quarters(std::int64_t count, const Body& body) {
    const std::int64_t quarter = count / quarters;
    for (std::int64_t k = 0; k < quarter; ++k) {
        for (int q = 0; q < quarters; ++q) body(q * quarter + k, q);
    }
    for (std::int64_t k = quarters * quarter; k < count; ++k) body(k, quarters - 1);
}

/// Item is Entry<Word>, or Word or std::uint16_t where only the cell is needed. Writes to memory of its own only.
template <class Word, class Item>
class Buckets {
public:
    explicit Buckets(const KeyReader<Word>& keys) : keys_(keys), num_buckets_(keys.num_buckets()) {
        // Parts of a bucket are long enough to be read in one go.
        chunk_size_ = std::clamp(num_buckets_ * 128, serial_points, 8 * serial_points);
        num_chunks_ = (keys.num_points() + chunk_size_ - 1) / chunk_size_;
        part_ends_ = Scratch<std::uint32_t>(num_chunks_ * (num_buckets_ + 1));
        items_ = Scratch<Item>(keys.num_points());
        dropped_ = Scratch<std::int64_t>(keys.num_clouds());
        std::fill_n(dropped_.get(), keys.num_clouds(), 0);
        const std::int64_t workers = std::min<std::int64_t>(num_threads(), num_chunks_);
        const Scratch<Word> key_space(workers * chunk_size_);
        const Scratch<std::uint32_t> bucket_space(workers * chunk_size_);
        const std::int64_t num_places = quarters * (num_buckets_ + 1);
        const Scratch<std::uint32_t> place_space(workers * num_places);
        each_item(num_chunks_, workers, [&](std::int64_t worker, std::int64_t chunk) {
            split(chunk, key_space.get() + worker * chunk_size_, bucket_space.get() + worker * chunk_size_,
                  place_space.get() + worker * num_places);
        });
    }

    [[nodiscard]] std::int64_t size() const { return num_buckets_; }
    /// Points outside the grid or not finite, by cloud.
    [[nodiscard]] const std::int64_t* dropped() const { return dropped_.get(); }

    [[nodiscard]] std::int64_t num_items(std::int64_t bucket) const {
        std::int64_t total = 0;
        for (std::int64_t chunk = 0; chunk < num_chunks_; ++chunk) total += part(chunk, bucket).size();
        return total;
    }

    /// Calls body(items, those of the next part) for the parts of a bucket, in input order.
    template <class Body>
    void each_part(std::int64_t bucket, const Body& body) const {
        for (std::int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
            body(part(chunk, bucket), chunk + 1 < num_chunks_ ? part(chunk + 1, bucket) : std::span<const Item>());
            if (chunk % 64 == 63) detail::poll_interrupt();  // a bucket may have all points
        }
    }

private:
    [[nodiscard]] std::span<const Item> part(std::int64_t chunk, std::int64_t bucket) const {
        const std::uint32_t* ends = part_ends_.get() + chunk * (num_buckets_ + 1);
        const std::uint32_t begin = bucket == 0 ? 0 : ends[bucket - 1];
        return {items_.get() + chunk * chunk_size_ + begin, ends[bucket] - begin};
    }

    /// Sorts the points of a chunk by buckets; those in no cell come last, in a bucket of their own.
    void split(std::int64_t chunk, Word* keys, std::uint32_t* buckets, std::uint32_t* places) {
        const std::int64_t begin = chunk * chunk_size_;
        const std::int64_t count = std::min(chunk_size_, keys_.num_points() - begin);
        keys_.read(begin, begin + count, keys, buckets,
                   [&](std::int64_t cloud, std::int64_t dropped) { std::atomic_ref(dropped_[cloud]) += dropped; });
        const std::int64_t num_places = quarters * (num_buckets_ + 1);
        std::fill_n(places, num_places, 0U);
        each_by_quarters(count, [&](std::int64_t k, int quarter) { ++places[quarters * buckets[k] + quarter]; });
        std::uint32_t total = 0;
        for (std::int64_t i = 0; i < num_places; ++i) total += std::exchange(places[i], total);
        scatter(keys, buckets, count, begin, keys_.shift(), places, items_.get() + begin);
        std::uint32_t* ends = part_ends_.get() + chunk * (num_buckets_ + 1);
        for (std::int64_t b = 0; b <= num_buckets_; ++b) ends[b] = places[quarters * b + quarters - 1];
    }

    /// Leaves in places where each bucket ends, after each quarter.
    static void scatter(const Word* __restrict keys, const std::uint32_t* __restrict buckets, std::int64_t count,
                        std::int64_t first, int shift, std::uint32_t* __restrict places, Item* __restrict items) {
        const Word mask = static_cast<Word>((Word{1} << shift) - 1);
        each_by_quarters(count, [&](std::int64_t k, int quarter) {
            put_entry(items[places[quarters * buckets[k] + quarter]++], static_cast<Word>(keys[k] & mask), first + k);
        });
    }

    const KeyReader<Word>& keys_;
    std::int64_t num_buckets_;
    std::int64_t num_chunks_;
    std::int64_t chunk_size_;
    Scratch<std::uint32_t> part_ends_;  // (chunks, buckets + 1)
    Scratch<std::int64_t> dropped_;
    Scratch<Item> items_;
};

/// The bits of a key inside a bucket, for dense accumulators of `cell_bytes`: a bucket fits a second-level cache, there
/// are enough of them for all threads, and not too many.
inline int dense_shift(std::uint64_t last_key, std::int64_t cell_bytes) {
    constexpr std::int64_t cache_bytes = 1 << 18;
    constexpr std::uint64_t most_buckets = 1024;
    constexpr int least_bucket_bits = 5;
    int shift = 16;
    while (shift > 0 && (cell_bytes << shift) > cache_bytes) --shift;
    while (shift > 0 && (last_key >> shift) < (1U << least_bucket_bits)) --shift;
    while ((last_key >> shift) >= most_buckets) ++shift;
    return shift;
}

/// FeatureRows of a plan; pixels only where their rows are not one apart from the next.
inline FeatureRows feature_rows(const FeaturesPlan& features, const DepthPlan* depth) {
    FeatureRows rows{features.data,
                     features.dtype,
                     features.num_channels,
                     features.strides[3],
                     features.channel_stride,
                     nullptr,
                     {}};
    std::copy(features.strides, features.strides + 4, rows.strides);
    if (depth == nullptr) return rows;
    const std::int64_t* s = features.strides;
    const bool in_line = s[2] == depth->width * s[3] && (depth->num_views == 1 || s[1] == depth->height * s[2]) &&
                         s[0] == depth->num_views * depth->height * s[2];
    rows.pixels = in_line ? nullptr : depth;
    return rows;
}

/// The accumulators of one bucket: as much of it as the reduction needs.
template <class Word>
class Accumulators {
public:
    Accumulators(Reduction reduction, bool deterministic, std::int64_t channels, std::int64_t most_cells)
        : reduction_(reduction),
          rounds_(rounds_of(reduction, deterministic)),
          channels_(channels),
          counts_(most_cells) {
        if (!reduces_features(reduction)) return;
        const std::int64_t values = most_cells * channels;
        for (int i = 0; i < rounds_.num_words; ++i) words_[i] = Scratch<std::uint32_t>(values);
        for (int i = 0; i < rounds_.num_sums; ++i) sums_[i] = Scratch<std::int64_t>(values);
        for (int i = 0; i < max_words; ++i) planes_.words[i] = words_[i].get();
        for (int i = 0; i < max_sums; ++i) planes_.sums[i] = sums_[i].get();
    }

    static std::int64_t cell_bytes(Reduction reduction, bool deterministic, std::int64_t channels) {
        if (!reduces_features(reduction)) return sizeof(Word);
        const CpuRounds<Word>& rounds = rounds_of(reduction, deterministic);
        return static_cast<std::int64_t>(sizeof(Word)) + channels * (4 * rounds.num_words + 8 * rounds.num_sums);
    }

    [[nodiscard]] Word* counts() const { return counts_.get(); }

    void clear(std::int64_t num_cells) {
        num_cells_ = num_cells;
        zero(counts_, num_cells);
        for (const auto& words : words_) zero(words, num_cells * channels_);
        for (const auto& sums : sums_) zero(sums, num_cells * channels_);
    }

    /// Features of points whose counts are there already; each_part(body) calls body(entries, the next ones) for
    /// parts of them.
    template <class EachPart>
    void add(const EachPart& each_part, const FeatureRows& rows) {
        // In pieces, between which there is a look for an interrupt: a part may have all points of the call.
        constexpr std::int64_t values_at_once = 1 << 22;
        const std::int64_t most = values_at_once / std::clamp<std::int64_t>(channels_, 1, values_at_once);
        std::int64_t done = 0;
        const auto each = [&](const auto& body) {
            each_part([&](std::span<const Entry<Word>> entries, std::span<const Entry<Word>> next) {
                while (!entries.empty()) {
                    const std::size_t size = std::min(entries.size(), static_cast<std::size_t>(most));
                    const std::span<const Entry<Word>> after = size < entries.size() ? entries.subspan(size) : next;
                    body(RowJob<Word>{entries.data(), static_cast<std::int64_t>(size), after.data(), std::ssize(after),
                                      rows});
                    entries = entries.subspan(size);
                    done += static_cast<std::int64_t>(size);
                    if (done < most) continue;
                    detail::poll_interrupt();
                    done = 0;
                }
            });
        };
        each([&](const RowJob<Word>& job) { rounds_.look(job, reduction_, planes_); });
        if (rounds_.add == nullptr) return;
        each([&](const RowJob<Word>& job) { rounds_.add(job, counts_.get(), planes_); });
    }

    /// `total_cells` are in the whole output.
    void finish(void* out, DType out_dtype, float fill, std::int64_t total_cells) const {
        constexpr std::int64_t cache_bytes = 1 << 24;
        const bool non_temporal = total_cells * channels_ * size_bytes(out_dtype) > cache_bytes;
        const FinishJob<Word> job{reduction_, counts_.get(), num_cells_, channels_, fill, out, out_dtype, non_temporal};
        rounds_.finish(job, planes_);
    }

    /// What add has found.
    [[nodiscard]] const Planes& planes() const { return planes_; }

private:
    template <class T>
    static void zero(const Scratch<T>& scratch, std::int64_t count) {
        if (scratch.get() != nullptr) std::memset(scratch.get(), 0, static_cast<std::size_t>(count) * sizeof(T));
    }

    static const CpuRounds<Word>& rounds_of(Reduction reduction, bool deterministic) {
        return cpu_kernels<Word>().rounds[static_cast<int>(sums_of(reduction, deterministic))];
    }

    Reduction reduction_;
    const CpuRounds<Word>& rounds_;
    std::int64_t channels_;
    std::int64_t num_cells_ = 0;
    Scratch<Word> counts_;
    Scratch<std::uint32_t> words_[max_words];
    Scratch<std::int64_t> sums_[max_sums];
    Planes planes_{};
};

}  // namespace robocache::voxelize_detail
