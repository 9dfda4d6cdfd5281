// The loops behind kernels.hpp. Included by one file for each instruction set; everything here is local to that file.
#pragma once

#include "batch/feature/cpu/kernels.hpp"

namespace robocache::loader_detail {
namespace {

constexpr int block = 32;  // moments that are computed side by side

/// A component of each moment of a block.
using Lanes = double[block];

// ---- rows to lanes and back -----------------------------------------------------------------------------------------

using Floats4 = float __attribute__((vector_size(16)));
using Doubles4 = double __attribute__((vector_size(32)));

/// Elements of a (0 to 3) and of b (4 to 7).
template <int... from>
ROBOCACHE_HD Floats4 shuffled(const Floats4& a, const Floats4& b) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, from...);
#else  // GCC 11
    using Ints4 = int __attribute__((vector_size(16)));
    return __builtin_shuffle(a, b, Ints4{from...});
#endif
}

/// Four rows of four floats to four columns, or back. Only shuffles: no bit changes.
ROBOCACHE_HD void transpose(Floats4& a, Floats4& b, Floats4& c, Floats4& d) {
    const Floats4 ab_low = shuffled<0, 4, 1, 5>(a, b);
    const Floats4 ab_high = shuffled<2, 6, 3, 7>(a, b);
    const Floats4 cd_low = shuffled<0, 4, 1, 5>(c, d);
    const Floats4 cd_high = shuffled<2, 6, 3, 7>(c, d);
    a = shuffled<0, 1, 4, 5>(ab_low, cd_low);
    b = shuffled<2, 3, 6, 7>(ab_low, cd_low);
    c = shuffled<0, 1, 4, 5>(ab_high, cd_high);
    d = shuffled<2, 3, 6, 7>(ab_high, cd_high);
}

ROBOCACHE_HD void widen_into(const Floats4& x, double* lane) {
    const Doubles4 wide = __builtin_convertvector(x, Doubles4);
    __builtin_memcpy(lane, &wide, sizeof(wide));
}

/// Rows [0, count) in fours, four channels each, of which the first `channels` go into lanes. The number of rows done.
ROBOCACHE_HD int load_fours(const float* rows, std::int64_t row_stride, int count, int channels, Lanes* lanes) {
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        const float* row = rows + i * row_stride;
        Floats4 x[4];
        for (int k = 0; k < 4; ++k) __builtin_memcpy(&x[k], row + k * row_stride, sizeof(Floats4));
        transpose(x[0], x[1], x[2], x[3]);
        widen_into(x[0], &lanes[0][i]);
        widen_into(x[1], &lanes[1][i]);
        widen_into(x[2], &lanes[2][i]);
        if (channels == 4) widen_into(x[3], &lanes[3][i]);
    }
    return i;
}

ROBOCACHE_HD Floats4 narrowed(const double* lane, bool is_scaled, double offset, double scale) {
    Doubles4 x;
    __builtin_memcpy(&x, lane, sizeof(x));
    if (is_scaled) x = (x - offset) * scale;
    return __builtin_convertvector(x, Floats4);
}

/// The reverse of load_fours for any number of channels: four at a time, then one by one. `offset` may be null.
ROBOCACHE_HD int store_fours(const Lanes* lanes, int count, int channels, const double* offset, const double* scale,
                             float* rows, std::int64_t width) {
    const bool is_scaled = offset != nullptr;
    const auto column = [&](int c, int i) {
        return narrowed(&lanes[c][i], is_scaled, is_scaled ? offset[c] : 0.0, is_scaled ? scale[c] : 1.0);
    };
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        float* row = rows + i * width;
        int c = 0;
        for (; c + 4 <= channels; c += 4) {
            Floats4 x[4] = {column(c, i), column(c + 1, i), column(c + 2, i), column(c + 3, i)};
            transpose(x[0], x[1], x[2], x[3]);
            for (int k = 0; k < 4; ++k) __builtin_memcpy(row + k * width + c, &x[k], sizeof(Floats4));
        }
        for (; c < channels; ++c) {
            const Floats4 x = column(c, i);
            for (int k = 0; k < 4; ++k) row[k * width + c] = x[k];
        }
    }
    return i;
}

template <class T>
ROBOCACHE_HD void load_as(const Operand& from, std::int64_t b, std::int64_t t, int begin, int count, int first,
                          int channels, Lanes* lanes) {
    const T* rows = static_cast<const T*>(from.data) + b * from.sample_stride + t * from.row_stride + first;
    for (int c = 0; c < channels; ++c) {
        for (int i = begin; i < count; ++i) lanes[c][i] = as_double(rows[i * from.row_stride + c]);
    }
}

/// Moments [t, t + count) of a sample, channels from `first` on, one after the other. `readable`: channels of each row
/// from `first` on that exist; four of them are read together.
inline void load(const Operand& from, std::int64_t b, std::int64_t t, int count, int first, int channels, Lanes* lanes,
                 int readable) {
    if (from.dtype == DType::f32) {
        const float* rows = static_cast<const float*>(from.data) + b * from.sample_stride + t * from.row_stride + first;
        const bool in_fours = readable >= 4 && (channels == 3 || channels == 4);
        const int done = in_fours ? load_fours(rows, from.row_stride, count, channels, lanes) : 0;
        return load_as<float>(from, b, t, done, count, first, channels, lanes);
    }
    with_type(from.dtype, [&]<class T>() { load_as<T>(from, b, t, 0, count, first, channels, lanes); });
}

inline void load(const Operand& from, std::int64_t b, std::int64_t t, int count, int first, int channels,
                 Lanes* lanes) {
    load(from, b, t, count, first, channels, lanes, channels);
}

template <class T>
ROBOCACHE_HD void store_as(const FeatureUnit& unit, std::int64_t b, std::int64_t t, int count, int first, int channels,
                           const Lanes* lanes) {
    T* rows = static_cast<T*>(unit.out) + (b * unit.num_moments + t) * unit.width + first;
    const std::int64_t source = (unit.source == nullptr ? 0 : unit.source[b] * unit.width) + first;
    int done = 0;
    if constexpr (sizeof(T) == sizeof(float)) {
        const bool is_scaled = unit.offset != nullptr;
        done = store_fours(lanes, count, channels, is_scaled ? unit.offset + source : nullptr,
                           is_scaled ? unit.scale + source : nullptr, rows, unit.width);
    }
    for (int c = 0; c < channels; ++c) {
        if (unit.offset == nullptr) {
            for (int i = done; i < count; ++i) rows[i * unit.width + c] = align_detail::narrow<T>(lanes[c][i]);
            continue;
        }
        const double offset = unit.offset[source + c];
        const double scale = unit.scale[source + c];
        for (int i = done; i < count; ++i) {
            rows[i * unit.width + c] = align_detail::narrow<T>((lanes[c][i] - offset) * scale);
        }
    }
}

inline void store(const FeatureUnit& unit, std::int64_t b, std::int64_t t, int count, int first, int channels,
                  const Lanes* lanes) {
    if (unit.dtype == DType::f32) return store_as<float>(unit, b, t, count, first, channels, lanes);
    with_floating_type(unit.dtype, [&]<class T>() { store_as<T>(unit, b, t, count, first, channels, lanes); });
}

// ---- rotations and poses --------------------------------------------------------------------------------------------

ROBOCACHE_HD Quaternion quaternion_at(const Lanes* turn, RotationForm stored, int i) {
    if (stored == RotationForm::quaternion_wxyz) return {turn[1][i], turn[2][i], turn[3][i], turn[0][i]};
    return {turn[0][i], turn[1][i], turn[2][i], turn[3][i]};
}

template <RotationForm form, bool relative>
ROBOCACHE_HD void write_turns(const Lanes* turn, RotationForm stored, const Quaternion& from, int count, Lanes* out) {
    const int x = stored == RotationForm::quaternion_wxyz ? 1 : 0;
    const double* xs = turn[x];
    const double* ys = turn[x + 1];
    const double* zs = turn[x + 2];
    const double* ws = turn[x == 1 ? 0 : 3];
    constexpr int size = form_size(form);
    for (int i = 0; i < count; ++i) {
        Quaternion q{xs[i], ys[i], zs[i], ws[i]};
        if constexpr (relative) q = seen_from(from, q);
        double made[9];
        write_form<form>(q, made);
        out[0][i] = made[0];
        out[1][i] = made[1];
        out[2][i] = made[2];
        if constexpr (size > 3) out[3][i] = made[3];
        if constexpr (size > 4) {
            out[4][i] = made[4];
            out[5][i] = made[5];
        }
        if constexpr (size > 6) {
            out[6][i] = made[6];
            out[7][i] = made[7];
            out[8][i] = made[8];
        }
    }
}

template <RotationForm form>
ROBOCACHE_HD void compose_turns(const FeatureUnit& unit, std::int64_t begin, std::int64_t end) {
    const bool has_position = unit.math == FeatureMath::pose;
    const bool relative = unit.from_turn.is_there();
    const int first = has_position ? 3 : 0;
    const bool is_one_row = has_position && unit.values.dtype == DType::f32 && unit.turn.dtype == DType::f32 &&
                            unit.turn.row_stride == unit.values.row_stride &&
                            unit.turn.sample_stride == unit.values.sample_stride &&
                            unit.turn.data == static_cast<const float*>(unit.values.data) + 3;
    Lanes in[4];
    Lanes out[12];
    for (std::int64_t b = begin; b < end; ++b) {
        Quaternion from{0, 0, 0, 1};
        Lanes origin[3];
        Matrix3 matrix{};
        if (relative) {
            load(unit.from_turn, b, 0, 1, 0, 4, in);
            from = quaternion_at(in, unit.stored, 0);
            if (squared_length(from) == 0) from = {0, 0, 0, 1};  // NaN stays
            matrix = matrix_of(from);
            if (has_position) load(unit.from_values, b, 0, 1, 0, 3, origin);
        }
        for (std::int64_t t = 0; t < unit.num_moments; t += block) {
            const int count = static_cast<int>(unit.num_moments - t < block ? unit.num_moments - t : block);
            if (has_position) load(unit.values, b, t, count, 0, 3, out, is_one_row ? 4 : 3);
            if (has_position && relative) {
                for (int i = 0; i < count; ++i) {
                    const Vector3 way{out[0][i] - origin[0][0], out[1][i] - origin[1][0], out[2][i] - origin[2][0]};
                    const Vector3 seen = turned_back(matrix, way);
                    out[0][i] = seen.x;
                    out[1][i] = seen.y;
                    out[2][i] = seen.z;
                }
            }
            load(unit.turn, b, t, count, 0, 4, in);
            if (relative) {
                write_turns<form, true>(in, unit.stored, from, count, out + first);
            } else {
                write_turns<form, false>(in, unit.stored, from, count, out + first);
            }
            store(unit, b, t, count, 0, first + form_size(form), out);
        }
    }
}

// ---- numbers --------------------------------------------------------------------------------------------------------

/// Bytes of a row: in words, the last of which may overlap the one before.
template <std::int64_t word>
ROBOCACHE_HD void copy_words(char* to, const char* from, std::int64_t bytes) {
    std::int64_t at = 0;
    for (; at + word <= bytes; at += word) __builtin_memcpy(to + at, from + at, word);
    if (at < bytes) __builtin_memcpy(to + bytes - word, from + bytes - word, word);
}

template <std::int64_t word>
ROBOCACHE_HD void copy_rows(const FeatureUnit& unit, std::int64_t begin, std::int64_t end) {
    const std::int64_t size = size_bytes(unit.dtype);
    for (std::int64_t b = begin; b < end; ++b) {
        const char* from = static_cast<const char*>(unit.values.data) + b * unit.values.sample_stride * size;
        char* to = static_cast<char*>(unit.out) + b * unit.num_moments * unit.width * size;
        for (std::int64_t t = 0; t < unit.num_moments; ++t) {
            copy_words<word>(to, from, unit.num_channels * size);
            from += unit.values.row_stride * size;
            to += unit.width * size;
        }
    }
}

inline void copy(const FeatureUnit& unit, std::int64_t begin, std::int64_t end) {
    const std::int64_t bytes = unit.num_channels * size_bytes(unit.dtype);
    if (bytes >= 16) return copy_rows<16>(unit, begin, end);
    if (bytes >= 4) return copy_rows<4>(unit, begin, end);
    copy_rows<1>(unit, begin, end);
}

/// float32 in, float32 out: the usual case, row by row.
ROBOCACHE_HD void write_floats(const FeatureUnit& unit, std::int64_t b) {
    const float* in = static_cast<const float*>(unit.values.data) + b * unit.values.sample_stride;
    const float* from = unit.from_values.is_there()
                            ? static_cast<const float*>(unit.from_values.data) + b * unit.from_values.sample_stride
                            : nullptr;
    float* out = static_cast<float*>(unit.out) + b * unit.num_moments * unit.width;
    const std::int64_t source = unit.source == nullptr ? 0 : unit.source[b] * unit.width;
    for (std::int64_t t = 0; t < unit.num_moments; ++t) {
        for (std::int32_t c = 0; c < unit.num_channels; ++c) {
            double x = static_cast<double>(in[c]);
            if (from != nullptr) x -= static_cast<double>(from[c]);
            if (unit.offset != nullptr) x = (x - unit.offset[source + c]) * unit.scale[source + c];
            out[c] = static_cast<float>(x);
        }
        in += unit.values.row_stride;
        out += unit.width;
    }
}

constexpr int channels_at_once = 8;

/// Any dtypes: a few channels at a time.
inline void write_numbers(const FeatureUnit& unit, std::int64_t b) {
    Lanes x[channels_at_once];
    Lanes from[channels_at_once];
    for (int c = 0; c < unit.num_channels; c += channels_at_once) {
        const int channels = unit.num_channels - c < channels_at_once ? unit.num_channels - c : channels_at_once;
        if (unit.from_values.is_there()) load(unit.from_values, b, 0, 1, c, channels, from);
        for (std::int64_t t = 0; t < unit.num_moments; t += block) {
            const int count = static_cast<int>(unit.num_moments - t < block ? unit.num_moments - t : block);
            load(unit.values, b, t, count, c, channels, x);
            for (int k = 0; k < channels && unit.from_values.is_there(); ++k) {
                for (int i = 0; i < count; ++i) {
                    x[k][i] = unit.math == FeatureMath::angles ? angle_difference(x[k][i], from[k][0], unit.period)
                                                               : x[k][i] - from[k][0];
                }
            }
            store(unit, b, t, count, c, channels, x);
        }
    }
}

inline void compose_numbers(const FeatureUnit& unit, std::int64_t begin, std::int64_t end) {
    const bool relative = unit.from_values.is_there();
    if (!relative && unit.offset == nullptr && unit.values.dtype == unit.dtype) return copy(unit, begin, end);
    const bool single = unit.math == FeatureMath::values && unit.values.dtype == DType::f32 &&
                        unit.dtype == DType::f32 && (!relative || unit.from_values.dtype == DType::f32);
    for (std::int64_t b = begin; b < end; ++b) {
        if (single) {
            write_floats(unit, b);
        } else {
            write_numbers(unit, b);
        }
    }
}

void compose_unit(const FeatureUnit& unit, std::int64_t begin, std::int64_t end) {
    if (unit.math == FeatureMath::values || unit.math == FeatureMath::angles) {
        return compose_numbers(unit, begin, end);
    }
    with_form(unit.form, [&]<RotationForm form>() { compose_turns<form>(unit, begin, end); });
}

// ---- moments --------------------------------------------------------------------------------------------------------

constexpr int channel_block = 64;

/// How many rows from r on are read side by side: `group`, or 1; 0 where row r is padding.
ROBOCACHE_HD int rows_at(const MomentChunk& chunk, std::int64_t r, int group) {
    const bool* padding = chunk.padding == nullptr ? nullptr : chunk.padding + r;
    bool is_whole = chunk.num_rows - r >= group;
    for (int i = 0; padding != nullptr && is_whole && i < group; ++i) is_whole = !padding[i];
    if (is_whole) return group;
    return padding != nullptr && padding[0] ? 0 : 1;
}

/// Channels [first, first + count) of a chunk: two passes, the second around the mean. Rows of few channels are read
/// several at a time, so that the inner loops are long. all_finite: no number is checked, and the result is false where
/// a sum shows that one is not finite; nothing is written then.
template <class T, bool all_finite>
ROBOCACHE_HD bool moments_of(const MomentChunk& chunk, std::int64_t first, int count) {
    const T* values = static_cast<const T*>(chunk.values) + first;
    const int group = count == chunk.num_channels ? channel_block / count : 1;
    double sum[channel_block];
    double low[channel_block];
    double high[channel_block];
    double finite[channel_block];
    for (int c = 0; c < channel_block; ++c) {
        sum[c] = finite[c] = 0;
        low[c] = __builtin_inf();
        high[c] = -__builtin_inf();
    }
    std::int64_t num_rows = 0;
    for (std::int64_t r = 0; r < chunk.num_rows;) {
        const int rows = rows_at(chunk, r, group);
        const T* row = values + r * chunk.num_channels;
        const int width = rows * count;
        for (int c = 0; c < width; ++c) {
            const double x = as_double(row[c]);
            const bool ok = all_finite || x - x == 0;
            sum[c] += ok ? x : 0.0;
            if constexpr (!all_finite) finite[c] += ok ? 1.0 : 0.0;
            low[c] = ok && x < low[c] ? x : low[c];
            high[c] = ok && x > high[c] ? x : high[c];
        }
        num_rows += rows;
        r += rows > 0 ? rows : 1;
    }
    for (int c = 0; c < group * count; ++c) {
        if (all_finite && !(sum[c] - sum[c] == 0)) return false;
    }
    for (int c = count; c < group * count; ++c) {
        const int i = c % count;
        sum[i] += sum[c];
        finite[i] += finite[c];
        low[i] = low[c] < low[i] ? low[c] : low[i];
        high[i] = high[c] > high[i] ? high[c] : high[i];
    }
    double mean[channel_block];
    double squares[channel_block];
    for (int c = 0; c < group * count; ++c) {
        const int i = c % count;
        if (all_finite) finite[i] = static_cast<double>(num_rows);
        mean[c] = finite[i] > 0 ? sum[i] / finite[i] : 0.0;
        squares[c] = 0;
    }
    for (std::int64_t r = 0; r < chunk.num_rows;) {
        const int rows = rows_at(chunk, r, group);
        const T* row = values + r * chunk.num_channels;
        const int width = rows * count;
        for (int c = 0; c < width; ++c) {
            const double x = as_double(row[c]);
            const double away = all_finite || x - x == 0 ? x - mean[c] : 0.0;
            squares[c] += away * away;
        }
        r += rows > 0 ? rows : 1;
    }
    for (int c = count; c < group * count; ++c) squares[c % count] += squares[c];
    double* to = chunk.moments + first;
    for (int c = 0; c < count; ++c) {
        to[c] = finite[c];
        to[c + chunk.num_channels] = mean[c];
        to[c + 2 * chunk.num_channels] = squares[c];
        to[c + 3 * chunk.num_channels] = low[c];
        to[c + 4 * chunk.num_channels] = high[c];
        to[c + 5 * chunk.num_channels] = static_cast<double>(num_rows) - finite[c];
    }
    return true;
}

template <class T>
ROBOCACHE_HD void block_moments(const MomentChunk& chunk, std::int64_t first, int count) {
    if (!moments_of<T, true>(chunk, first, count)) moments_of<T, false>(chunk, first, count);
}

void chunk_moments(const MomentChunk& chunk) {
    for (std::int64_t first = 0; first < chunk.num_channels; first += channel_block) {
        const std::int64_t left = chunk.num_channels - first;
        const int count = static_cast<int>(left < channel_block ? left : channel_block);
        if (chunk.dtype == DType::f32) {
            block_moments<float>(chunk, first, count);
        } else {
            with_floating_type(chunk.dtype, [&]<class T>() { block_moments<T>(chunk, first, count); });
        }
    }
}

constexpr FeatureKernels kernels{&compose_unit, &chunk_moments};

}  // namespace
}  // namespace robocache::loader_detail
