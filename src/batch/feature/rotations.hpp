// Rotations and rigid transforms, once for the CPU and for CUDA: operations that every machine rounds alike.
#pragma once

#include <cmath>

#include "core/numeric.hpp"
#include "ops/align/contract/blends.hpp"
#include "robocache/feature.hpp"

namespace robocache::loader_detail {

/// Of any length but 0; 0 is no rotation.
struct Quaternion {
    double x, y, z, w;
};

struct Vector3 {
    double x, y, z;
};

/// Row by row.
struct Matrix3 {
    double m[9];
};

/// conj(a) b: the rotation b, seen from a.
ROBOCACHE_HD Quaternion seen_from(const Quaternion& a, const Quaternion& b) {
    return {a.w * b.x - a.x * b.w - a.y * b.z + a.z * b.y, a.w * b.y + a.x * b.z - a.y * b.w - a.z * b.x,
            a.w * b.z - a.x * b.y + a.y * b.x - a.z * b.w, a.w * b.w + a.x * b.x + a.y * b.y + a.z * b.z};
}

ROBOCACHE_HD double squared_length(const Quaternion& q) {
    return q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
}

/// Needs no square root. Zeros are no rotation. Without a branch: loops over moments are vectorized.
ROBOCACHE_HD Matrix3 matrix_of(const Quaternion& q) {
    const double length = squared_length(q);
    const double s = 2.0 / (length + static_cast<double>(length == 0));
    const double sx = s * q.x;
    const double sy = s * q.y;
    const double sz = s * q.z;
    const double xx = sx * q.x;
    const double yy = sy * q.y;
    const double zz = sz * q.z;
    const double xy = sx * q.y;
    const double xz = sx * q.z;
    const double yz = sy * q.z;
    const double wx = sx * q.w;
    const double wy = sy * q.w;
    const double wz = sz * q.w;
    return {{1.0 - (yy + zz), xy - wz, xz + wy, xy + wz, 1.0 - (xx + zz), yz - wx, xz - wy, yz + wx, 1.0 - (xx + yy)}};
}

/// R^T v.
ROBOCACHE_HD Vector3 turned_back(const Matrix3& r, const Vector3& v) {
    return {r.m[0] * v.x + r.m[3] * v.y + r.m[6] * v.z, r.m[1] * v.x + r.m[4] * v.y + r.m[7] * v.z,
            r.m[2] * v.x + r.m[5] * v.y + r.m[8] * v.z};
}

/// Of length 1, with w >= 0. A NaN is one in all components.
ROBOCACHE_HD Quaternion normalized(const Quaternion& q) {
    const double length = squared_length(q);
    const double s = (q.w < 0 ? -1.0 : 1.0) / sqrt(length == 0 ? 1.0 : length);
    const double w = q.w * s;
    return {q.x * s, q.y * s, q.z * s, length == 0 ? 1.0 : w};
}

/// atan2: -pi ... pi; 0 for the origin, NaN for a NaN.
ROBOCACHE_HD double direction(double y, double x) {
    const double ay = y < 0 ? -y : y;
    const double ax = x < 0 ? -x : x;
    const double sum = ax + ay;
    if (!(sum > 0)) return sum + 0.0;  // -0 becomes 0
    double angle = align_detail::angle_of(ax, ay);
    if (x < 0) angle = 3.141592653589793 - angle;
    return y < 0 ? -angle : angle;
}

ROBOCACHE_HD Vector3 rotvec_of(const Quaternion& given) {
    const Quaternion q = normalized(given);
    const double sine = sqrt(q.x * q.x + q.y * q.y + q.z * q.z);
    const double s = sine > 0 ? 2.0 * align_detail::angle_of(q.w, sine) / sine : 2.0;
    return {q.x * s, q.y * s, q.z * s};
}

/// Where roll and yaw turn about the same axis, yaw is 0.
ROBOCACHE_HD Vector3 euler_of(const Quaternion& q) {
    const Matrix3 r = matrix_of(q);
    const double level = sqrt(r.m[0] * r.m[0] + r.m[3] * r.m[3]);
    const double pitch = direction(-r.m[6], level);
    if (level < 1e-7) return {direction(-r.m[5], r.m[4]), pitch, 0.0};
    return {direction(r.m[7], r.m[8]), pitch, direction(r.m[3], r.m[0])};
}

/// Numbers of a form.
ROBOCACHE_HD constexpr int form_size(RotationForm form) {
    switch (form) {
        case RotationForm::quaternion_xyzw:
        case RotationForm::quaternion_wxyz: return 4;
        case RotationForm::rows_6d:
        case RotationForm::columns_6d: return 6;
        case RotationForm::matrix: return 9;
        default: return 3;
    }
}

/// Writes form_size(form) numbers.
template <RotationForm form>
ROBOCACHE_HD void write_form(const Quaternion& q, double* out) {
    if constexpr (form == RotationForm::quaternion_xyzw || form == RotationForm::quaternion_wxyz) {
        const Quaternion n = normalized(q);
        constexpr int first = form == RotationForm::quaternion_wxyz ? 1 : 0;
        out[first] = n.x;
        out[first + 1] = n.y;
        out[first + 2] = n.z;
        out[first == 1 ? 0 : 3] = n.w;
    } else if constexpr (form == RotationForm::rotvec || form == RotationForm::euler) {
        const Vector3 v = form == RotationForm::rotvec ? rotvec_of(q) : euler_of(q);
        out[0] = v.x;
        out[1] = v.y;
        out[2] = v.z;
    } else {
        const Matrix3 r = matrix_of(q);
        constexpr bool by_column = form == RotationForm::columns_6d;  // no loops: those around this are vectorized
        out[0] = r.m[0];
        out[1] = r.m[by_column ? 3 : 1];
        out[2] = r.m[by_column ? 6 : 2];
        out[3] = r.m[by_column ? 1 : 3];
        out[4] = r.m[4];
        out[5] = r.m[by_column ? 7 : 5];
        if constexpr (form == RotationForm::matrix) {
            out[6] = r.m[6];
            out[7] = r.m[7];
            out[8] = r.m[8];
        }
    }
}

/// The difference of two angles, the short way round.
ROBOCACHE_HD double angle_difference(double x, double from, double period) {
    const double difference = x - from;
    return fused_multiply_add(-align_detail::round_even(difference / period), period, difference);
}

/// Calls body.template operator()<form>() for a form that is known at run time.
template <class Body>
ROBOCACHE_HD void with_form(RotationForm form, Body&& body) {
    switch (form) {
        case RotationForm::quaternion_xyzw: return body.template operator()<RotationForm::quaternion_xyzw>();
        case RotationForm::quaternion_wxyz: return body.template operator()<RotationForm::quaternion_wxyz>();
        case RotationForm::rows_6d: return body.template operator()<RotationForm::rows_6d>();
        case RotationForm::columns_6d: return body.template operator()<RotationForm::columns_6d>();
        case RotationForm::matrix: return body.template operator()<RotationForm::matrix>();
        case RotationForm::rotvec: return body.template operator()<RotationForm::rotvec>();
        case RotationForm::euler: return body.template operator()<RotationForm::euler>();
    }
}

}  // namespace robocache::loader_detail
