// Moving on the GPU: rows that were found become the batch, blended, scaled and converted.
#pragma once

#include <type_traits>

#include "batch/cuda/tile.cuh"
#include "ops/align/cuda/words.cuh"

namespace robocache::loader_detail {

/// Items of some elements: In in the source, Out in the batch.
template <class In, class Out, int num>
struct Items {
    static constexpr int count = num;
    static constexpr int in_bytes = count * static_cast<int>(sizeof(In));
    static constexpr int out_bytes = count * static_cast<int>(sizeof(Out));
    static constexpr int in_flight = in_bytes == 16 ? 2 : 4;
    static constexpr bool is_same_type = std::is_same_v<In, Out>;
    using Compute = typename ScaledIn<In>::type;  // that of the blend, float for integers
    using Bits = typename align_detail::Word<in_bytes>::type;

    __device__ static void widen(const Bits& bits, Compute* to) { align_detail::widen_all<In, count>(&bits, to); }
    __device__ static void store(char* to, const Bits& bits) { *reinterpret_cast<Bits*>(to) = bits; }
    __device__ static void store(char* to, const Compute* x) {
        typename align_detail::Word<out_bytes>::type word;
        align_detail::narrow_all<Out, count>(x, &word);
        *reinterpret_cast<decltype(word)*>(to) = word;
    }
};

/// Writes one item of target p. `kind` other than mixed: what p is, known.
template <Placed kind, class I>
__device__ __forceinline__ void write_item(char* to, const typename I::Bits& a, const typename I::Bits& b,
                                           const PlacedTarget& p, bool scaled, const typename I::Compute* offset,
                                           const typename I::Compute* scale) {
    using Compute = typename I::Compute;
    const bool is_row = kind == Placed::rows || (kind == Placed::mixed && p.a != nullptr && p.b == nullptr);
    const bool is_blend = kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr);
    if constexpr (I::is_same_type) {
        if (is_row && !scaled) return I::store(to, a);  // bit for bit
    }
    Compute z[I::count];
    I::widen(a, z);
    if (!is_row && !is_blend) {
#pragma unroll
        for (int i = 0; i < I::count; ++i) z[i] = p.template weight<Compute>();
    }
    if (is_blend) {  // never of integers
        Compute y[I::count];
        I::widen(b, y);
        const auto w = p.template weight<Compute>();
#pragma unroll
        for (int i = 0; i < I::count; ++i) z[i] = align_detail::blend_linear(z[i], y[i], w);
    }
    if (scaled) {
#pragma unroll
        for (int i = 0; i < I::count; ++i) z[i] = (z[i] - offset[i]) * scale[i];
    }
    I::store(to, z);
}

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

template <class I>
__device__ __forceinline__ void make_mixed_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    const bool scaled = column.format.scaled;
    ScalesAtHand<typename I::Compute, I::count> scales;
    Walk walk = tile.walk;
    while (walk.target < tile.count) {
        typename I::Bits a[I::in_flight];
        typename I::Bits b[I::in_flight];
        Walk next = walk;
#pragma unroll
        for (int u = 0; u < I::in_flight; ++u) {
            a[u] = {};
            b[u] = {};
            if (next.target < tile.count) {
                const PlacedTarget& p = tile.targets[next.target];
                const std::int64_t at = static_cast<std::int64_t>(next.item) * I::in_bytes;
                if (p.a != nullptr) a[u] = load_word<typename I::Bits>(p.a + at);
                if (p.b != nullptr) b[u] = load_word<typename I::Bits>(p.b + at);
            }
            next.advance();
        }
        gate.pass();
#pragma unroll
        for (int u = 0; u < I::in_flight; ++u) {
            if (walk.target < tile.count) {
                const PlacedTarget& p = tile.targets[walk.target];
                const std::uint32_t item = walk.item;
                if (scaled) scales.get(column, p.part(), item);
                char* to = tile.row(p) + static_cast<std::int64_t>(item) * I::out_bytes;
                write_item<Placed::mixed, I>(to, a[u], b[u], p, scaled, scales.offset, scales.scale);
            }
            walk.advance();
        }
    }
}

/// The same where a thread keeps its item: addresses and scales are worked out once.
template <class I, Placed kind>
__device__ __forceinline__ void make_kept_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    constexpr std::uint32_t unroll = I::in_flight;
    const bool scaled = column.format.scaled;
    const bool many_parts = column.parts != nullptr;
    const std::uint32_t step = tile.walk.step_target;
    const std::uint32_t in_at = tile.walk.item * I::in_bytes;
    char* out = tile.out + static_cast<std::uint64_t>(tile.walk.item) * I::out_bytes;
    ScalesAtHand<typename I::Compute, I::count> scales;
    for (std::uint32_t first = tile.walk.target; first < tile.count; first += unroll * step) {
        typename I::Bits a[unroll];
        typename I::Bits b[unroll];
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            // Behind the last target that one again: a row that is read for nothing costs less than asking everywhere.
            const PlacedTarget& p = tile.targets[min(first + u * step, tile.count - 1)];
            if (kind == Placed::mixed) a[u] = b[u] = {};
            if (kind != Placed::mixed || p.a != nullptr) a[u] = load_word<typename I::Bits>(p.a + in_at);
            if (kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr))
                b[u] = load_word<typename I::Bits>(p.b + in_at);
        }
        if (scaled && !many_parts) scales.get(column, 0, tile.walk.item);
        gate.pass();
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            if (first + u * step < tile.count) {
                const PlacedTarget& p = tile.targets[first + u * step];
                if (scaled && many_parts) scales.get(column, p.part(), tile.walk.item);
                write_item<kind, I>(out + static_cast<std::uint64_t>(p.row) * tile.out_row_bytes, a[u], b[u], p, scaled,
                                    scales.offset, scales.scale);
            }
        }
    }
}

/// Items in the widest accesses that addresses allow on both sides, or of one element.
template <class In, class Out, int count>
__device__ __forceinline__ void make_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    using I = Items<In, Out, count>;
    if constexpr (I::is_same_type) {
        if (tile.kind == Placed::rows && !column.format.scaled) return copy_rows<I::in_bytes>(tile, gate);
        if (tile.walk.step_item == 0) {
            if (tile.kind == Placed::rows) return make_kept_items<I, Placed::rows>(column, tile, gate);
            if (tile.kind == Placed::blends) return make_kept_items<I, Placed::blends>(column, tile, gate);
            return make_kept_items<I, Placed::mixed>(column, tile, gate);
        }
    }
    make_mixed_items<I>(column, tile, gate);
}

template <class In, class Out>
__device__ __forceinline__ void make_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    constexpr int wide = 16 / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
    if (column.format.wide) return make_items<In, Out, wide>(column, tile, gate);
    make_items<In, Out, 1>(column, tile, gate);
}

template <class In>
__device__ __forceinline__ void make_items_of(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    with_floating_type(column.format.out, [&]<class Out>() { make_items<In, Out>(column, tile, gate); });
}

/// Columns that have nothing in common.
struct AnyItems {
    static constexpr int blocks_per_sm = blocks_of_any_type;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        if (column.format.raw_bytes != 0) {
            return with_bytes(column.format.raw_bytes, [&]<int bytes>() { copy_rows<bytes>(tile, gate); });
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
    static constexpr int blocks_per_sm = blocks_of_one_type;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        make_items<T, T>(column, tile, gate);
    }
};

}  // namespace robocache::loader_detail
