// Any bytes as a picture: its kind, its index, the index read again, and pixels. And any bytes as the index of a
// picture.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "robocache/decode.hpp"
#include "robocache/errors.hpp"
#include "tiny_picture.hpp"

namespace {

using robocache::DType;
using robocache::TensorView;

void decode(std::span<const std::uint8_t> bytes, const robocache::PictureIndex& index) {
    const std::array<std::int64_t, 2> offsets{0, static_cast<std::int64_t>(bytes.size())};
    robocache::PicturesView view;
    view.bytes = TensorView(bytes.data(), DType::u8, {offsets[1]});
    view.offsets = TensorView(offsets.data(), DType::i64, {2});
    view.index = &index;
    robocache::DecodeOptions options;
    options.size = std::array<std::int64_t, 2>{5, 7};
    const robocache::DecodePlan plan = plan_decode(view, options);
    TensorView output = plan.output();
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(output.num_elements()));
    output.data = pixels.data();
    run(plan, output);
}

}  // namespace

/// The first byte chooses: a picture with entry points, one without, or an index.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::span<const std::uint8_t> bytes(data + 1, size - 1);
    (void)robocache::picture_kind(bytes);
    try {
        if (data[0] % 3 == 2) {
            static const std::vector<std::uint8_t> picture = tiny_picture(true);
            decode(picture, robocache::PictureIndex::from_bytes(bytes));
            return 0;
        }
        robocache::PictureIndexOptions options;
        options.max_pixels = 1 << 20;
        options.entry_points = data[0] % 3 == 0;
        const std::array<std::int64_t, 2> offsets{0, static_cast<std::int64_t>(bytes.size())};
        const robocache::PictureIndex index = robocache::index_pictures(bytes, offsets, options);
        decode(bytes, robocache::PictureIndex::from_bytes(index.bytes()));
    } catch (const robocache::Error&) {
    }
    return 0;
}
