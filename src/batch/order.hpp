// The math of the loader that decides a result: the order of samples, the anchor of a number. For CPU and CUDA alike.
#pragma once

#include <cstdint>

#include "core/numeric.hpp"
#include "ops/align/contract/values.hpp"
#include "robocache/loader.hpp"

namespace robocache::loader_detail {

// ---- a shuffled order without a permutation in memory ---------------------------------------------------------------

inline constexpr std::uint64_t mix_first = 0xbf58476d1ce4e5b9U;
inline constexpr std::uint64_t mix_second = 0x94d049bb133111ebU;

/// splitmix64's last steps: every bit of the result depends on every bit of x.
ROBOCACHE_HD std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * mix_first;
    x = (x ^ (x >> 27)) * mix_second;
    return x ^ (x >> 31);
}

inline constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;

/// The key of one order: of a seed, a pass through the data, and what is ordered.
ROBOCACHE_HD std::uint64_t key_of(std::uint64_t seed, std::uint64_t pass, std::uint64_t purpose) {
    return mix(mix(mix(seed + golden) + pass * golden + 1) + purpose * golden + 2);
}

/// A bijection on [0, count), count <= 2^bits, bits = bit_width(count - 1). A Feistel network of eight half rounds on
/// `bits` bits, applied until the result is below count ("cycle walking"): 2^bits < 2 count, so twice at most on
/// average.
///   x = high (bits - bits / 2) | low (bits / 2);   high ^= f0(low);   low ^= f1(high);   ...
ROBOCACHE_HD std::uint64_t permute(std::uint64_t x, std::uint64_t count, int bits, std::uint64_t key) {
    const int low_bits = bits / 2;
    const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
    const std::uint64_t high_mask = (std::uint64_t{1} << (bits - low_bits)) - 1;
    do {
        std::uint64_t low = x & low_mask;
        std::uint64_t high = x >> low_bits;
        std::uint64_t round_key = key;
        for (int round = 0; round < 4; ++round) {
            high ^= mix(low ^ (round_key += golden)) & high_mask;
            low ^= mix(high ^ (round_key += golden)) & low_mask;
        }
        x = high << low_bits | low;
    } while (x >= count);
    return x;
}

// ---- draws by weight ------------------------------------------------------------------------------------------------

/// One slot of an alias table (Walker): of its part of [0, 1), `threshold` of 2^32 are its own number, the rest is that
/// of `alias`. A slot that is all its own has itself as alias.
struct AliasSlot {
    std::uint32_t threshold;
    std::uint32_t alias;
};

/// The slot whose low 32 bits are the alias and whose high ones are the threshold.
ROBOCACHE_HD AliasSlot slot_of(std::int64_t packed) {
    const auto bits = static_cast<std::uint64_t>(packed);
    return {static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint32_t>(bits)};
}

/// A number of [0, count), count < 2^32, as often as its weight says: a pure function of key and position. Of the
/// product of 64 hashed bits and the count, the upper half is the slot, and what follows is compared with its
/// threshold.
ROBOCACHE_HD std::uint64_t draw_weighted(const std::int64_t* slots, std::uint64_t count, std::uint64_t key,
                                         std::uint64_t position) {
    const std::uint64_t x = mix(key + (position + 1) * golden);
    const std::uint64_t low = (x & 0xffffffffU) * count;
    const std::uint64_t high = (x >> 32) * count + (low >> 32);
    const std::uint64_t number = high >> 32;
    const AliasSlot slot = slot_of(slots[number]);
    if (static_cast<std::uint32_t>(high) < slot.threshold) return number;
    return slot.alias < count ? slot.alias : count - 1;  // slots on a GPU are not checked
}

// ---- from a position to an anchor -----------------------------------------------------------------------------------

/// Where to look for the episode of anchors [i << shift, (i + 1) << shift): that of the first one, and where it ends.
struct Bucket {
    std::int64_t episode;
    std::int64_t end;
};

struct TablePlan {
    const std::int64_t* prefix;
    const std::int64_t* times;
    std::int64_t num_episodes;
    std::int64_t num_anchors;
    double period_ns;
    std::int64_t first_episode;  // episodes of the tables before
    std::int32_t block_end;      // of this table's quota in a block: the sum of the quotas up to it
    std::int32_t bits;           // bit_width(num_anchors - 1)
    const Bucket* buckets;       // null: the episode is searched for in `prefix`
    std::int64_t bucket_shift;
    const std::int64_t* slots;  // of an alias table, one for each anchor; null: each anchor once in a pass
};

struct Anchor {
    std::int64_t episode;
    std::int64_t time;
};

struct Place {
    std::int64_t table;
    std::uint64_t number;  // of the anchor in its table
};

/// A mixture: `position` counts on through the epochs.
ROBOCACHE_HD Place place_in_mixture(const TablePlan* tables, std::uint64_t block_size, int block_bits,
                                    std::uint64_t seed, bool shuffle, std::uint64_t position) {
    const std::uint64_t block = position / block_size;
    std::uint64_t slot = position % block_size;
    if (shuffle) slot = permute(slot, block_size, block_bits, key_of(seed, block, 0));
    std::int64_t i = 0;
    while (slot >= static_cast<std::uint64_t>(tables[i].block_end)) ++i;  // slot < block_size, the last block_end
    const auto begin = static_cast<std::uint64_t>(i == 0 ? 0 : tables[i - 1].block_end);
    const std::uint64_t quota = static_cast<std::uint64_t>(tables[i].block_end) - begin;
    const std::uint64_t drawn = block * quota + (slot - begin);  // from this table before this one
    const auto count = static_cast<std::uint64_t>(tables[i].num_anchors);
    if (tables[i].slots != nullptr) {
        const std::uint64_t key = key_of(seed, 0, static_cast<std::uint64_t>(i) + 1);
        return {i, draw_weighted(tables[i].slots, count, key, drawn)};
    }
    std::uint64_t number = drawn % count;
    if (shuffle) {
        number = permute(number, count, tables[i].bits, key_of(seed, drawn / count, static_cast<std::uint64_t>(i) + 1));
    }
    return {i, number};
}

/// The last episode of [low, high) that begins at or before the anchor: episodes without anchors are never it. Stays
/// inside them whatever `prefix` holds.
ROBOCACHE_HD std::int64_t search_episode(const TablePlan& table, std::int64_t number, std::int64_t low,
                                         std::int64_t high) {
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        if (table.prefix[middle] <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/// Buckets of a table: one more than it takes, so that each can look at the next.
ROBOCACHE_HD std::int64_t num_buckets(const TablePlan& table) {
    return ((table.num_anchors - 1) >> table.bucket_shift) + 2;
}

ROBOCACHE_HD Bucket make_bucket(const TablePlan& table, std::int64_t i) {
    const std::int64_t first = i << table.bucket_shift;
    const std::int64_t number = first < table.num_anchors ? first : table.num_anchors - 1;
    const std::int64_t episode = search_episode(table, number, 0, table.num_episodes);
    return {episode, table.prefix[episode + 1]};
}

ROBOCACHE_HD std::int64_t episode_of_anchor(const TablePlan& table, std::int64_t number) {
    if (table.buckets == nullptr) return search_episode(table, number, 0, table.num_episodes);
    const Bucket* at = table.buckets + (number >> table.bucket_shift);
    const Bucket bucket = at[0];
    const std::int64_t next = at[1].episode;
    return number < bucket.end ? bucket.episode : search_episode(table, number, bucket.episode + 1, next + 1);
}

/// Of an anchor of an episode of the table.
ROBOCACHE_HD std::int64_t anchor_time(const TablePlan& table, std::int64_t episode, std::int64_t number) {
    if (!(table.period_ns > 0)) return table.times[number];
    const auto later = static_cast<std::int64_t>(
        __builtin_rint(static_cast<double>(number - table.prefix[episode]) * table.period_ns));
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(table.times[episode]) +
                                     static_cast<std::uint64_t>(later));
}

ROBOCACHE_HD Anchor anchor_at(const TablePlan& table, std::uint64_t number) {
    const auto row = static_cast<std::int64_t>(number);
    const std::int64_t episode = episode_of_anchor(table, row);
    return {table.first_episode + episode, anchor_time(table, episode, row)};
}

/// The order that positions are in. `tables` is told separately: some kernels have it elsewhere.
struct OrderPlan {
    std::int64_t num_tables;  // 1: positions begin anew in every epoch; else a mixture, one of a single table too
    std::uint64_t block_size;
    std::uint64_t seed;
    std::uint64_t key;  // of the only table, in this epoch
    std::int32_t block_bits;
    bool shuffle;
    const std::int64_t* numbers;  // of the samples at positions, through all tables; null: in the order of the epoch
};

/// A step that is told in memory, and what it means for the order and the first position of a batch.
struct StepPlan {
    const std::int64_t* step;  // null: none is told
    std::int64_t num_steps;
    std::int64_t stride;
    std::int64_t epoch_size;  // of a mixture; 0 where positions begin anew in every epoch

    ROBOCACHE_HD void apply(OrderPlan& order, std::uint64_t& first_position) const {
        if (step == nullptr) return;
        const std::int64_t counted = *step < 0 ? 0 : *step;
        const auto epoch = static_cast<std::uint64_t>(counted / num_steps);
        order.key = key_of(order.seed, epoch, 1);
        first_position +=
            static_cast<std::uint64_t>(counted % num_steps * stride) + epoch * static_cast<std::uint64_t>(epoch_size);
    }
};

/// The place of a sample by its number through all tables. One that no table has is the last sample: numbers on a GPU
/// are not checked.
ROBOCACHE_HD Place place_of_number(const TablePlan* tables, std::int64_t num_tables, std::uint64_t number) {
    std::int64_t i = 0;
    while (i + 1 < num_tables && number >= static_cast<std::uint64_t>(tables[i].num_anchors)) {
        number -= static_cast<std::uint64_t>(tables[i++].num_anchors);
    }
    const auto last = static_cast<std::uint64_t>(tables[i].num_anchors - 1);
    return {i, number < last ? number : last};
}

/// The number of the anchor at a position of the epoch, of the only table.
ROBOCACHE_HD std::uint64_t number_at_position(const TablePlan& table, const OrderPlan& order, std::uint64_t position) {
    if (order.numbers != nullptr) {
        return place_of_number(&table, 1, static_cast<std::uint64_t>(order.numbers[position])).number;
    }
    const auto count = static_cast<std::uint64_t>(table.num_anchors);
    if (table.slots != nullptr) return draw_weighted(table.slots, count, order.key, position);
    if (!order.shuffle) return position;
    return permute(position, count, table.bits, order.key);
}

/// The place of a position: of the epoch for one table, of all epochs for a mixture.
ROBOCACHE_HD Place place_of_position(const TablePlan* tables, const OrderPlan& order, std::uint64_t position) {
    if (order.num_tables == 1) return {0, number_at_position(tables[0], order, position)};
    if (order.numbers != nullptr) {
        return place_of_number(tables, order.num_tables, static_cast<std::uint64_t>(order.numbers[position]));
    }
    return place_in_mixture(tables, order.block_size, order.block_bits, order.seed, order.shuffle, position);
}

ROBOCACHE_HD Anchor anchor_of_position(const TablePlan* tables, const OrderPlan& order, std::uint64_t position) {
    const Place place = place_of_position(tables, order, position);
    return anchor_at(tables[place.table], place.number);
}

/// What is told of an episode: EpisodeNames, side by side.
struct EpisodeName {
    std::int64_t source;
    std::int64_t episode;
};

/// Where the index of a batch is written.
struct IndexPlan {
    const EpisodeName* names;  // of the episodes of all tables
    std::int64_t* source;      // null: no index is asked for
    std::int64_t* episode;
    std::int64_t* anchor;

    ROBOCACHE_HD void write(std::int64_t i, const Anchor& found) const {
        const EpisodeName name = names[found.episode];
        source[i] = name.source;
        episode[i] = name.episode;
        anchor[i] = found.time;
    }
};

struct SamplePlan {
    TablePlan tables[max_anchor_tables];
    OrderPlan order;
    std::uint64_t first_position;  // mixtures: of all epochs
    std::int64_t* episode;
    std::int64_t* anchor;
    std::int64_t count;
};

ROBOCACHE_HD void sample_one(const SamplePlan& plan, std::int64_t i) {
    const Anchor found =
        anchor_of_position(plan.tables, plan.order, plan.first_position + static_cast<std::uint64_t>(i));
    plan.episode[i] = found.episode;
    plan.anchor[i] = found.time;
}

// ---- normalize ------------------------------------------------------------------------------------------------------

struct NormalizePlan {
    const void* values;
    void* out;
    const double* offset;
    const double* scale;
    std::int64_t num_rows;
    std::int64_t num_channels;
};

/// float for what float32 holds exactly.
template <class T>
struct ScaledIn {
    using type = double;
};
#define ROBOCACHE_SCALED_IN_FLOAT(T) \
    template <>                      \
    struct ScaledIn<T> {             \
        using type = float;          \
    };
ROBOCACHE_SCALED_IN_FLOAT(float)
ROBOCACHE_SCALED_IN_FLOAT(Half)
ROBOCACHE_SCALED_IN_FLOAT(BFloat16)
ROBOCACHE_SCALED_IN_FLOAT(bool)
ROBOCACHE_SCALED_IN_FLOAT(std::uint8_t)
ROBOCACHE_SCALED_IN_FLOAT(std::int8_t)
ROBOCACHE_SCALED_IN_FLOAT(std::uint16_t)
ROBOCACHE_SCALED_IN_FLOAT(std::int16_t)
#undef ROBOCACHE_SCALED_IN_FLOAT

template <class Out, class In, class Compute>
ROBOCACHE_HD Out scaled(In x, Compute offset, Compute scale) {
    if constexpr (align_detail::is_float<In>) {
        return align_detail::narrow<Out>((align_detail::widen(x) - offset) * scale);
    } else {
        return align_detail::narrow<Out>((static_cast<Compute>(x) - offset) * scale);
    }
}

/// Calls body.template operator()<T>() with the type of `dtype`.
template <class Body>
ROBOCACHE_HD void with_type(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::boolean: return body.template operator()<bool>();
        case DType::u8: return body.template operator()<std::uint8_t>();
        case DType::u16: return body.template operator()<std::uint16_t>();
        case DType::u32: return body.template operator()<std::uint32_t>();
        case DType::u64: return body.template operator()<std::uint64_t>();
        case DType::i8: return body.template operator()<std::int8_t>();
        case DType::i16: return body.template operator()<std::int16_t>();
        case DType::i32: return body.template operator()<std::int32_t>();
        case DType::i64: return body.template operator()<std::int64_t>();
        case DType::f16: return body.template operator()<Half>();
        case DType::bf16: return body.template operator()<BFloat16>();
        case DType::f32: return body.template operator()<float>();
        case DType::f64: return body.template operator()<double>();
    }
}

/// The same for floating types alone.
template <class Body>
ROBOCACHE_HD void with_floating_type(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::f16: return body.template operator()<Half>();
        case DType::bf16: return body.template operator()<BFloat16>();
        case DType::f64: return body.template operator()<double>();
        default: return body.template operator()<float>();
    }
}

/// One per backend; a missing one is a link error.
void sample_anchors_cpu(const SamplePlan& plan);
void sample_anchors_cuda(const SamplePlan& plan, int device, CudaQueue stream);
void normalize_cpu(const NormalizePlan& plan, DType values, DType out);
void normalize_cuda(const NormalizePlan& plan, DType values, DType out, int device, CudaQueue stream);

}  // namespace robocache::loader_detail
