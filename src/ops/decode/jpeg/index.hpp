// What the implementation may know of a PictureIndex: its sections.
#pragma once

#include "ops/decode/contract/record.hpp"
#include "robocache/decode.hpp"

namespace robocache::decode_detail {

/// The sections of an index, on the host.
[[nodiscard]] IndexView view_of(const PictureIndex& index);
/// The same sections of its copy at `base`.
[[nodiscard]] IndexView view_of(const PictureIndex& index, const void* base);

}  // namespace robocache::decode_detail
