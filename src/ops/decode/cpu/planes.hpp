// The samples of a JPEG picture under a crop, decoded on the CPU.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/record.hpp"
#include "ops/decode/jpeg/markers.hpp"
#include "ops/decode/jpeg/reader.hpp"
#include "ops/decode/jpeg/tables.hpp"

namespace robocache::decode_detail {

/// The samples of one component that belong to a region of MCUs. sample(x, y) counts from the picture's first sample.
struct Plane {
    std::vector<std::uint8_t> samples;
    int x0 = 0, y0 = 0;  // of the first sample
    int stride = 0;

    [[nodiscard]] const std::uint8_t* row(int y) const {
        return samples.data() + static_cast<std::size_t>(y - y0) * static_cast<std::size_t>(stride);
    }
    [[nodiscard]] int operator()(int x, int y) const { return row(y)[x - x0]; }
};

struct Planes {
    Geometry geometry{};
    std::array<Component, max_components> components{};
    std::array<Plane, max_components> planes;
    std::array<PlainBytes, 2> plain;  // memory of the decoder, for each of two segments
    int num_decoded = 0;              // 1 where only the first component was wanted
};

/// Decodes what the pixels of `box` depend on; without chroma if `only_first`. Memory of `planes` is reused.
/// Throws PictureFault where the bytes and the index do not fit.
void decode_planes(Bytes picture, const PictureRecord& record, const IndexView& index, const Box& box, bool only_first,
                   PictureTables& tables, Planes& planes);

}  // namespace robocache::decode_detail
