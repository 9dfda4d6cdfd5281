// Which thread moves which rows on the GPU, and the copy of rows that need no change.
#pragma once

#include "batch/cuda/find.cuh"
#include "core/cuda/overlap.cuh"
#include "ops/align/cuda/words.cuh"

namespace robocache::loader_detail {

/// Threads that do a task together: a warp, or all of a block.
struct Team {
    std::uint32_t rank;
    std::uint32_t size;

    __device__ bool is_warp() const { return size == align_detail::warp_size; }
    __device__ void sync() const { is_warp() ? __syncwarp() : __syncthreads(); }
    __device__ bool all(bool x) const {
        return is_warp() ? __all_sync(0xffffffffU, x) != 0 : __syncthreads_and(x) != 0;
    }
};

/// A word of a row. Not through __ldg, which the compiler moves behind the next wait.
template <class W>
__device__ __forceinline__ W load_word(const void* from) {
    W word;
    if constexpr (sizeof(W) == 16) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                     : "l"(from));
    } else if constexpr (sizeof(W) == 8) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "l"(from));
    } else if constexpr (sizeof(W) == 4) {
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(from));
    } else {
        word = *static_cast<const W*>(from);
    }
    return word;
}

/// Calls body<bytes>() for the width of an item.
template <class Body>
__device__ __forceinline__ void with_bytes(int bytes, const Body& body) {
    switch (bytes) {
        case 16: body.template operator()<16>(); break;
        case 8: body.template operator()<8>(); break;
        case 4: body.template operator()<4>(); break;
        case 2: body.template operator()<2>(); break;
        default: body.template operator()<1>(); break;
    }
}

/// Nothing is written before this was passed; rows are read before.
class Gate {
public:
    __device__ explicit Gate(bool closed) : closed_(closed) {}
    __device__ void pass() {
        if (closed_) wait_for_earlier_work();
        closed_ = false;
    }

private:
    bool closed_;
};

/// What all targets of a tile are.
enum class Placed : std::uint8_t { rows, blends, mixed };

/// The items of targets that fall to a thread, one after the other: each team_size-th of them.
struct Walk {
    std::uint32_t target;
    std::uint32_t item;
    std::uint32_t step_target;
    std::uint32_t step_item;
    std::uint32_t end_item;
    std::uint32_t num_items;

    __device__ __forceinline__ Walk(const DeviceColumn& column, std::uint32_t first_item, std::uint32_t num_items,
                                    const Team& team)
        : end_item(first_item + num_items), num_items(num_items) {
        const bool whole = num_items == column.num_items;
        target = whole ? column.by_items.divide(team.rank) : team.rank / num_items;
        item = first_item + team.rank - target * num_items;
        step_target = whole ? column.by_items.divide(team.size) : team.size / num_items;
        step_item = team.size - step_target * num_items;
        if (column.format.scaled && step_target > 0) {  // a thread keeps its item, and so the scales of it
            step_item = 0;
            if (target >= step_target) target = ~0U >> 1;  // one thread too many
        }
    }
    __device__ __forceinline__ void advance() {
        target += step_target;
        item += step_item;
        if (item >= end_item) {
            item -= num_items;
            ++target;
        }
    }
};

/// Targets that were placed, and a thread's way through them.
struct Tile {
    const PlacedTarget* targets;
    std::uint32_t count;
    Placed kind;
    char* out;  // of row 0
    std::uint32_t out_row_bytes;
    Walk walk;

    __device__ __forceinline__ char* row(const PlacedTarget& p) const {
        return out + static_cast<std::uint64_t>(p.row) * out_row_bytes;
    }
};

/// Windows that are one piece of memory each; `runs` is null for samples that are none.
template <int bytes>
__device__ __forceinline__ void copy_runs(const char* const* runs, std::uint32_t num_samples, const Divisor& by_items,
                                          char* out, const Team& team, Gate& gate) {
    using W = typename align_detail::Word<bytes>::type;
    constexpr std::uint32_t unroll = 8;
    const std::uint32_t items = by_items.divisor;
    const std::uint32_t count = num_samples * items;
    for (std::uint32_t begin = team.rank; begin < count; begin += unroll * team.size) {
        W words[unroll];
        bool there[unroll];
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            const std::uint32_t i = begin + u * team.size;
            const std::uint32_t s = by_items.divide(i);
            const char* run = i < count ? runs[s] : nullptr;
            there[u] = run != nullptr;
            if (there[u]) words[u] = load_word<W>(reinterpret_cast<const W*>(run) + (i - s * items));
        }
        gate.pass();
#pragma unroll
        for (std::uint32_t u = 0; u < unroll; ++u) {
            if (there[u]) reinterpret_cast<W*>(out)[begin + u * team.size] = words[u];
        }
    }
}

/// Rows as they are; zero where there is none.
template <int bytes>
__device__ __forceinline__ void copy_rows(const Tile& tile, Gate& gate) {
    using W = typename align_detail::Word<bytes>::type;
    constexpr int unroll = 4;
    Walk walk = tile.walk;
    while (walk.target < tile.count) {
        W words[unroll];
        char* to[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            words[u] = W{};
            to[u] = nullptr;
            if (walk.target < tile.count) {
                const PlacedTarget& p = tile.targets[walk.target];
                const std::int64_t at = static_cast<std::int64_t>(walk.item) * bytes;
                if (p.a != nullptr) words[u] = load_word<W>(p.a + at);
                to[u] = tile.row(p) + at;
            }
            walk.advance();
        }
        gate.pass();
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (to[u] != nullptr) *reinterpret_cast<W*>(to[u]) = words[u];
        }
    }
}

}  // namespace robocache::loader_detail
