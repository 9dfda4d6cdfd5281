// Narrow rows of short episodes, the usual robot's: a warp brings the times and the rows of a whole episode into shared
// memory in one wait, in wide accesses that rows of 14 or 28 bytes do not allow by themselves, and blends there. Every
// lane has two targets; those of 2-byte elements are side by side, so that pairs of elements are whole words.
#pragma once

#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/short_place.cuh"

namespace robocache::align_detail {

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

/// `fixed`: the width of rows where the compiler knows it, else 0.
template <class Time, class T, int fixed>
__global__ __launch_bounds__(short_warps* warp_size,
                             sizeof(T) == 2 ? 10 : 8) void align_short(const __grid_constant__ ShortTable<Time> table) {
    const int warp = threadIdx.x / warp_size;
    const int lane = threadIdx.x % warp_size;
    const std::uint32_t number = blockIdx.x * short_warps + warp;
    wait_for_earlier_work();
    if (number >= table.rows.num_tiles) return;
    const DeviceQuery& q = table.rows.query;
    const RowsStream<Time>& s = table.rows.streams[0];
    const RowsTile tile = rows_tile<Shape::narrow, Asks::plain>(table.rows, number);
    const Time* targets = static_cast<const Time*>(q.times) + tile.row * q.time_row_stride + tile.first_target;
    constexpr bool side_by_side = sizeof(T) == 2;  // else far from each other, for the sake of shared memory's banks
    const int first = side_by_side ? 2 * lane : lane;
    const int second = side_by_side ? first + 1 : first + warp_size;
    const int last = tile.count - 1;
    const Time raw0 = __ldg(targets + (first < last ? first : last));  // not waited for here
    const Time raw1 = __ldg(targets + (second < last ? second : last));
    const RowsEpisode<Time> episode = rows_episode<Asks::plain>(s, q, tile.row);
    const auto count = static_cast<std::int32_t>(episode.count);
    if (count == 0 || count > table.most_rows) return write_long<T>(table, number);
    char* const scratch = short_scratch() + warp * table.warp_bytes;
    char* const results = scratch + 16;  // a barrier is before them
    char* const staged_rows = results + table.results_bytes;
    const Piece time_piece(reinterpret_cast<const char*>(episode.times),
                           count * static_cast<std::int32_t>(sizeof(Time)), reinterpret_cast<const char*>(s.times),
                           table.times_end);
    const Piece row_piece(episode.values, count * s.row_bytes, s.values, table.values_end);
    fetch_both<Time, T>(time_piece, row_piece, lane, reinterpret_cast<std::uint64_t*>(scratch), results, staged_rows);
    const unsigned times = shared_address(results + time_piece.head);
    const char* rows = staged_rows + row_piece.head;
    const Time t0 = add_time(raw0, s.latency);
    const Time t1 = add_time(raw1, s.latency);
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
    if (s.valid.data != nullptr) {
        bool* valid = static_cast<bool*>(s.valid.data) + tile.row * s.valid.row_stride +
                      tile.first_target * s.valid.target_stride;
        if (first <= last) valid[first * s.valid.target_stride] = target0.valid;
        if (second <= last) valid[second * s.valid.target_stride] = target1.valid;
    }
}

}  // namespace robocache::align_detail
