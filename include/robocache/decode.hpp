// decode: encoded pictures to pixels, cropped, resized and normalized. The contract, case by case, is docs/decode.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "robocache/tensor.hpp"

namespace robocache {

// ---- the picture index ----------------------------------------------------------------------------------------------

/// What the first bytes of a picture contain.
enum class PictureKind : std::uint8_t {
    jpeg,  ///< a JPEG that this library decodes: sequential, Huffman codes, 8 bits, gray or three components, one scan
    other_jpeg,  ///< progressive, arithmetic, lossless, 12 bits, CMYK, several scans
    png,
    unknown,
};
/// Reads markers up to the scan. Never throws for bad bytes: those are `unknown`.
[[nodiscard]] PictureKind picture_kind(std::span<const std::uint8_t> bytes) noexcept;

/// How the bytes of a picture that is not encoded are laid out. The yuv420 formats are planes of a frame of video: Y
/// (height, width), then U and V (half of both, rounded up); `full`: samples have the range 0 to 255.
enum class PixelFormat : std::int32_t {
    interleaved,  ///< (height, width, channels)
    yuv420_bt601,
    yuv420_bt601_full,
    yuv420_bt709,
    yuv420_bt709_full,
    yuv420_fcc,
    yuv420_fcc_full,
    yuv420_smpte240m,
    yuv420_smpte240m_full,
    yuv420_bt2020,
    yuv420_bt2020_full,
};

/// The shape of a picture whose bytes are pixels, u8, and not encoded. Height 0: it is a JPEG.
struct PixelShape {
    std::int32_t height = 0;
    std::int32_t width = 0;
    std::int32_t channels = 3;  ///< 3 or 1, or 4 with alpha, which is ignored; 3 for planes
    PixelFormat format = PixelFormat::interleaved;
};

/// The size and channels of a JPEG that this library decodes, from its header; absent for anything else.
[[nodiscard]] std::optional<PixelShape> jpeg_shape(std::span<const std::uint8_t> bytes) noexcept;

/// Bits per sample that the frame of a JPEG of any kind declares; 0 where it has none.
[[nodiscard]] int jpeg_bits(std::span<const std::uint8_t> bytes) noexcept;

/// What index_pictures() reads, and the limits it keeps.
struct PictureIndexOptions {
    std::int32_t every = 0;    ///< MCUs per entry point; 0: as few as 3 % of the bytes have room for, from 4 on
    bool entry_points = true;  ///< false: reads headers only. The GPU then has one thread per picture
    std::int64_t max_pixels = 100'000'000;  ///< of one picture; larger ones are refused before memory is allocated
    std::span<const PixelShape> pixels{};   ///< empty: all are JPEG; else one for each picture
    std::optional<std::span<const std::int64_t>> rows{};  ///< only these are read, the others cannot be decoded then
    std::string_view op = "index_pictures";               ///< for messages
};

/// Headers, tables and entry points of pictures: what decoding on a GPU needs to start anywhere in a scan. One flat
/// array of bytes, versioned, the same in a file, on the host and on a GPU. Immutable.
class PictureIndex {
public:
    PictureIndex() = default;
    /// Takes bytes that another index had. Throws FormatError where they are not a valid index.
    [[nodiscard]] static PictureIndex from_bytes(std::span<const std::uint8_t> bytes,
                                                 std::string_view op = "PictureIndex");

    /// The pictures of several indexes, one index after the other; `rows`: only these of them, in this order.
    [[nodiscard]] static PictureIndex join(std::span<const PictureIndex* const> parts,
                                           std::optional<std::span<const std::int64_t>> rows = std::nullopt);

    [[nodiscard]] std::span<const std::uint8_t> bytes() const noexcept;
    [[nodiscard]] std::int64_t num_pictures() const noexcept;
    [[nodiscard]] std::int64_t num_entry_points() const noexcept;
    [[nodiscard]] std::int32_t width(std::int64_t picture) const;
    [[nodiscard]] std::int32_t height(std::int64_t picture) const;
    [[nodiscard]] std::int32_t channels(std::int64_t picture) const;  ///< 3, or 1: gray

private:
    friend class PictureIndexWriter;
    std::vector<std::uint64_t> words_;
};

/// Parses pictures [offsets[i], offsets[i + 1]) of `bytes` and reads each scan to its end. Threads share the work.
/// Throws FormatError for a truncated or corrupt picture, Unsupported for a JPEG of another kind, naming picture and
/// rule.
[[nodiscard]] PictureIndex index_pictures(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> offsets,
                                          const PictureIndexOptions& options = {});

/// The kind of each picture; `unknown` for those that `options.rows` leaves out.
[[nodiscard]] std::vector<PictureKind> picture_kinds(std::span<const std::uint8_t> bytes,
                                                     std::span<const std::int64_t> offsets,
                                                     const PictureIndexOptions& options = {});

/// Undoes the filters of the decompressed rows of a PNG: `height` times a filter byte and a row. `pixel_bytes`: of a
/// whole pixel, 1 to 4. `out`: the rows without filter bytes. Throws FormatError for an unknown filter.
void unfilter_png(std::span<const std::uint8_t> filtered, std::int64_t height, std::int64_t pixel_bytes,
                  std::span<std::uint8_t> out);

// ---- the op ---------------------------------------------------------------------------------------------------------

/// Encoded pictures; owned by the caller. `index` belongs to the same pictures.
struct PicturesView {
    TensorView bytes;                          ///< (num_bytes,) u8
    TensorView offsets;                        ///< (num_pictures + 1,) i64, on the device of `bytes`
    const PictureIndex* index = nullptr;       ///< on the host
    std::optional<TensorView> device_index{};  ///< index->bytes() on the device of `bytes`: (n,) u8; only on CUDA
    std::optional<std::span<const std::int64_t>> rows{};  ///< the pictures to decode, in this order; absent: all
};

/// Pixels [x0, x1) x [y0, y1) of a picture.
struct CropBox {
    std::int32_t x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

/// How pixels of a crop become one pixel of the output.
enum class ResizeFilter : std::uint8_t {
    bilinear,  ///< triangle, widened when it shrinks (antialias): Pillow's Resampling.BILINEAR
    area,      ///< box: Pillow's Resampling.BOX
};

/// Order of the output of one picture: (height, width, channels), or (channels, height, width) as networks take it.
enum class PictureLayout : std::uint8_t { hwc, chw };

/// Of one picture; 1 changes nothing. Contrast is about the fixed value 127.5.
struct ColorFactors {
    float brightness = 1, contrast = 1, saturation = 1;
};

/// (value / 255 - mean) / std, by channel.
struct Normalization {
    std::array<float, 3> mean{};
    std::array<float, 3> std{1, 1, 1};
};

/// What happens to the pixels of a picture, in this order: crop, resize, flip, color factors, normalize.
struct DecodeOptions {
    std::optional<std::array<std::int64_t, 2>> size{};  ///< (height, width); absent: all crops must have one size
    ResizeFilter filter = ResizeFilter::bilinear;
    std::span<const CropBox> crops{};          ///< empty: whole pictures; else one for each row
    std::span<const std::uint8_t> flips{};     ///< empty: none; else one for each row: not 0 mirrors left and right
    std::span<const ColorFactors> colors{};    ///< empty: none; else one for each row
    std::optional<Normalization> normalize{};  ///< floating dtypes only; absent: floating values are value / 255
    PictureLayout layout = PictureLayout::hwc;
    DType dtype = DType::u8;                ///< u8, f16, bf16 or f32
    int channels = 3;                       ///< 3: RGB; 1: gray
    std::string_view op = "decode_images";  ///< for messages
};

/// A validated call. It refers to bytes, offsets and index, which must outlive it, and may be run any number of times.
class DecodePlan {
public:
    struct State;
    explicit DecodePlan(std::unique_ptr<const State> state) noexcept;
    ~DecodePlan();
    DecodePlan(DecodePlan&&) noexcept;
    DecodePlan& operator=(DecodePlan&&) noexcept;

    [[nodiscard]] Device device() const noexcept;
    /// (N, H, W, C) or (N, C, H, W), C-contiguous, without data.
    [[nodiscard]] const TensorView& output() const noexcept;
    /// The bytes of workspace that run needs; 0 on the CPU.
    [[nodiscard]] std::int64_t workspace_bytes() const noexcept;

    [[nodiscard]] const State& state() const noexcept { return *state_; }  ///< for the implementation

private:
    std::unique_ptr<const State> state_;
};

/// Validates a call and sizes output and workspace. Reads the index and no tensor data.
[[nodiscard]] DecodePlan plan_decode(const PicturesView& pictures, const DecodeOptions& options = {});

/// Decodes into the caller's memory. CUDA: queue-ordered, allocates nothing, waits for nothing; bytes that the index
/// does not fit decode to undefined pixels. CPU: throws FormatError for those, naming the picture; the output is then
/// undefined.
void run(const DecodePlan& plan, const TensorView& output, Workspace workspace = {}, CudaQueue queue = {});

}  // namespace robocache
