// Features of a batch: columns joined, made relative to a moment, rotations in another form, then scaled. The contract:
// docs/features.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "robocache/tensor.hpp"

namespace robocache {

/// The computation for some channels of a row.
enum class FeatureMath : std::uint8_t {
    values,    ///< x; relative: x - anchor
    angles,    ///< x; relative: x - anchor, plus whole periods, so that it is in [-period / 2, period / 2]
    rotation,  ///< a quaternion, in another form; relative: inverse(anchor) * q
    pose,      ///< a position and a quaternion; relative: inverse(T_anchor) * T
};

/// The form of a rotation. Quaternions are normalized, with w >= 0; a quaternion of zeros is the identity.
enum class RotationForm : std::uint8_t {
    quaternion_xyzw,
    quaternion_wxyz,
    rows_6d,     ///< the first two rows of the matrix, one after the other
    columns_6d,  ///< its first two columns
    matrix,      ///< 9 numbers, row by row
    rotvec,      ///< axis times angle, in radians, at most pi
    euler,       ///< roll, pitch, yaw: about the fixed axes x, y, z, one after the other
};

/// The number of channels of a form.
[[nodiscard]] std::int64_t num_channels(RotationForm form) noexcept;

/// Channels of a tensor, from `channel` on.
struct FeatureChannels {
    TensorView rows;  ///< (B, T, C), contiguous
    std::int64_t channel = 0;
    std::int64_t moment = -1;  ///< the moment that is read; -1: that of the output
};

/// Channels of a column of a BatchReader (loader.hpp), from `channel` on.
struct ColumnChannels {
    std::size_t column = 0;
    std::int64_t channel = 0;
    std::int64_t moment = -1;  ///< the one that is read; -1: that of the output
};

/// A part of a feature's row. Channels: FeatureChannels or ColumnChannels.
template <class Channels>
struct FeaturePartOf {
    FeatureMath math = FeatureMath::values;
    std::int64_t num_channels = 0;                        ///< of `values`, for FeatureMath::values and angles
    double period = 0;                                    ///< of angles
    RotationForm stored = RotationForm::quaternion_xyzw;  ///< of `turn`: one of the quaternions
    RotationForm form = RotationForm::quaternion_xyzw;    ///< of the output
    std::optional<Channels> values{};                     ///< numbers, angles, or the position of a pose: 3
    std::optional<Channels> turn{};                       ///< a quaternion: 4
    std::optional<Channels> from_values{};                ///< at the anchor; none: not relative
    std::optional<Channels> from_turn{};
};
using FeaturePart = FeaturePartOf<FeatureChannels>;

/// A feature of B samples: its parts side by side, computed in f64, scaled by `(x - offset) * scale`, rounded once.
struct FeatureView {
    std::span<const FeaturePart> parts{};
    std::span<const FeatureChannels> paddings{};  ///< bool (B, T); the output is padded where one of them is
    TensorView values;                            ///< (B, T, D), contiguous
    TensorView padding;                           ///< bool (B, T)
    std::optional<TensorView> offset{};           ///< (S, D) f64, on the device of the values
    std::optional<TensorView> scale{};
    std::optional<TensorView> source{};  ///< (B,) i64: which row of offset and scale; none: the first
};

/// Computes all features: one launch on a GPU. Queue-ordered there; allocates nothing, waits for nothing. The same bits
/// on every device.
void compose(std::span<const FeatureView> features, CudaQueue queue = {});

/// Adds rows to the statistical moments of each channel. values (N, C) floating and padding (N,) bool (rows that are
/// left out), on the host, contiguous. moments (6, C) f64: the number of finite values, their mean, the sum of squared
/// distances from it, minimum, maximum, and the number of values that are not finite; initially 0, 0, 0, inf, -inf, 0.
/// The same bits for any number of threads.
void accumulate_moments(const TensorView& values, const std::optional<TensorView>& padding, const TensorView& moments);

}  // namespace robocache
