// Moving on the GPU: rows that were found become the batch, blended, scaled and converted.
#pragma once

#include <type_traits>

#include "loader/batch_find.cuh"
#include "ops/align/cuda_words.cuh"

namespace robocache::loader_detail {

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

}  // namespace robocache::loader_detail
