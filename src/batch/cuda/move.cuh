// Moving on the GPU: rows that were found become the batch, blended, scaled and converted.
#pragma once

#include <type_traits>

#include "batch/cuda/tile.cuh"
#include "ops/align/cuda/words.cuh"

namespace robocache::loader_detail {

/// Items of `count` elements of T, in the source and in the batch.
template <class T, int num>
struct SameItems {
    static constexpr int count = num;
    static constexpr int bytes = count * static_cast<int>(sizeof(T));
    static constexpr int in_flight = bytes == 16 ? 2 : 4;
    using Compute = typename align_detail::ComputeOf<T>::type;
    using Bits = typename align_detail::Word<bytes>::type;  // of an item in the source

    __device__ explicit SameItems(const ItemFormat&) {}
    __device__ static std::uint32_t in_bytes() { return bytes; }
    __device__ static std::uint32_t out_bytes() { return bytes; }
    __device__ static bool is_same_type() { return true; }
    __device__ static Bits load(const char* from) { return load_word<Bits>(from); }
    __device__ static void widen(const Bits& bits, Compute* to) { align_detail::widen_all<T, count>(&bits, to); }
    __device__ static void store(char* to, const Bits& bits) { *reinterpret_cast<Bits*>(to) = bits; }
    __device__ static void store(char* to, const Compute* x) {
        Bits bits;
        align_detail::narrow_all<T, count>(x, &bits);
        store(to, bits);
    }
};

/// Items of any types that are computed in Compute. Types are branches, not instances: they are the same for all
/// threads, and such a column waits for memory, not for instructions.
template <class Compute_, int num>
struct AnyTypes {
    static constexpr int count = num;
    static constexpr int in_flight = count == 1 ? 4 : 2;
    using Compute = Compute_;
    using Bits = uint4;

    ItemFormat format;

    __device__ explicit AnyTypes(const ItemFormat& given) : format(given) {}
    __device__ std::uint32_t in_bytes() const { return format.in_bytes; }
    __device__ std::uint32_t out_bytes() const { return format.out_bytes; }
    __device__ bool is_same_type() const { return format.in == format.out; }
    __device__ __forceinline__ Bits load(const char* from) const {
        Bits bits{};
        with_bytes(format.in_bytes, [&]<int bytes>() {
            const auto word = load_word<typename align_detail::Word<bytes>::type>(from);
            memcpy(&bits, &word, bytes);
        });
        return bits;
    }
    __device__ __forceinline__ void widen(const Bits& bits, Compute* to) const {
        if constexpr (sizeof(Compute) == 8) {
            return align_detail::widen_all<double, count>(&bits, to);
        } else {
            switch (format.in) {
                case DType::u8: return align_detail::widen_all<std::uint8_t, count>(&bits, to);
                case DType::u16:
                    if constexpr (count <= 8) align_detail::widen_all<std::uint16_t, count>(&bits, to);
                    return;
                case DType::f16: return align_detail::widen_all<Half, count>(&bits, to);
                case DType::bf16: return align_detail::widen_all<BFloat16, count>(&bits, to);
                default:
                    if constexpr (count <= 4) align_detail::widen_all<float, count>(&bits, to);
                    return;
            }
        }
    }
    __device__ __forceinline__ void store(char* to, const Bits& bits) const {
        with_bytes(format.in_bytes, [&]<int bytes>() {
            typename align_detail::Word<bytes>::type word;
            memcpy(&word, &bits, bytes);
            *reinterpret_cast<decltype(word)*>(to) = word;
        });
    }
    __device__ __forceinline__ void store(char* to, const Compute* x) const {
        switch (format.out) {
            case DType::f16: return store_as<Half>(to, x);
            case DType::bf16: return store_as<BFloat16>(to, x);
            case DType::f64: return store_as<double>(to, x);
            default: return store_as<float>(to, x);
        }
    }

private:
    template <class Out>
    __device__ __forceinline__ void store_as(char* to, const Compute* x) const {
        constexpr int bytes = count * static_cast<int>(sizeof(Out));
        constexpr int word_bytes = bytes < 16 ? bytes : 16;
        if constexpr (count <= 4 || sizeof(Out) == 2) {  // 8 elements of more bytes are no item
            using W = typename align_detail::Word<word_bytes>::type;
            W words[bytes / word_bytes];
            align_detail::narrow_all<Out, count>(x, words);
#pragma unroll
            for (int i = 0; i < bytes / word_bytes; ++i) reinterpret_cast<W*>(to)[i] = words[i];
        }
    }
};

/// Writes one item of target p. `kind` other than mixed: what p is, known.
template <Placed kind, class Items>
__device__ __forceinline__ void write_item(const Items& items, char* to, const typename Items::Bits& a,
                                           const typename Items::Bits& b, const PlacedTarget& p, bool scaled,
                                           const typename Items::Compute* offset,
                                           const typename Items::Compute* scale) {
    using Compute = typename Items::Compute;
    const bool is_row = kind == Placed::rows || (kind == Placed::mixed && p.a != nullptr && p.b == nullptr);
    const bool is_blend = kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr);
    if (is_row && !scaled && items.is_same_type()) return items.store(to, a);  // bit for bit
    Compute z[Items::count];
    items.widen(a, z);
    if (!is_row && !is_blend) {
#pragma unroll
        for (int i = 0; i < Items::count; ++i) z[i] = p.template weight<Compute>();
    }
    if (is_blend) {
        Compute y[Items::count];
        items.widen(b, y);
        const auto w = p.template weight<Compute>();
#pragma unroll
        for (int i = 0; i < Items::count; ++i) z[i] = align_detail::blend_linear(z[i], y[i], w);
    }
    if (scaled) {
#pragma unroll
        for (int i = 0; i < Items::count; ++i) z[i] = (z[i] - offset[i]) * scale[i];
    }
    items.store(to, z);
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

template <class Items>
__device__ __forceinline__ void make_mixed_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    const Items items(column.format);
    const bool scaled = column.format.scaled;
    ScalesAtHand<typename Items::Compute, Items::count> scales;
    Walk walk = tile.walk;
    while (walk.target < tile.count) {
        typename Items::Bits a[Items::in_flight];
        typename Items::Bits b[Items::in_flight];
        Walk next = walk;
#pragma unroll
        for (int u = 0; u < Items::in_flight; ++u) {
            a[u] = {};
            b[u] = {};
            if (next.target < tile.count) {
                const PlacedTarget& p = tile.targets[next.target];
                const std::int64_t at = static_cast<std::int64_t>(next.item) * items.in_bytes();
                if (p.a != nullptr) a[u] = items.load(p.a + at);
                if (p.b != nullptr) b[u] = items.load(p.b + at);
            }
            next.advance();
        }
        gate.pass();
#pragma unroll
        for (int u = 0; u < Items::in_flight; ++u) {
            if (walk.target < tile.count) {
                const PlacedTarget& p = tile.targets[walk.target];
                const std::uint32_t item = walk.item;
                if (scaled) scales.get(column, p.part(), item);
                char* to = tile.row(p) + static_cast<std::int64_t>(item) * items.out_bytes();
                write_item<Placed::mixed>(items, to, a[u], b[u], p, scaled, scales.offset, scales.scale);
            }
            walk.advance();
        }
    }
}

/// The same where a thread keeps its item: addresses and scales are worked out once.
template <class Items, Placed kind>
__device__ __forceinline__ void make_kept_items(const DeviceColumn& column, const Tile& tile, Gate& gate) {
    const Items items(column.format);
    constexpr std::uint32_t unroll = Items::in_flight;
    const bool scaled = column.format.scaled;
    const bool many_parts = column.parts != nullptr;
    const std::uint32_t step = tile.walk.step_target;
    const std::uint32_t in_at = tile.walk.item * items.in_bytes();
    char* out = tile.out + static_cast<std::uint64_t>(tile.walk.item) * items.out_bytes();
    ScalesAtHand<typename Items::Compute, Items::count> scales;
    for (std::uint32_t first = tile.walk.target; first < tile.count; first += unroll * step) {
        typename Items::Bits a[unroll];
        typename Items::Bits b[unroll];
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            // Behind the last target that one again: a row that is read for nothing costs less than asking everywhere.
            const PlacedTarget& p = tile.targets[min(first + u * step, tile.count - 1)];
            if (kind == Placed::mixed) a[u] = b[u] = {};
            if (kind != Placed::mixed || p.a != nullptr) a[u] = items.load(p.a + in_at);
            if (kind == Placed::blends || (kind == Placed::mixed && p.b != nullptr)) b[u] = items.load(p.b + in_at);
        }
        if (scaled && !many_parts) scales.get(column, 0, tile.walk.item);
        gate.pass();
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            if (first + u * step < tile.count) {
                const PlacedTarget& p = tile.targets[first + u * step];
                if (scaled && many_parts) scales.get(column, p.part(), tile.walk.item);
                write_item<kind>(items, out + static_cast<std::uint64_t>(p.row) * tile.out_row_bytes, a[u], b[u], p,
                                 scaled, scales.offset, scales.scale);
            }
        }
    }
}

/// Columns of any types.
struct AnyItems {
    static constexpr int blocks_per_sm = blocks_of_any_type;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        const ItemFormat& format = column.format;
        const bool is_copy = format.in == format.out && tile.kind == Placed::rows && !format.scaled;
        if (format.raw_bytes != 0 || is_copy) {
            return with_bytes(format.in_bytes, [&]<int bytes>() { copy_rows<bytes>(tile, gate); });
        }
        if (format.in == DType::f64) {
            if (format.elements > 1) return make_mixed_items<AnyTypes<double, 2>>(column, tile, gate);
            return make_mixed_items<AnyTypes<double, 1>>(column, tile, gate);
        }
        if (format.elements > 4) return make_mixed_items<AnyTypes<float, 8>>(column, tile, gate);
        if (format.elements > 1) return make_mixed_items<AnyTypes<float, 4>>(column, tile, gate);
        make_mixed_items<AnyTypes<float, 1>>(column, tile, gate);
    }
};

/// Columns of one type.
template <class T>
struct ItemsOf {
    static constexpr int blocks_per_sm = blocks_of_one_type;

    __device__ __forceinline__ static void make(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        if (column.format.elements > 1) return make_of<16 / static_cast<int>(sizeof(T))>(column, tile, gate);
        make_of<1>(column, tile, gate);
    }

private:
    template <int count>
    __device__ __forceinline__ static void make_of(const DeviceColumn& column, const Tile& tile, Gate& gate) {
        using Items = SameItems<T, count>;
        if (tile.kind == Placed::rows && !column.format.scaled) return copy_rows<Items::bytes>(tile, gate);
        if (tile.walk.step_item != 0) return make_mixed_items<Items>(column, tile, gate);
        if (tile.kind == Placed::rows) return make_kept_items<Items, Placed::rows>(column, tile, gate);
        if (tile.kind == Placed::blends) return make_kept_items<Items, Placed::blends>(column, tile, gate);
        make_kept_items<Items, Placed::mixed>(column, tile, gate);
    }
};

}  // namespace robocache::loader_detail
