// Points sorted by ranges of cells, so that a thread has a range of cells for itself and finds it in its caches.
//
// Note [Buckets]
// Bucket b has the points whose key >> shift is b, in input order. That order is the same for every number of threads,
// and so is every sum made in it. Two passes over the points: chunks of them are counted bucket by bucket, then each
// chunk knows where its points go.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "core/thread_pool.hpp"
#include "ops/voxelize/cpu_keys.hpp"
#include "robocache/errors.hpp"
#include "robocache/threads.hpp"

namespace robocache::voxelize_detail {

/// Memory of the host for the time of a call, not initialised.
template <class T>
class Scratch {
public:
    Scratch() = default;
    explicit Scratch(std::int64_t count) {
        constexpr std::int64_t most = INT64_MAX / static_cast<std::int64_t>(sizeof(T));
        if (count <= most) data_.reset(new (std::nothrow) T[static_cast<std::size_t>(count)]);
        if (data_ == nullptr) {
            throw OutOfMemory("voxelize: " + std::to_string(count) + " times " + std::to_string(sizeof(T)) +
                              " bytes of host memory are not to be had");
        }
    }
    [[nodiscard]] T* get() const { return data_.get(); }
    T& operator[](std::int64_t i) const { return data_[static_cast<std::size_t>(i)]; }

private:
    std::unique_ptr<T[]> data_;
};

/// Calls body(worker, item) for every item of [0, count), from at most `workers` threads with numbers of their own.
template <class Body>
void each_item(std::int64_t count, std::int64_t workers, const Body& body) {
    std::atomic<std::int64_t> next{0};
    parallel_for(std::min(workers, count), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t worker = begin; worker < end; ++worker) {
            for (std::int64_t item = next++; item < count; item = next++) body(worker, item);
        }
    });
}

/// What happens to points that are in no cell.
struct Outsiders {
    std::int64_t* dropped = nullptr;  // by cloud, or one number for all; set to 0 by the caller
    bool by_cloud = false;
    std::int64_t* voxel = nullptr;  // by point: set to -1
};

constexpr std::int64_t serial_points = 16384;  // fewer are not worth waking a thread for
constexpr std::int64_t most_chunks = 64;

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

/// Item is Entry<Word>, or Word or std::uint16_t where only the cell is asked for.
template <class Word, class Item>
class Buckets {
public:
    Buckets(const KeyReader<Word>& keys, std::uint64_t last_key, int shift)
        : keys_(keys), shift_(shift), num_buckets_(static_cast<std::int64_t>(last_key >> shift) + 1) {
        num_chunks_ = std::clamp<std::int64_t>(keys.num_points() / serial_points, 1, most_chunks);
        chunk_size_ = (keys.num_points() + num_chunks_ - 1) / num_chunks_;
        places_ = Scratch<Word>(num_chunks_ * num_buckets_);
        begin_ = Scratch<std::int64_t>(num_buckets_ + 1);
        count();
        items_ = Scratch<Item>(begin_[num_buckets_]);
    }

    /// Puts every point in its place. Until here nothing was written outside.
    void fill(const Outsiders& outsiders) {
        parallel_for(num_chunks_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t chunk = begin; chunk < end; ++chunk) fill_chunk(chunk, outsiders);
        });
    }

    [[nodiscard]] std::int64_t size() const { return num_buckets_; }
    [[nodiscard]] std::int64_t num_items() const { return begin_[num_buckets_]; }
    [[nodiscard]] Item* items(std::int64_t bucket) const { return items_.get() + begin_[bucket]; }
    [[nodiscard]] std::int64_t num_items(std::int64_t bucket) const { return begin_[bucket + 1] - begin_[bucket]; }
    [[nodiscard]] std::int64_t most_items() const {
        std::int64_t most = 0;
        for (std::int64_t b = 0; b < num_buckets_; ++b) most = std::max(most, num_items(b));
        return most;
    }

private:
    void count() {
        parallel_for(num_chunks_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t chunk = begin; chunk < end; ++chunk) count_chunk(chunk);
        });
        std::int64_t total = 0;
        for (std::int64_t bucket = 0; bucket < num_buckets_; ++bucket) {
            begin_[bucket] = total;
            for (std::int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
                Word& place = places_[chunk * num_buckets_ + bucket];
                const auto here = static_cast<std::int64_t>(place);
                place = static_cast<Word>(total);
                total += here;
            }
        }
        begin_[num_buckets_] = total;
    }

    void count_chunk(std::int64_t chunk) {
        Word* counts = places_.get() + chunk * num_buckets_;
        std::memset(counts, 0, static_cast<std::size_t>(num_buckets_) * sizeof(Word));
        each_block(chunk,
                   [&](std::int64_t, std::int64_t count, std::int64_t, const Word* keys, const std::uint32_t* status) {
                       for (std::int64_t k = 0; k < count; ++k) {
                           if (status[k] == inside) ++counts[keys[k] >> shift_];
                       }
                   });
    }

    void fill_chunk(std::int64_t chunk, const Outsiders& outsiders) {
        Word* places = places_.get() + chunk * num_buckets_;
        const Word mask = static_cast<Word>((Word{1} << shift_) - 1);
        Item* items = items_.get();
        each_block(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t cloud, const Word* keys,
                              const std::uint32_t* status) {
            std::int64_t outside = 0;
            for (std::int64_t k = 0; k < count; ++k) {
                if (status[k] == inside) {
                    put_entry(items[places[keys[k] >> shift_]++], static_cast<Word>(keys[k] & mask), first + k);
                } else {
                    outside += status[k] == dropped ? 1 : 0;
                    if (outsiders.voxel != nullptr) outsiders.voxel[first + k] = -1;
                }
            }
            if (outside > 0 && outsiders.dropped != nullptr) {
                std::atomic_ref(outsiders.dropped[outsiders.by_cloud ? cloud : 0]) += outside;
            }
        });
    }

    template <class Body>
    void each_block(std::int64_t chunk, const Body& body) const {
        const std::int64_t begin = chunk * chunk_size_;
        keys_.each_block(begin, std::min(begin + chunk_size_, keys_.num_points()), body);
    }

    const KeyReader<Word>& keys_;
    int shift_;
    std::int64_t num_buckets_;
    std::int64_t num_chunks_;
    std::int64_t chunk_size_;
    Scratch<Word> places_;  // (chunks, buckets): how many points, then where the next one goes
    Scratch<std::int64_t> begin_;
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
        : reduction_(reduction), channels_(channels), counts_(most_cells) {
        if (reduction < Reduction::sum) return;
        fixed_ = deterministic && reduction <= Reduction::mean;
        const std::int64_t values = most_cells * channels;
        if (fixed_) {
            fixed_sums_ = Scratch<std::int64_t>(values);
            bits_ = Scratch<std::uint32_t>(values);
        } else if (reduction <= Reduction::mean) {
            sums_ = Scratch<float>(values);
        } else {
            bits_ = Scratch<std::uint32_t>(values);
        }
    }

    static std::int64_t cell_bytes(Reduction reduction, bool deterministic, std::int64_t channels) {
        if (reduction < Reduction::sum) return sizeof(Word);
        const bool fixed = deterministic && reduction <= Reduction::mean;
        return static_cast<std::int64_t>(sizeof(Word)) + channels * (fixed ? 12 : 4);
    }

    [[nodiscard]] Word* counts() const { return counts_.get(); }

    void clear(std::int64_t num_cells) {
        num_cells_ = num_cells;
        zero(counts_, num_cells);
        zero(sums_, num_cells * channels_);
        zero(bits_, num_cells * channels_);
        zero(fixed_sums_, num_cells * channels_);
    }

    /// Features of points whose counts are there already.
    void add(const RowJob<Word>& job) {
        if (fixed_) {
            kernels_.keep_magnitudes(job, bits_.get());
            kernels_.add_fixed(job, counts_.get(), bits_.get(), fixed_sums_.get());
        } else if (reduction_ <= Reduction::mean) {
            kernels_.add(job, sums_.get());
        } else {
            kernels_.keep_extremes(job, reduction_ == Reduction::max, bits_.get());
        }
    }

    void finish(void* out, DType out_dtype, float fill) const {
        const FinishJob<Word> job{reduction_, counts_.get(), num_cells_, channels_, fill, out, out_dtype};
        if (fixed_) {
            kernels_.finish_fixed(job, bits_.get(), fixed_sums_.get());
        } else if (reduction_ <= Reduction::mean) {
            kernels_.finish_sums(job, sums_.get());
        } else {
            kernels_.finish_extremes(job, bits_.get());
        }
    }

private:
    template <class T>
    static void zero(const Scratch<T>& scratch, std::int64_t count) {
        if (scratch.get() != nullptr) std::memset(scratch.get(), 0, static_cast<std::size_t>(count) * sizeof(T));
    }

    Reduction reduction_;
    std::int64_t channels_;
    bool fixed_ = false;
    std::int64_t num_cells_ = 0;
    Scratch<Word> counts_;
    Scratch<float> sums_;
    Scratch<std::uint32_t> bits_;  // keys of extremes, or magnitudes
    Scratch<std::int64_t> fixed_sums_;
    const CpuKernels<Word>& kernels_ = cpu_kernels<Word>();
};

}  // namespace robocache::voxelize_detail
