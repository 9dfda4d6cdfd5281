// Narrow rows of short episodes, the usual robot's: a warp copies the times and the rows of a whole episode into shared
// memory, in wide accesses that rows of 14 or 28 bytes do not allow by themselves, and blends there. Every lane has two
// targets; those of 2-byte elements are side by side, so that pairs of elements are whole words.
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/window.cuh"

namespace robocache::align_detail {

/// What becomes of one target, in few registers.
struct ShortTarget {
    std::int32_t a;
    std::int32_t b;
    float weight;
    Kind kind;
    bool valid;
};

__device__ __forceinline__ ShortTarget short_target(const Sample& sample) {
    return {static_cast<std::int32_t>(sample.rows[0]), static_cast<std::int32_t>(sample.rows[1]),
            static_cast<float>(sample.weight), sample.kind, sample.valid};
}

/// Bytes of an array, and the whole words of 16 bytes around them.
struct Piece {
    const char* from;
    std::int32_t head;   // bytes of the first word before them
    std::int32_t size;   // bytes
    std::int32_t whole;  // bytes of the words; 0 where these are not all inside [begin, end)

    __device__ Piece(const char* from, std::int32_t size, const char* begin, const char* end) : from(from), size(size) {
        head = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(from) % 16);
        whole = (head + size + 15) / 16 * 16;
        if (from - head < begin || from - head + whole > end) whole = 0;
    }
};

template <class T>
__device__ __forceinline__ void fetch_elements(const Piece& piece, int lane, char* to) {
    if (piece.whole != 0) return;
    constexpr auto element = static_cast<std::int32_t>(sizeof(T));
    for (std::int32_t at = lane * element; at < piece.size; at += warp_size * element) {
        *reinterpret_cast<T*>(to + piece.head + at) = *reinterpret_cast<const T*>(piece.from + at);
    }
}

/// Copies two pieces into the shared memory of a warp, each at the same offset from 16 bytes as in global memory.
template <class A, class B>
__device__ __forceinline__ void fetch_both(const Piece& a, const Piece& b, int lane, std::uint64_t* barrier, char* to_a,
                                           char* to_b) {
    fetch_elements<A>(a, lane, to_a);
    fetch_elements<B>(b, lane, to_b);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    const auto copy = [&](const Piece& piece, char* to) {
        for (std::int32_t at = lane * 16; at < piece.whole; at += warp_size * 16) {
            copy_async<16>(to + at, piece.from - piece.head + at);
        }
    };
    copy(a, to_a);
    copy(b, to_b);
    wait_for_copies();
    __syncwarp();
#else
    const unsigned address = shared_address(barrier);
    if (lane == 0) {
        init_barrier(address, 1);
        publish_barriers();
        arrive_and_expect(address, a.whole + b.whole);
        if (a.whole != 0) copy_in(to_a, a.from - a.head, a.whole, address);
        if (b.whole != 0) copy_in(to_b, b.from - b.head, b.whole, address);
    }
    __syncwarp();
    await_barrier(address, 0);
#endif
}

/// The shared memory of all warps of a block. A function, so that addresses in it stay 32 bits wide.
__device__ __forceinline__ char* short_scratch() {
    extern __shared__ __align__(16) char scratch[];
    return scratch;
}

/// A target that is outside the rows or beside a time that repeats; `left` as neighbors_of takes it.
template <class Time>
__device__ __noinline__ ShortTarget target_beside(const RowsStream& s, std::int32_t times_at, std::int32_t count,
                                                  Time t, std::int32_t left) {
    const EpisodeTimes<Time> times{reinterpret_cast<const Time*>(short_scratch() + times_at), 1, count};
    return short_target(sample_at(times, t, neighbors_of(times, t, left), Method::linear, s.stream.rules));
}

/// By address: with pointers the compiler carries 64 bits along beside the 32 it needs (seen in the machine code).
template <class T>
__device__ __forceinline__ T load_shared(unsigned address) {
    T x;
    if constexpr (__is_same(T, float)) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    } else if constexpr (__is_same(T, double)) {
        asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address));
    } else if constexpr (__is_same(T, unsigned)) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
    } else {
        asm volatile("ld.shared.s64 %0, [%1];" : "=l"(x) : "r"(address));
    }
    return x;
}

/// The last of the times that is not after each of two targets, or the first of them; all by address in shared memory.
/// The first step takes one of two windows of a power of two: the one from the first time, or the one up to the last.
template <class Time>
__device__ __forceinline__ void search_both(unsigned times, std::int32_t count, Time t0, Time t1, unsigned& at0,
                                            unsigned& at1) {
    constexpr auto time_bytes = static_cast<unsigned>(sizeof(Time));
    unsigned power = 1U << (31 - __clz(count));
    const unsigned upper = times + (count - power) * time_bytes;
    const Time x = load_shared<Time>(upper);
    at0 = x <= t0 ? upper : times;
    at1 = x <= t1 ? upper : times;
    const auto step = [&](unsigned size) {
        const Time x0 = load_shared<Time>(at0 + size * time_bytes);
        const Time x1 = load_shared<Time>(at1 + size * time_bytes);
        if (x0 <= t0) at0 += size * time_bytes;
        if (x1 <= t1) at1 += size * time_bytes;
    };
    for (; power > 256; power /= 2) step(power / 2);
    if (power > 128) step(128);
    if (power > 64) step(64);
    if (power > 32) step(32);
    if (power > 16) step(16);
    if (power > 8) step(8);
    if (power > 4) step(4);
    if (power > 2) step(2);
    if (power > 1) step(1);
}

/// One target among `count` times in shared memory. `at`: the last of them that is not after it, or the first.
template <class Time>
__device__ __forceinline__ ShortTarget place_short(const RowsStream& s, unsigned times, std::int32_t count, Time t,
                                                   unsigned at) {
    constexpr auto time_bytes = static_cast<unsigned>(sizeof(Time));
    const unsigned last = times + (count - 1) * time_bytes;
    const Time t_left = load_shared<Time>(at);
    const Time t_right = load_shared<Time>(min(at + time_bytes, last));
    const Time t_beyond = load_shared<Time>(min(at + 2 * time_bytes, last));
    const auto low = static_cast<std::int32_t>((at - times) / time_bytes);
    // Not "and" of the language: it would branch.
    const bool inside = (t_left <= t) & (t < t_right) & ((at + time_bytes >= last) | (t_beyond != t_right));
    const bool blends = inside & (t_left != t);
    // sample_inside without converting the weight to float64 and back; unused where nothing is blended.
    const Gap<Time> part = blends ? distance(t_left, t) : Gap<Time>{1};
    const Gap<Time> span = blends ? distance(t_left, t_right) : Gap<Time>{1};
    ShortTarget target{low, low + (blends ? 1 : 0), static_cast<float>(weight_of<float>(part, span)),
                       blends ? Kind::blend : Kind::row, !blends || s.stream.rules.allows(span)};
    if (!inside) {
        const bool before = !(t_left <= t);
        const bool alone = before ? count == 1 || t_right != t_left : at == last;
        if (alone && s.stream.rules.outside(before) == Outside::hold) {
            const bool exact = !before && t_left == t;
            const Gap<Time> away = before ? distance(t, t_left) : distance(t_left, t);
            target.valid = exact || s.stream.rules.allows_outside(away);
        } else {
            target = target_beside(s, static_cast<std::int32_t>(times - shared_address(short_scratch())), count, t,
                                   t_left <= t ? low : -1);
        }
    }
    return target;
}

/// Any kind of target, in global memory.
template <class T>
__device__ __noinline__ void write_alone(ShortTarget target, const char* values, std::int32_t row_bytes, char* to) {
    const std::int32_t width = row_bytes / static_cast<std::int32_t>(sizeof(T));
    const T* a = reinterpret_cast<const T*>(values + static_cast<std::int64_t>(target.a) * row_bytes);
    const T* b = reinterpret_cast<const T*>(values + static_cast<std::int64_t>(target.b) * row_bytes);
    for (std::int32_t c = 0; c < width; ++c) {
        T result;
        if (target.kind == Kind::zero || target.kind == Kind::nan) {
            result = narrow<T>(target.kind == Kind::zero ? 0.0 : __longlong_as_double(0x7ff8000000000000LL));
        } else if (target.kind == Kind::blend) {
            result = narrow<T>(blend_linear(widen_fast(a[c]), widen_fast(b[c]), target.weight));
        } else {
            result = a[c];
        }
        reinterpret_cast<T*>(to)[c] = result;
    }
}

/// A tile of an episode that has no rows, or more than there is room for. Not inlined, and reads its parameters again:
/// its registers would be taken from every warp.
template <class T, class Time>
__device__ __noinline__ void write_long(const ShortTable& table, std::uint32_t number) {
    const RowsStream& s = table.rows.streams[0];
    const DeviceQuery& q = table.rows.query;
    const RowsTile tile = rows_tile(table.rows, number);
    const EpisodeRows<Time> episode = episode_rows<Time>(s.stream, episode_of(q, s.stream, tile.row));
    for (std::int32_t k = static_cast<std::int32_t>(threadIdx.x) % warp_size; k < tile.count; k += warp_size) {
        const std::int64_t j = tile.first_target + k;
        const Time t = add_time(target_time<Time>(q, tile.row, j), duration_as<Time>(s.stream.latency));
        ShortTarget target{0, 0, 0.0F, Kind::zero, false};
        if (episode.times.count > 0) {
            const Located<Time> located = locate_far(episode.times, t);
            target = short_target(sample_of<float>(episode.times, t, located, Method::linear, s.stream.rules));
        }
        write_alone<T>(target, episode.values, s.row_bytes,
                       s.out + tile.row * s.out_row_stride + j * s.out_target_stride);
        s.stream.write_valid(tile.row, j, target.valid);
    }
}

/// Rows of one target in shared memory.
template <class T>
struct ShortRows {
    const T* a;
    const T* b;
    float weight;
};

/// narrow_pair as one word: by way of two elements it takes more instructions (seen in the machine code).
__device__ __forceinline__ unsigned pack_pair(float x, float y, BFloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    unsigned word;
    memcpy(&word, &pair, 4);
    return word;
}

__device__ __forceinline__ unsigned pack_pair(float x, float y, Half) {
    const __half2 pair = __floats2half2_rn(x, y);
    unsigned word;
    memcpy(&word, &pair, 4);
    return word;
}

/// The rows of both targets of a lane; those of 2-byte elements side by side, in words. `fixed`: their width, 0 where
/// it is not known to the compiler. All loads of a batch before the first use.
template <class T, int fixed>
__device__ __forceinline__ void blend_rows(const ShortRows<T>& p, const ShortRows<T>& q, std::int32_t row_width,
                                           T* to_p, T* to_q) {
    constexpr int batch = fixed != 0 ? 2 * fixed : 8;
    const int width = fixed != 0 ? fixed : row_width;
#pragma unroll
    for (int first = 0; first < 2 * width; first += batch) {
        T a[batch];
        T b[batch];
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const int e = fixed != 0 || first + u < 2 * width ? first + u : 2 * width - 1;
            a[u] = e < width ? p.a[e] : q.a[e - width];
            b[u] = e < width ? p.b[e] : q.b[e - width];
        }
#pragma unroll
        for (int u = 0; u < batch; u += 2) {
            if (fixed == 0 && first + u >= 2 * width) break;
            const bool u_in_p = first + u < width;
            const bool v_in_p = first + u + 1 < width;
            const float x = blend_linear(widen_fast(a[u]), widen_fast(b[u]), u_in_p ? p.weight : q.weight);
            const float y = blend_linear(widen_fast(a[u + 1]), widen_fast(b[u + 1]), v_in_p ? p.weight : q.weight);
            if constexpr (sizeof(T) == 2) {
                reinterpret_cast<unsigned*>(to_p)[(first + u) / 2] = pack_pair(x, y, T{});
            } else {
                (u_in_p ? to_p[first + u] : to_q[first + u - width]) = x;
                (v_in_p ? to_p[first + u + 1] : to_q[first + u + 1 - width]) = y;
            }
        }
    }
}

template <class T>
__device__ __forceinline__ void fill_nan(std::int32_t width, T* to) {
    for (std::int32_t c = 0; c < width; ++c) to[c] = narrow<T>(__longlong_as_double(0x7ff8000000000000LL));
}

/// A target that does not blend two rows side by side: rows that are apart, a row as it is, or NaN.
template <class T, int fixed>
__device__ __forceinline__ void put_alone(const ShortTarget& target, const ShortRows<T>& rows, std::int32_t row_width,
                                          T* to) {
    const int width = fixed != 0 ? fixed : row_width;
    if (target.kind == Kind::blend) {
        for (int c = 0; c < width; ++c) {
            to[c] = narrow<T>(blend_linear(widen_fast(rows.a[c]), widen_fast(rows.b[c]), rows.weight));
        }
    } else if (target.kind == Kind::nan) {
        fill_nan(width, to);
    } else {
        constexpr int batch = fixed != 0 ? fixed : 1;
        for (int first = 0; first < width; first += batch) {
            T x[batch];
#pragma unroll
            for (int u = 0; u < batch; ++u) x[u] = rows.a[first + u];
#pragma unroll
            for (int u = 0; u < batch; ++u) to[first + u] = x[u];
        }
    }
}

/// Two rows of 2-byte elements side by side in shared memory, in registers: whole words, shifted to where they begin.
template <class T, int width>
struct RowPair {
    unsigned words[width];

    __device__ __forceinline__ explicit RowPair(const T* rows) {
        const unsigned address = shared_address(rows);
        unsigned x[width + 1];
#pragma unroll
        for (int i = 0; i <= width; ++i) x[i] = load_shared<unsigned>((address & ~3U) + 4 * i);
#pragma unroll
        for (int i = 0; i < width; ++i) words[i] = __funnelshift_r(x[i], x[i + 1], (address & 2U) * 8);
    }

    /// Element c of the first row; of the second one from `width` on.
    __device__ __forceinline__ float at(int c) const {
        return widen_fast(T{static_cast<std::uint16_t>(words[c / 2] >> (c % 2 * 16))});
    }

    __device__ __forceinline__ float blend(int c, float weight) const {
        return blend_linear(at(c), at(c + width), weight);
    }
};

/// The rows of both targets of a lane where their width is known, and every second row begins amid a word.
template <class T, int width>
__device__ __forceinline__ void blend_pairs(const ShortRows<T>& p, const ShortRows<T>& q, T* to) {
    const RowPair<T, width> of_p(p.a);
    const RowPair<T, width> of_q(q.a);
    const auto result = [&](int e) { return e < width ? of_p.blend(e, p.weight) : of_q.blend(e - width, q.weight); };
#pragma unroll
    for (int i = 0; i < width; ++i) {
        reinterpret_cast<unsigned*>(to)[i] = pack_pair(result(2 * i), result(2 * i + 1), T{});
    }
}

/// `fixed`: the width of rows if it is a constant of the instance, else 0.
template <class Time, class T, int fixed>
__global__ __launch_bounds__(ShortTuning::warps* warp_size,
                             sizeof(T) == 2 ? 9 : 8) void align_short(const __grid_constant__ ShortTable table) {
    const int warp = threadIdx.x / warp_size;
    const int lane = threadIdx.x % warp_size;
    const std::uint32_t number = blockIdx.x * ShortTuning::warps + warp;
    wait_for_earlier_work();
    if (number >= table.rows.num_tiles) return;
    const DeviceQuery& q = table.rows.query;
    const RowsStream& s = table.rows.streams[0];
    const RowsTile tile = rows_tile(table.rows, number);
    const Time* targets = reinterpret_cast<const Time*>(q.times) + tile.row * q.time_row_stride + tile.first_target;
    constexpr bool side_by_side = sizeof(T) == 2;  // else far from each other, for the sake of shared memory's banks
    const int first = side_by_side ? 2 * lane : lane;
    const int second = side_by_side ? first + 1 : first + warp_size;
    const int last = tile.count - 1;
    const Time raw0 = __ldg(targets + (first < last ? first : last));  // not waited for here
    const Time raw1 = __ldg(targets + (second < last ? second : last));
    const EpisodeRows<Time> episode = episode_rows<Time>(s.stream, episode_of(q, s.stream, tile.row));
    if (episode.times.count == 0 || episode.times.count > table.most_rows) return write_long<T, Time>(table, number);
    const auto count = static_cast<std::int32_t>(episode.times.count);
    char* const scratch = short_scratch() + warp * table.warp_bytes;
    char* const results = scratch + 16;  // a barrier is before them
    char* const staged_rows = results + table.results_bytes;
    const Piece time_piece(reinterpret_cast<const char*>(episode.times.data),
                           count * static_cast<std::int32_t>(sizeof(Time)), s.stream.times, table.times_end);
    const Piece row_piece(episode.values, count * s.row_bytes, s.stream.values, table.values_end);
    fetch_both<Time, T>(time_piece, row_piece, lane, reinterpret_cast<std::uint64_t*>(scratch), results, staged_rows);
    const unsigned times = shared_address(results + time_piece.head);
    const char* rows = staged_rows + row_piece.head;
    const Time latency = duration_as<Time>(s.stream.latency);
    const Time t0 = add_time(raw0, latency);
    const Time t1 = add_time(raw1, latency);
    unsigned at0 = times;
    unsigned at1 = times;
    search_both(times, count, t0, t1, at0, at1);
    const ShortTarget target0 = place_short(s, times, count, t0, at0);
    const ShortTarget target1 = place_short(s, times, count, t1, at1);
    __syncwarp();  // all have read the times: results may take their place
    T* to0 = reinterpret_cast<T*>(results + first * s.row_bytes);
    T* to1 = reinterpret_cast<T*>(results + second * s.row_bytes);
    const auto rows_of = [&](const ShortTarget& target) {
        return ShortRows<T>{reinterpret_cast<const T*>(rows + target.a * s.row_bytes),
                            reinterpret_cast<const T*>(rows + target.b * s.row_bytes), target.weight};
    };
    const ShortRows<T> rows0 = rows_of(target0);
    const ShortRows<T> rows1 = rows_of(target1);
    const std::int32_t width = s.row_bytes / static_cast<std::int32_t>(sizeof(T));
    constexpr bool by_pairs = sizeof(T) == 2 && fixed != 0;
    if constexpr (by_pairs) {
        blend_pairs<T, fixed>(rows0, rows1, to0);
    } else {
        blend_rows<T, fixed>(rows0, rows1, width, to0, to1);
    }
    const auto is_done = [&](const ShortTarget& target) {
        return target.kind == Kind::blend && (!by_pairs || target.b == target.a + 1);
    };
    if (!is_done(target0)) put_alone<T, fixed>(target0, rows0, width, to0);
    if (!is_done(target1)) put_alone<T, fixed>(target1, rows1, width, to1);
    __syncwarp();
    char* out = s.out + tile.row * s.out_row_stride + tile.first_target * s.out_target_stride;
    write_side_by_side<T>(results, tile.count * s.row_bytes, lane, out);
    if (first <= last) s.stream.write_valid(tile.row, tile.first_target + first, target0.valid);
    if (second <= last) s.stream.write_valid(tile.row, tile.first_target + second, target1.valid);
}

}  // namespace robocache::align_detail
