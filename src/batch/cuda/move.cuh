// Moving on the GPU: rows that were found become the batch, blended, scaled and converted.
#pragma once

#include <type_traits>

#include "batch/cuda/tile.cuh"
#include "ops/align/cuda/words.cuh"

namespace robocache::loader_detail {

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

    /// All elements of a word. Two bfloat16 in 32 bits are a shift and a mask.
    __device__ __forceinline__ static void widen_word(const InWord& word, Compute* to) {
        if constexpr (std::is_same_v<In, BFloat16> && count % 2 == 0) {
            std::uint32_t pairs[count / 2];
            memcpy(pairs, &word, in_bytes);
#pragma unroll
            for (int i = 0; i < count / 2; ++i) {
                to[2 * i] = __uint_as_float(pairs[i] << 16);
                to[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000U);
            }
        } else {
            In x[count];
            memcpy(x, &word, in_bytes);
#pragma unroll
            for (int i = 0; i < count; ++i) to[i] = widened(x[i]);
        }
    }

    __device__ __forceinline__ static OutWord narrowed(const Compute* x) {
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

    /// `kind` other than mixed: what p is, known.
    template <Placed kind>
    __device__ __forceinline__ static OutWord made(InWord a, InWord b, const PlacedTarget& p, bool scaled,
                                                   const Compute* offset, const Compute* scale) {
        const bool is_row = kind == Placed::rows || (kind == Placed::mixed && p.a != nullptr && p.b == nullptr);
        const bool is_blend = kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr);
        if constexpr (std::is_same_v<In, Out>) {
            if (is_row && !scaled) return a;  // bit for bit
        }
        Compute z[count];
        widen_word(a, z);
        if (!is_row && !is_blend) {
#pragma unroll
            for (int i = 0; i < count; ++i) z[i] = p.template weight_in<Compute>();
        }
        if constexpr (align_detail::is_float<In>) {
            if (is_blend) {
                Compute y[count];
                widen_word(b, y);
                const auto w = p.template weight_in<Compute>();
#pragma unroll
                for (int i = 0; i < count; ++i) z[i] = align_detail::blend_linear(z[i], y[i], w);
            }
        }
        if (scaled) {
#pragma unroll
            for (int i = 0; i < count; ++i) z[i] = (z[i] - offset[i]) * scale[i];
        }
        return narrowed(z);
    }
};

/// Offsets and scales of one item, as a thread has them at hand.
template <class Compute, int count>
struct ScalesAtHand {
    Compute offset[count]{};  // without a first value they would hold registers through all of the kernel
    Compute scale[count]{};
    std::uint32_t part = ~0U;
    std::uint32_t item = ~0U;

    __device__ __forceinline__ void get(const DeviceColumn& column, std::uint32_t new_part, std::uint32_t new_item) {
        if (part == new_part && item == new_item) return;
        part = new_part;
        item = new_item;
        const void* scales = column.rows.scales;
        if (column.parts != nullptr) scales = column.parts[part * column.parts_step].scales;
        const std::uint32_t element = item * count;
        const std::uint32_t channel = element - column.by_channels.divide(element) * column.by_channels.divisor;
        constexpr int pair_bytes = 2 * static_cast<int>(sizeof(Compute));
        constexpr int word_bytes = count * pair_bytes < 16 ? count * pair_bytes : 16;
        using W = typename align_detail::Word<word_bytes>::type;
        constexpr int num_words = count * pair_bytes / word_bytes;
        const auto* from = reinterpret_cast<const W*>(static_cast<const Compute*>(scales) + 2 * channel);
        W words[num_words];
#pragma unroll
        for (int i = 0; i < num_words; ++i) words[i] = __ldg(from + i);
        Compute pairs[2 * count];
        memcpy(pairs, words, sizeof(pairs));
#pragma unroll
        for (int i = 0; i < count; ++i) {
            offset[i] = pairs[2 * i];
            scale[i] = pairs[2 * i + 1];
        }
    }
};

template <class In, class Out, int count>
__device__ __forceinline__ void make_mixed_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    using I = Items<In, Out, count>;
    using InWord = typename I::InWord;
    constexpr int unroll = sizeof(InWord) == 16 ? 2 : 4;
    const bool scaled = column.format.scaled;
    ScalesAtHand<typename I::Compute, count> scales;
    Walk walk = tile.walk;
    while (walk.target < tile.count) {
        InWord a[unroll];
        InWord b[unroll];
        Walk next = walk;
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            a[u] = InWord{};
            b[u] = InWord{};
            if (next.target < tile.count) {
                const PlacedTarget& p = tile.targets[next.target];
                const std::int64_t at = static_cast<std::int64_t>(next.item) * I::in_bytes;
                if (p.a != nullptr) a[u] = load_word<InWord>(p.a + at);
                if (p.b != nullptr) b[u] = load_word<InWord>(p.b + at);
            }
            next.advance();
        }
        gate.pass();
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (walk.target < tile.count) {
                const PlacedTarget& p = tile.targets[walk.target];
                const std::uint32_t item = walk.item;
                if (scaled) scales.get(column, p.part(), item);
                char* to = tile.row(p) + static_cast<std::int64_t>(item) * I::out_bytes;
                *reinterpret_cast<typename I::OutWord*>(to) =
                    I::template made<Placed::mixed>(a[u], b[u], p, scaled, scales.offset, scales.scale);
            }
            walk.advance();
        }
    }
}

/// The same where a thread keeps its item: addresses and scales are worked out once.
template <class In, class Out, int count, Placed kind>
__device__ __forceinline__ void make_kept_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    using I = Items<In, Out, count>;
    using InWord = typename I::InWord;
    constexpr std::uint32_t unroll = sizeof(InWord) == 16 ? 2 : 4;
    const bool scaled = column.format.scaled;
    const bool many_parts = column.parts != nullptr;
    const std::uint32_t step = tile.walk.step_target;
    const std::uint32_t in_at = tile.walk.item * I::in_bytes;
    char* out = tile.out + static_cast<std::uint64_t>(tile.walk.item) * I::out_bytes;
    ScalesAtHand<typename I::Compute, count> scales;
    for (std::uint32_t first = tile.walk.target; first < tile.count; first += unroll * step) {
        InWord a[unroll];
        InWord b[unroll];
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            // Behind the last target that one again: a row that is read for nothing costs less than asking everywhere.
            const PlacedTarget& p = tile.targets[min(first + u * step, tile.count - 1)];
            if (kind == Placed::mixed) a[u] = b[u] = InWord{};
            if (kind != Placed::mixed || p.a != nullptr) a[u] = load_word<InWord>(p.a + in_at);
            if (kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr)) {
                b[u] = load_word<InWord>(p.b + in_at);
            }
        }
        if (scaled && !many_parts) scales.get(column, 0, tile.walk.item);
        gate.pass();
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            if (first + u * step < tile.count) {
                const PlacedTarget& p = tile.targets[first + u * step];
                if (scaled && many_parts) scales.get(column, p.part(), tile.walk.item);
                *reinterpret_cast<typename I::OutWord*>(out + static_cast<std::uint64_t>(p.row) * tile.out_row_bytes) =
                    I::template made<kind>(a[u], b[u], p, scaled, scales.offset, scales.scale);
            }
        }
    }
}

template <class In, class Out, int count>
__device__ __forceinline__ void make_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    if constexpr (std::is_same_v<In, Out>) {
        constexpr int bytes = count * static_cast<int>(sizeof(In));
        if (tile.kind == Placed::rows && !column.format.scaled) return copy_rows<bytes>(tile, gate);
        if (tile.walk.step_item == 0) {
            if (tile.kind == Placed::rows) return make_kept_items<In, Out, count, Placed::rows>(column, tile, gate);
            if (tile.kind == Placed::blends) return make_kept_items<In, Out, count, Placed::blends>(column, tile, gate);
            return make_kept_items<In, Out, count, Placed::mixed>(column, tile, gate);
        }
    }
    make_mixed_items<In, Out, count>(column, tile, gate);
}

template <class In, class Out>
__device__ __forceinline__ void make_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    constexpr int wide = 16 / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
    if (column.format.wide) return make_items<In, Out, wide>(column, tile, gate);
    make_items<In, Out, 1>(column, tile, gate);
}

template <class In>
__device__ __forceinline__ void make_items_of(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    switch (column.format.out) {
        case DType::f32: return make_items<In, float>(column, tile, gate);
        case DType::f16: return make_items<In, Half>(column, tile, gate);
        case DType::bf16: return make_items<In, BFloat16>(column, tile, gate);
        default: return make_items<In, double>(column, tile, gate);
    }
}

/// Columns that have nothing in common.
struct AnyItems {
    static constexpr int blocks_per_multiprocessor = 4;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        switch (column.format.raw_bytes) {
            case 16: return copy_rows<16>(tile, gate);
            case 8: return copy_rows<8>(tile, gate);
            case 4: return copy_rows<4>(tile, gate);
            case 2: return copy_rows<2>(tile, gate);
            case 1: return copy_rows<1>(tile, gate);
            default: break;
        }
        switch (column.format.in) {
            case DType::f32: return make_items_of<float>(column, tile, gate);
            case DType::f16: return make_items_of<Half>(column, tile, gate);
            case DType::bf16: return make_items_of<BFloat16>(column, tile, gate);
            case DType::f64: return make_items_of<double>(column, tile, gate);
            case DType::u8: return make_items_of<std::uint8_t>(column, tile, gate);
            case DType::u16: return make_items_of<std::uint16_t>(column, tile, gate);
            default: break;
        }
    }
};

/// Columns of one type.
template <class T>
struct ItemsOf {
    static constexpr int blocks_per_multiprocessor = 6;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        make_items<T, T>(column, tile, gate);
    }
};

}  // namespace robocache::loader_detail
