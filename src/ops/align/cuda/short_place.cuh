// The first half of short.cuh: times and rows of an episode brought into shared memory, the search there, and
// episodes that are too long for it.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/align/cuda/rows.cuh"

namespace robocache::align_detail {

constexpr int short_targets = 2 * warp_size;  // of a warp
constexpr int short_warps = 4;                // of a block

template <class Time>
struct ShortTable {
    RowsTable<Time, 1> rows;
    const char* times_end;  // of all episodes
    const char* values_end;
    std::int32_t most_rows;      // of an episode that there is room for
    std::int32_t results_bytes;  // shared memory of a warp: times, later results; then rows
    std::int32_t warp_bytes;
};

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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
/// Sends a piece on its way into shared memory, at the same offset from 16 bytes: words, or elements.
__device__ __forceinline__ void fetch_words(const Piece& piece, int lane, char* to) {
    for (std::int32_t at = lane * 16; at < piece.whole; at += warp_size * 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)),
                     "l"(piece.from - piece.head + at)
                     : "memory");
    }
}
#else
__device__ __forceinline__ void fetch_words(const Piece& piece, unsigned barrier, char* to) {
    if (piece.whole != 0) copy_in(to, piece.from - piece.head, piece.whole, barrier);
}
#endif

template <class T>
__device__ __forceinline__ void fetch_elements(const Piece& piece, int lane, char* to) {
    if (piece.whole != 0) return;
    constexpr auto element = static_cast<std::int32_t>(sizeof(T));
    for (std::int32_t at = lane * element; at < piece.size; at += warp_size * element) {
        *reinterpret_cast<T*>(to + piece.head + at) = *reinterpret_cast<const T*>(piece.from + at);
    }
}

/// Two pieces into the shared memory of a warp, each at the same offset from 16 bytes as it has in global memory.
template <class A, class B>
__device__ __forceinline__ void fetch_both(const Piece& a, const Piece& b, int lane, std::uint64_t* barrier, char* to_a,
                                           char* to_b) {
    fetch_elements<A>(a, lane, to_a);
    fetch_elements<B>(b, lane, to_b);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    fetch_words(a, lane, to_a);
    fetch_words(b, lane, to_b);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#else
    const unsigned address = shared_address(barrier);
    if (lane == 0) {
        init_barrier(address, 1);
        publish_barriers();
        arrive_and_expect(address, a.whole + b.whole);
        fetch_words(a, address, to_a);
        fetch_words(b, address, to_b);
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

/// A target that is outside the rows or beside a time that repeats; `left` as neighbors_of wants it.
template <class Time>
__device__ __noinline__ ShortTarget target_beside(const RowsStream<Time>& s, std::int32_t times_at, std::int32_t count,
                                                  Time t, std::int32_t left) {
    const EpisodeTimes<Time> times{reinterpret_cast<const Time*>(short_scratch() + times_at), 1, count};
    return short_target(sample_at(times, t, neighbors_of(times, t, left), Method::linear, s.rules));
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
__device__ __forceinline__ ShortTarget place_short(const RowsStream<Time>& s, unsigned times, std::int32_t count,
                                                   Time t, unsigned at) {
    constexpr auto time_bytes = static_cast<unsigned>(sizeof(Time));
    const unsigned last = times + (count - 1) * time_bytes;
    const Time t_left = load_shared<Time>(at);
    const Time t_right = load_shared<Time>(min(at + time_bytes, last));
    const Time t_beyond = load_shared<Time>(min(at + 2 * time_bytes, last));
    const auto low = static_cast<std::int32_t>((at - times) / time_bytes);
    // Not "and" of the language: it would branch.
    const bool inside = (t_left <= t) & (t < t_right) & ((at + time_bytes >= last) | (t_beyond != t_right));
    const bool blends = inside & (t_left != t);
    // sample_inside without the way of the weight through float64 and back; of no use where nothing is blended.
    const Gap<Time> part = blends ? distance(t_left, t) : Gap<Time>{1};
    const Gap<Time> span = blends ? distance(t_left, t_right) : Gap<Time>{1};
    ShortTarget target{low, low + (blends ? 1 : 0), static_cast<float>(weight_of<float>(part, span)),
                       blends ? Kind::blend : Kind::row, !blends || s.rules.allows(span)};
    if (!inside) {
        const bool before = !(t_left <= t);
        const bool alone = before ? count == 1 || t_right != t_left : at == last;
        if (alone && (before ? s.rules.before : s.rules.after) == Outside::hold) {  // as in sample_outside
            const bool exact = !before && t_left == t;
            const Gap<Time> away = before ? distance(t, t_left) : distance(t_left, t);
            target.valid = exact || (s.rules.outside_valid && s.rules.allows(away));
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

/// A tile of an episode that has no rows, or more than there is room for. Not inlined, and told nothing that it can
/// find out itself: its registers would be taken from every warp.
template <class T, class Time>
__device__ __noinline__ void write_long(const ShortTable<Time>& table, std::uint32_t number) {
    const RowsStream<Time>& s = table.rows.streams[0];
    const DeviceQuery& q = table.rows.query;
    const RowsTile tile = rows_tile<Shape::narrow, Asks::plain>(table.rows, number);
    const RowsEpisode<Time> episode = rows_episode<Asks::plain>(s, q, tile.row);
    for (std::int32_t k = static_cast<std::int32_t>(threadIdx.x) % warp_size; k < tile.count; k += warp_size) {
        const std::int64_t j = tile.first_target + k;
        const Time t = target_of<Asks::plain>(q, raw_target<Asks::plain, Time>(q, tile.row, j), s.latency);
        ShortTarget target{0, 0, 0.0F, Kind::zero, false};
        if (episode.count > 0) target = short_target(find_far<float>(s, episode.times, episode.count, t).sample);
        write_alone<T>(target, episode.values, s.row_bytes,
                       s.out + tile.row * s.out_row_stride + j * s.out_target_stride);
        if (s.valid.data != nullptr) {
            static_cast<bool*>(s.valid.data)[tile.row * s.valid.row_stride + j * s.valid.target_stride] = target.valid;
        }
    }
}

}  // namespace robocache::align_detail
