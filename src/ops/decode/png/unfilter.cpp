// The rows of a PNG, whose bytes are stored as differences to their neighbors.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/contract.hpp"
#include "robocache/decode.hpp"

namespace robocache {
namespace {

enum Filter : std::uint8_t { none, left, up, average, paeth };

/// Of left, above and above left the one that is nearest to left + above - above left.
inline std::uint8_t nearest(int a, int b, int c) {
    const int to_a = std::abs(b - c);
    const int to_b = std::abs(a - c);
    const int to_c = std::abs(a + b - 2 * c);
    const int first = to_b < to_a ? b : a;
    return static_cast<std::uint8_t>(to_c < std::min(to_a, to_b) ? c : first);
}

/// One row of `size` bytes; `above` is the row before it. `bpp`: bytes of a pixel.
template <std::size_t bpp>
void unfilter_row(std::uint8_t filter, const std::uint8_t* in, const std::uint8_t* above, std::size_t size,
                  std::uint8_t* out) {
    const auto byte = [](int x) { return static_cast<std::uint8_t>(x); };
    switch (filter) {
        case none: std::memcpy(out, in, size); return;
        case up:
            for (std::size_t i = 0; i < size; ++i) out[i] = byte(in[i] + above[i]);
            return;
        case left:
            std::memcpy(out, in, bpp);
            for (std::size_t i = bpp; i < size; ++i) out[i] = byte(in[i] + out[i - bpp]);
            return;
        case average:
            for (std::size_t i = 0; i < bpp; ++i) out[i] = byte(in[i] + above[i] / 2);
            for (std::size_t i = bpp; i < size; ++i) out[i] = byte(in[i] + (out[i - bpp] + above[i]) / 2);
            return;
        default:
            for (std::size_t i = 0; i < bpp; ++i) out[i] = byte(in[i] + above[i]);
            for (std::size_t i = bpp; i < size; ++i) {
                out[i] = byte(in[i] + nearest(out[i - bpp], above[i], above[i - bpp]));
            }
    }
}

}  // namespace

void unfilter_png(std::span<const std::uint8_t> filtered, std::int64_t height, std::int64_t pixel_bytes,
                  std::span<std::uint8_t> out) {
    constexpr const char* op = "unfilter_png";
    if (pixel_bytes < 1 || pixel_bytes > 4) fail(op, "pixel_bytes", "be 1 to 4", std::to_string(pixel_bytes));
    const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(height, 0));
    const std::size_t size = rows == 0 ? 0 : out.size() / rows;
    if (size == 0 || size * rows != out.size() || size % static_cast<std::size_t>(pixel_bytes) != 0) {
        fail(op, "out", "have whole rows of whole pixels",
             std::to_string(out.size()) + " bytes for " + std::to_string(height) + " rows");
    }
    if (filtered.size() != out.size() + rows) {
        fail(op, "filtered", "have " + std::to_string(out.size() + rows) + " bytes", std::to_string(filtered.size()));
    }
    const std::vector<std::uint8_t> zeros(size);
    const std::uint8_t* above = zeros.data();
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uint8_t* in = filtered.data() + row * (size + 1);
        std::uint8_t* into = out.data() + row * size;
        if (in[0] > paeth) {
            throw FormatError("unfilter_png: row " + std::to_string(row) + " must have a filter of 0 to 4, got " +
                              std::to_string(in[0]));
        }
        const auto of_size = pixel_bytes == 1   ? unfilter_row<1>
                             : pixel_bytes == 2 ? unfilter_row<2>
                             : pixel_bytes == 3 ? unfilter_row<3>
                                                : unfilter_row<4>;
        of_size(in[0], in + 1, above, size, into);
        above = into;
    }
}

}  // namespace robocache
