// The finish of a picture on the CPU. Without color factors a value depends on one byte only: it is looked up.
#include "ops/decode/cpu/store.hpp"

#include <cstring>

#include "ops/decode/cpu/kernels.hpp"

namespace robocache::decode_detail {
namespace {

template <class T>
std::uint32_t bits_of(T value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

std::uint32_t finished_bits(DType dtype, float x, float scale, float offset) {
    switch (dtype) {
        case DType::f32: return bits_of(finished<float>(x, scale, offset));
        case DType::f16: return bits_of(finished<Half>(x, scale, offset));
        case DType::bf16: return bits_of(finished<BFloat16>(x, scale, offset));
        default: return finished<std::uint8_t>(x, scale, offset);
    }
}

}  // namespace

RowStore::RowStore(const Style& style) : style_(style), values_(3 * 256) {
    for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t i = 0; i < 256; ++i) {
            values_[256 * c + i] =
                finished_bits(style.dtype, static_cast<float>(i), style.scaling.scale[c], style.scaling.offset[c]);
        }
    }
}

template <class T, int channels>
void RowStore::write_pixels(const PictureOutput& output, int y, const std::uint8_t* row) const {
    const std::int64_t width = style_.out_width;
    const std::int64_t plane = style_.is_chw ? width * style_.out_height : 1;
    const std::int64_t pixel = style_.is_chw ? 1 : channels;
    T* out = static_cast<T*>(output.data) + y * width * pixel;
    for (std::int64_t x = 0; x < width; ++x) {
        T* to = out + (output.flip ? width - 1 - x : x) * pixel;
        if (!style_.has_factors) {
            for (int c = 0; c < channels; ++c) {
                std::memcpy(to + c * plane, &values_[256 * static_cast<std::size_t>(c) + row[c]], sizeof(T));
            }
        } else {
            float values[channels];
            for (int c = 0; c < channels; ++c) values[c] = row[c];
            apply_factors<channels>(output.factors, values);
            for (int c = 0; c < channels; ++c) {
                to[c * plane] = finished<T>(values[c], style_.scaling.scale[c], style_.scaling.offset[c]);
            }
        }
        row += channels;
    }
}

template <class T>
void RowStore::write_as(const PictureOutput& output, int y, const std::uint8_t* row) const {
    if (style_.channels == 3) return write_pixels<T, 3>(output, y, row);
    write_pixels<T, 1>(output, y, row);
}

void RowStore::write_planes(const PictureOutput& output, int y, const std::uint8_t* row,
                            std::vector<std::uint8_t>& scratch) const {
    const auto width = static_cast<std::size_t>(style_.out_width);
    const auto bytes = static_cast<std::size_t>(size_bytes(style_.dtype));
    if (style_.channels == 3) {
        scratch.resize(3 * width);
        kernels_.split_row(row, style_.out_width, scratch.data(), scratch.data() + width, scratch.data() + 2 * width);
        row = scratch.data();
    }
    for (int c = 0; c < style_.channels; ++c, row += width) {
        const std::size_t at =
            (static_cast<std::size_t>(c) * static_cast<std::size_t>(style_.out_height) + static_cast<std::size_t>(y)) *
            width;
        void* out = static_cast<char*>(output.data) + at * bytes;
        const Finish finish{style_.scaling.scale[c], style_.scaling.offset[c], values_.data() + 256 * c};
        switch (style_.dtype) {
            case DType::f32: kernels_.finish_f32(row, style_.out_width, finish, static_cast<float*>(out)); break;
            case DType::f16:
                kernels_.finish_f16(row, style_.out_width, finish, static_cast<std::uint16_t*>(out));
                break;
            case DType::bf16:
                kernels_.finish_bf16(row, style_.out_width, finish, static_cast<std::uint16_t*>(out));
                break;
            default: std::memcpy(out, row, width);
        }
    }
}

void RowStore::write(const PictureOutput& output, int y, const std::uint8_t* row,
                     std::vector<std::uint8_t>& scratch) const {
    const bool is_plain = !style_.has_factors && !output.flip;
    if (is_plain && (style_.is_chw || style_.channels == 1)) return write_planes(output, y, row, scratch);
    if (is_plain && style_.dtype == DType::u8) {
        const auto bytes = static_cast<std::size_t>(style_.out_width) * static_cast<std::size_t>(style_.channels);
        std::memcpy(static_cast<std::uint8_t*>(output.data) + static_cast<std::size_t>(y) * bytes, row, bytes);
        return;
    }
    switch (style_.dtype) {
        case DType::f32: return write_as<float>(output, y, row);
        case DType::f16: return write_as<Half>(output, y, row);
        case DType::bf16: return write_as<BFloat16>(output, y, row);
        default: return write_as<std::uint8_t>(output, y, row);
    }
}

}  // namespace robocache::decode_detail
