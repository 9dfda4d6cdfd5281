// The kernel of BatchReader. A block takes some samples of one column: a thread for each finds its anchor and episode.
// Then, some of the samples at a time, a thread for each target finds its rows, and all threads move them.
#pragma once

#include "core/cuda_overlap.cuh"
#include "loader/batch_table.cuh"
#include "ops/align/cuda_place.cuh"
#include "ops/align/cuda_words.cuh"

namespace robocache::loader_detail {

using align_detail::EpisodeTimes;

/// The rows of a sample's episode.
struct SampleRows {
    std::int64_t anchor;
    std::int64_t first_time;
    const std::int64_t* times;
    const char* values;
    const void* scales;
    std::int64_t max_gap;
    std::int64_t num_rows;
    std::int64_t anchor_row;  // -1: the anchor is no row of this stream
    double period;
    double rate;  // 1 / period
    float rows_per_ns;

    /// Of a row of an episode with a period.
    __device__ std::int64_t time_of(std::int64_t row) const {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(first_time) +
                                         static_cast<std::uint64_t>(__double2ll_rn(static_cast<double>(row) * period)));
    }
};

/// What is written for one target: a, or a and b by weight; a null: the weight, which is 0 or NaN.
struct PlacedTarget {
    const char* a;
    const char* b;
    const void* scales;
    double weight;
};

// ---- finding --------------------------------------------------------------------------------------------------------

/// The order of the epoch, and the first position, of a step that the device tells.
__device__ inline OrderPlan order_at_step(const BatchTable& table, std::uint64_t& first_position) {
    OrderPlan order = table.order;
    if (table.step == nullptr) return order;
    const std::int64_t told = *table.step;
    const std::int64_t step = told < 0 ? 0 : told;
    const std::int64_t epoch = step / table.num_steps;
    order.key = key_of(order.seed, static_cast<std::uint64_t>(epoch), 1);
    first_position += static_cast<std::uint64_t>(step % table.num_steps * table.stride) +
                      static_cast<std::uint64_t>(epoch) * static_cast<std::uint64_t>(table.epoch_size);
    return order;
}

__device__ inline SampleRows find_sample(const BatchTable& table, const DeviceColumn& column, std::int64_t i) {
    std::uint64_t position = table.first_position + static_cast<std::uint64_t>(i);
    const OrderPlan order = order_at_step(table, position);
    Anchor anchor;
    std::int64_t row = -1;
    if (order.num_tables > 1) {
        anchor = anchor_of_position(table.tables, order, position);
    } else {
        const std::uint64_t number = number_at_position(table.table, order, position);
        anchor = anchor_at(table.table, number);
        if (column.row_steps != nullptr) row = static_cast<std::int64_t>(number);
    }
    const EpisodeIndex episode = column.episodes[anchor.episode];
    PartRows rows = column.rows;
    if (column.parts != nullptr) rows = column.parts[episode.part * column.parts_step];
    return {anchor.time,
            episode.first_time,
            rows.times + episode.first_row,
            rows.values + episode.first_row * column.value_row_bytes,
            rows.scales,
            rows.max_gap,
            episode.num_rows,
            row < 0 ? row : row - episode.first_row,
            episode.period,
            episode.period > 0 ? 1.0 / episode.period : 0.0,
            episode.rows_per_ns};
}

/// Where a moment would be among evenly spaced rows.
__device__ __forceinline__ std::int64_t guessed_row(const SampleRows& rows, std::int64_t t) {
    if (t <= rows.first_time) return 0;
    // A little more, so that rounding does not put a row's own time before it.
    const float away = static_cast<float>(align_detail::distance(rows.first_time, t)) * rows.rows_per_ns + 0.01F;
    return static_cast<std::int64_t>(away < 1e18F ? away : 1e18F);
}

__device__ __forceinline__ void fetch_line(std::uint64_t address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Asks for the lines of memory that some samples will most likely need, without waiting for them: enough of them are
/// on their way then, however few registers there are to wait with. Never outside an episode.
__device__ inline void fetch_samples(const DeviceColumn& column, const SampleRows* samples, std::uint32_t count) {
    constexpr std::uint64_t line = 128;
    const std::uint32_t lines = column.by_fetched_lines.divisor;
    for (std::uint32_t k = threadIdx.x; k < count * lines; k += batch_threads) {
        const std::uint32_t s = column.by_fetched_lines.divide(k);
        const std::uint32_t i = k - s * lines;
        const SampleRows& rows = samples[s];
        const bool values = i < column.value_lines;
        if (!values && rows.period > 0) continue;  // its times are known
        const std::int64_t begin = guessed_row(rows, align_detail::add_time(rows.anchor, column.first_delta));
        const std::int64_t all = begin + column.fetched_rows;
        const std::int64_t end = all < rows.num_rows ? all : rows.num_rows;
        const std::int64_t row_bytes = values ? column.value_row_bytes : 8;
        const char* base = values ? rows.values : reinterpret_cast<const char*>(rows.times);
        const auto first = reinterpret_cast<std::uint64_t>(base + begin * row_bytes) / line * line;
        const std::uint64_t at = first + (values ? i : i - column.value_lines) * line;
        if (begin < end && at < reinterpret_cast<std::uint64_t>(base + end * row_bytes)) fetch_line(at);
    }
}

/// The rows of one target, where they are whole lines: of narrower ones half of each line would be for nothing.
__device__ inline void fetch_rows(const DeviceColumn& column, const char* row) {
    constexpr std::int64_t line = 128;
    constexpr std::int64_t most = 1024;
    if (row == nullptr || column.on_host || column.value_row_bytes < line || column.value_row_bytes > most) return;
    for (std::int64_t i = 0; i < column.value_row_bytes; i += line) {
        fetch_line(reinterpret_cast<std::uint64_t>(row + i));
    }
}

/// last_at_or_before, from where an evenly spaced episode would have it: one wait for memory where that is near.
__device__ inline std::int64_t search_near(const EpisodeTimes<std::int64_t>& times, std::int64_t t,
                                           std::int64_t guess) {
    const std::int64_t end = times.count - 1;
    const std::int64_t probe = guess < 0 ? 0 : (guess > end ? end : guess);
    const std::int64_t before = probe > 0 ? probe - 1 : 0;
    const std::int64_t after = probe + 1 < end ? probe + 1 : end;
    const std::int64_t beyond = probe + 2 < end ? probe + 2 : end;
    const std::int64_t t_before = times[before];
    const std::int64_t t_probe = times[probe];
    const std::int64_t t_after = times[after];
    const std::int64_t t_beyond = times[beyond];
    if (t_before <= t) {
        if (t < t_beyond) return t < t_probe ? before : (t < t_after ? probe : after);
        std::int64_t low = beyond;  // times[low] <= t
        std::int64_t step = 2;
        for (; low + step <= end && times[low + step] <= t; step *= 4) low += step;
        return align_detail::first_after(times, low + 1, low + step <= end ? low + step : end + 1, t) - 1;
    }
    std::int64_t high = before;  // times[high] > t
    std::int64_t step = 2;
    for (; high - step >= 0 && !(times[high - step] <= t); step *= 4) high -= step;
    return align_detail::first_after(times, high - step >= 0 ? high - step : 0, high, t) - 1;
}

/// What to write for a target among the (at least one) rows of an episode: search, neighbours and sample of kernel.hpp.
/// Nearly always the rows are where the guess says and inside the episode; then four times, read at once, tell it all.
__device__ inline align_detail::Sample sample_near(const EpisodeTimes<std::int64_t>& times, std::int64_t t,
                                                   std::int64_t guess, Method method,
                                                   const align_detail::Rules& rules) {
    const std::int64_t last = times.count - 1;
    if (guess > 0 && guess + 2 <= last) {
        const std::int64_t t0 = times[guess - 1];
        const std::int64_t t1 = times[guess];
        const std::int64_t t2 = times[guess + 1];
        const std::int64_t t3 = times[guess + 2];
        if (t0 <= t && t < t2) {
            // left is guess - 1 or guess; the row after it stands for its time where the next one is later.
            const bool second = t1 <= t;
            const std::int64_t left = second ? guess : guess - 1;
            const std::int64_t t_left = second ? t1 : t0;
            const std::int64_t t_right = second ? t2 : t1;
            const bool exact = t_left == t;
            if (exact || t_right < (second ? t3 : t2)) {
                return align_detail::sample_inside(t, {left, left + 1, exact}, t_left, t_right, method, rules);
            }
        }
    }
    const auto near = align_detail::neighbours_of(times, t, search_near(times, t, guess));
    return align_detail::sample_at(times, t, near, method, rules);
}

/// The same for an episode with a period: its times are computed, not read.
__device__ inline bool sample_by_period(const SampleRows& rows, std::int64_t t, Method method,
                                        const align_detail::Rules& rules, align_detail::Sample& sample) {
    if (t < rows.first_time) return false;
    const double away = static_cast<double>(align_detail::distance(rows.first_time, t));
    std::int64_t left = __double2ll_rd(away * rows.rate);
    std::int64_t t_left = rows.time_of(left);
    if (t_left > t) t_left = rows.time_of(--left);
    std::int64_t t_right = rows.time_of(left + 1);
    if (t_right <= t) {
        t_left = t_right;
        t_right = rows.time_of(++left + 1);
    }
    if (left < 0 || left + 1 >= rows.num_rows || t_left > t || t_right <= t) return false;  // an edge
    sample = align_detail::sample_inside(t, {left, left + 1, t_left == t}, t_left, t_right, method, rules);
    return true;
}

__device__ inline align_detail::Sample sample_target(const DeviceColumn& column, const SampleRows& rows,
                                                     std::uint32_t j, std::int64_t t) {
    const EpisodeTimes<std::int64_t> times{rows.times, 1, rows.num_rows};
    if (rows.anchor_row >= 0) {
        // Windows on the rows themselves: the last row with just this time.
        const std::int64_t row = rows.anchor_row + __ldg(column.row_steps + j);
        if (row >= 0 && row + 1 < rows.num_rows) {
            const bool exact = rows.period > 0 ? rows.time_of(row) == t : times[row] == t && times[row + 1] > t;
            if (exact) return align_detail::row_sample(row, true);
        }
    }
    align_detail::Rules rules = column.rules;
    rules.max_gap.ns = rows.max_gap;
    align_detail::Sample sample;
    if (rows.period > 0 && sample_by_period(rows, t, column.method, rules, sample)) return sample;
    return sample_near(times, t, guessed_row(rows, t), column.method, rules);
}

__device__ inline PlacedTarget place_target(const DeviceColumn& column, const SampleRows& rows, std::uint32_t j,
                                            bool& valid) {
    using align_detail::Kind;
    valid = false;
    if (rows.num_rows == 0) return {nullptr, nullptr, rows.scales, 0.0};
    const std::int64_t t =
        align_detail::add_time(align_detail::add_time(rows.anchor, __ldg(column.deltas + j)), column.latency);
    const align_detail::Sample sample = sample_target(column, rows, j, t);
    valid = sample.valid;
    if (sample.kind == Kind::nan) {
        return {nullptr, nullptr, rows.scales, __longlong_as_double(0x7ff8000000000000LL)};
    }
    const char* a = rows.values + sample.rows[0] * column.value_row_bytes;
    const char* b = sample.kind == Kind::blend ? rows.values + sample.rows[1] * column.value_row_bytes : nullptr;
    if (column.fetched_rows == 0) {
        fetch_rows(column, a);
        fetch_rows(column, b);
    }
    return {a, b, rows.scales, sample.weight};
}

// ---- moving ---------------------------------------------------------------------------------------------------------

/// The share of a thread: item `item` of every `step`-th target from `first` on. `rows_only`: every target is one row.
struct Share {
    bool rows_only;
    std::uint32_t item;
    std::uint32_t first;
    std::uint32_t step;
    std::uint32_t count;  // targets of the block
    char* out;            // of target 0
};

template <int bytes>
__device__ void copy_items(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
    using W = typename align_detail::Word<bytes>::type;
    constexpr int unroll = 4;
    const std::int64_t at = static_cast<std::int64_t>(share.item) * bytes;
    for (std::uint32_t t = share.first; t < share.count; t += unroll * share.step) {
        W words[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            words[u] = W{};
            const std::uint32_t target = t + u * share.step;
            if (target < share.count && placed[target].a != nullptr) {
                words[u] = __ldg(reinterpret_cast<const W*>(placed[target].a + at));
            }
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t target = t + u * share.step;
            if (target < share.count) *reinterpret_cast<W*>(share.out + target * column.out_row_bytes + at) = words[u];
        }
    }
}

/// Elements of one item between their memory and the type they are computed in: that of the blend, float for integers.
template <class In, class Out, int count>
struct Items {
    using Compute =
        typename ScaledIn<std::conditional_t<align_detail::is_float<In> && sizeof(In) == 2, float, In>>::type;
    static constexpr int in_bytes = count * static_cast<int>(sizeof(In));
    static constexpr int out_bytes = count * static_cast<int>(sizeof(Out));
    using InWord = typename align_detail::Word<in_bytes>::type;
    using OutWord = typename align_detail::Word<out_bytes>::type;

    __device__ static Compute widened(In x) {
        if constexpr (sizeof(In) == 2 && align_detail::is_float<In>) {
            return align_detail::widen_fast(x);
        } else {
            return static_cast<Compute>(x);
        }
    }

    __device__ static OutWord narrowed(const Compute* x) {
        Out z[count];
        if constexpr (std::is_same_v<Compute, float> && sizeof(Out) <= 4 && count % 2 == 0) {
#pragma unroll
            for (int i = 0; i < count; i += 2) align_detail::narrow_pair(x[i], x[i + 1], z + i);
        } else {
#pragma unroll
            for (int i = 0; i < count; ++i) z[i] = align_detail::narrow<Out>(x[i]);
        }
        OutWord word;
        memcpy(&word, z, out_bytes);
        return word;
    }

    __device__ static OutWord made(InWord a, InWord b, const PlacedTarget& p, bool scaled, const Compute* offset,
                                   const Compute* scale) {
        if constexpr (std::is_same_v<In, Out>) {
            if (p.a != nullptr && p.b == nullptr && !scaled) return a;  // bit for bit
        }
        In x[count];
        Compute z[count];
        memcpy(x, &a, in_bytes);
#pragma unroll
        for (int i = 0; i < count; ++i) z[i] = p.a == nullptr ? static_cast<Compute>(p.weight) : widened(x[i]);
        if constexpr (align_detail::is_float<In>) {
            if (p.b != nullptr) {
                In y[count];
                memcpy(y, &b, in_bytes);
                const auto w = static_cast<Compute>(p.weight);
#pragma unroll
                for (int i = 0; i < count; ++i) z[i] = align_detail::blend_linear(z[i], widened(y[i]), w);
            }
        }
        if (scaled) {
#pragma unroll
            for (int i = 0; i < count; ++i) z[i] = (z[i] - offset[i]) * scale[i];
        }
        return narrowed(z);
    }
};

template <class In, class Out, int count>
__device__ void make_items(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
    using I = Items<In, Out, count>;
    using Compute = typename I::Compute;
    using InWord = typename I::InWord;
    if constexpr (std::is_same_v<In, Out>) {
        if (share.rows_only && !column.format.scaled) return copy_items<I::in_bytes>(column, placed, share);
    }
    constexpr int unroll = sizeof(InWord) == 16 ? 2 : 4;
    const std::int64_t in_at = static_cast<std::int64_t>(share.item) * I::in_bytes;
    const std::int64_t out_at = static_cast<std::int64_t>(share.item) * I::out_bytes;
    const bool scaled = column.format.scaled;
    const void* known = nullptr;  // the scales at hand
    Compute offset[count];
    Compute scale[count];
    for (std::uint32_t t = share.first; t < share.count; t += unroll * share.step) {
        PlacedTarget p[unroll];
        InWord a[unroll];
        InWord b[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t target = t + u * share.step;
            p[u] = placed[target < share.count ? target : share.first];
            a[u] = InWord{};
            b[u] = InWord{};
            if (p[u].a != nullptr) a[u] = __ldg(reinterpret_cast<const InWord*>(p[u].a + in_at));
            if (p[u].b != nullptr) b[u] = __ldg(reinterpret_cast<const InWord*>(p[u].b + in_at));
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::uint32_t target = t + u * share.step;
            if (target >= share.count) break;
            if (scaled && p[u].scales != known) {
                known = p[u].scales;
                std::uint32_t channel = share.item * count % column.num_channels;
#pragma unroll
                for (int i = 0; i < count; ++i) {
                    const auto* pair = static_cast<const Compute*>(known) + 2 * channel;
                    offset[i] = pair[0];
                    scale[i] = pair[1];
                    if (++channel == column.num_channels) channel = 0;
                }
            }
            *reinterpret_cast<typename I::OutWord*>(share.out + target * column.out_row_bytes + out_at) =
                I::made(a[u], b[u], p[u], scaled, offset, scale);
        }
    }
}

template <class In, class Out>
__device__ void make_items(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
    constexpr int wide = 16 / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
    if (column.format.wide) return make_items<In, Out, wide>(column, placed, share);
    make_items<In, Out, 1>(column, placed, share);
}

template <class In>
__device__ void make_items_of(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
    switch (column.format.out) {
        case DType::f32: return make_items<In, float>(column, placed, share);
        case DType::f16: return make_items<In, Half>(column, placed, share);
        case DType::bf16: return make_items<In, BFloat16>(column, placed, share);
        default: return make_items<In, double>(column, placed, share);
    }
}

/// Columns that have nothing in common.
struct AnyItems {
    static constexpr int blocks_per_multiprocessor = 4;

    __device__ static void make(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
        switch (column.format.raw_bytes) {
            case 16: return copy_items<16>(column, placed, share);
            case 8: return copy_items<8>(column, placed, share);
            case 4: return copy_items<4>(column, placed, share);
            case 2: return copy_items<2>(column, placed, share);
            case 1: return copy_items<1>(column, placed, share);
            default: break;
        }
        switch (column.format.in) {
            case DType::f32: return make_items_of<float>(column, placed, share);
            case DType::f16: return make_items_of<Half>(column, placed, share);
            case DType::bf16: return make_items_of<BFloat16>(column, placed, share);
            case DType::f64: return make_items_of<double>(column, placed, share);
            case DType::u8: return make_items_of<std::uint8_t>(column, placed, share);
            case DType::u16: return make_items_of<std::uint16_t>(column, placed, share);
            default: break;
        }
    }
};

/// Columns of one type.
template <class T>
struct ItemsOf {
    static constexpr int blocks_per_multiprocessor = 7;

    __device__ static void make(const DeviceColumn& column, const PlacedTarget* placed, const Share& share) {
        make_items<T, T>(column, placed, share);
    }
};

/// What a block works on.
struct BlockWork {
    std::int64_t first_sample;
    std::uint32_t num_samples;
    std::uint32_t first_target;
    std::uint32_t num_targets;  // of each sample; all of them where there are several samples
    std::uint32_t first_item;
    std::uint32_t num_items;  // of each row
};

__device__ inline BlockWork work_of(const DeviceColumn& column, std::int64_t count) {
    const std::uint32_t block = blockIdx.x - column.first_block;
    const std::uint32_t cut = column.by_chunks.divide(block);
    const std::uint32_t first_item = (block - cut * column.by_chunks.divisor) * column.chunk_items;
    const std::uint32_t samples = column.by_target_cuts.divide(cut);
    const std::uint32_t first_target = (cut - samples * column.by_target_cuts.divisor) * column.tile_targets;
    const std::int64_t first_sample = static_cast<std::int64_t>(samples) * column.samples;
    const std::int64_t samples_left = count - first_sample;
    const std::uint32_t targets_left = column.num_targets - first_target;
    const std::uint32_t items_left = column.num_items - first_item;
    return {first_sample, static_cast<std::uint32_t>(samples_left < column.samples ? samples_left : column.samples),
            first_target, targets_left < column.tile_targets ? targets_left : column.tile_targets,
            first_item,   items_left < column.chunk_items ? items_left : column.chunk_items};
}

template <class Mover>
__global__ __launch_bounds__(batch_threads, Mover::blocks_per_multiprocessor) void robocache_read_batch(
    const __grid_constant__ BatchTable table) {
    __shared__ SampleRows samples[max_block_samples];
    __shared__ PlacedTarget placed[max_tile_targets];
    __shared__ bool valid[max_tile_targets];
    allow_next_kernel();
    // A step is somebody's earlier work; everything else that is read here was there before the reader.
    if (table.step != nullptr) wait_for_earlier_work();
    int c = 0;
    while (c + 1 < table.num_columns && blockIdx.x >= table.columns[c + 1].first_block) ++c;
    const DeviceColumn& column = table.columns[c];
    const BlockWork work = work_of(column, table.count);
    if (threadIdx.x < work.num_samples)
        samples[threadIdx.x] = find_sample(table, column, work.first_sample + threadIdx.x);
    __syncthreads();
    const bool fetches = column.fetched_rows > 0 && work.first_item == 0 && work.first_target == 0;
    if (fetches && !(samples[0].period > 0)) {  // with a period the rows themselves are asked for at once
        fetch_samples(column, samples, work.num_samples < column.tile_samples ? work.num_samples : column.tile_samples);
    }

    const std::uint32_t thread_target =
        work.num_items == column.chunk_items ? column.by_chunk_items.divide(threadIdx.x) : threadIdx.x / work.num_items;
    const std::uint32_t target_step = work.num_items == column.chunk_items ? column.by_chunk_items.divide(batch_threads)
                                                                           : batch_threads / work.num_items;
    for (std::uint32_t tile = 0; tile < work.num_samples; tile += column.tile_samples) {
        const std::uint32_t left = work.num_samples - tile;
        const std::uint32_t tile_samples = left < column.tile_samples ? left : column.tile_samples;
        if (fetches && left > tile_samples) {  // those of the next tile
            const std::uint32_t more = left - tile_samples;
            fetch_samples(column, samples + tile + tile_samples,
                          more < column.tile_samples ? more : column.tile_samples);
        }
        const std::uint32_t count = tile_samples * work.num_targets;
        bool all_rows = true;
        for (std::uint32_t k = threadIdx.x; k < count; k += batch_threads) {
            const std::uint32_t s = column.by_tile_targets.divide(k);
            const std::uint32_t j = work.first_target + k - s * column.tile_targets;
            const PlacedTarget p = place_target(column, samples[tile + s], j, valid[k]);
            all_rows = all_rows && p.a != nullptr && p.b == nullptr;
            placed[k] = p;
        }
        if (table.step == nullptr && tile == 0) wait_for_earlier_work();
        const int rows_only = __syncthreads_and(all_rows);

        const std::int64_t first = (work.first_sample + tile) * column.num_targets + work.first_target;
        if (column.padding != nullptr && work.first_item == 0) {
            for (std::uint32_t k = threadIdx.x; k < count; k += batch_threads) column.padding[first + k] = !valid[k];
        }
        if (thread_target < target_step) {
            const std::uint32_t item = work.first_item + threadIdx.x - thread_target * work.num_items;
            Mover::make(
                column, placed,
                {rows_only != 0, item, thread_target, target_step, count, column.out + first * column.out_row_bytes});
        }
        if (left > tile_samples) __syncthreads();
    }
}

// ---- the index ------------------------------------------------------------------------------------------------------

struct IndexJob {
    const PartOffsets* parts;  // of this column, parts_step apart
    std::int64_t parts_step;
    const std::int64_t* part;
    const std::int64_t* local;
    std::int64_t num_episodes;
    EpisodeIndex* episodes;
};

/// Whether every row of an episode has the time that a period says. For a whole block.
__device__ inline bool has_period(const std::int64_t* times, std::int64_t count, double period) {
    bool all = period >= 1;
    for (std::int64_t k = threadIdx.x; k < count && all; k += blockDim.x) {
        all = times[k] - times[0] == __double2ll_rn(static_cast<double>(k) * period);
    }
    return __syncthreads_and(all) != 0;
}

/// One block for each episode.
__global__ void robocache_index_episodes(const IndexJob job) {
    const std::int64_t e = blockIdx.x;
    const std::int64_t part = job.part[e];
    const std::int64_t local = job.local[e];
    const PartOffsets rows = job.parts[part * job.parts_step];
    std::int64_t begin = 0;
    std::int64_t end = 0;
    if (local < rows.num_episodes) {  // an episode that is not there has no rows
        begin = rows.offsets[local];
        end = rows.offsets[local + 1];
        begin = begin < 0 ? 0 : (begin > rows.num_rows ? rows.num_rows : begin);
        end = end < begin ? begin : (end > rows.num_rows ? rows.num_rows : end);
    }
    const std::int64_t count = end - begin;
    EpisodeIndex index{begin, 0, count, 0.0, 0.0F, static_cast<std::int32_t>(part), 0};
    if (count > 0) index.first_time = rows.times[begin];
    const std::int64_t last = count > 0 ? rows.times[end - 1] : 0;
    if (count > 1 && last > index.first_time) {
        const double period =
            static_cast<double>(align_detail::distance(index.first_time, last)) / static_cast<double>(count - 1);
        index.rows_per_ns = static_cast<float>(1.0 / period);
        // The rates that recordings are made at: whole nanoseconds, whole hertz, or thousandths of one.
        const double candidates[3] = {rint(period), 1e9 / rint(1e9 / period), 1e9 / (rint(1e12 / period) / 1e3)};
        for (int i = 0; i < 3 && !(index.period > 0); ++i) {
            if (has_period(rows.times + begin, count, candidates[i])) index.period = candidates[i];
        }
    }
    if (threadIdx.x == 0) job.episodes[e] = index;
}

__global__ void robocache_index_anchors(const TablePlan table, Bucket* buckets, std::int64_t count) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) buckets[i] = make_bucket(table, i);
}

}  // namespace robocache::loader_detail
