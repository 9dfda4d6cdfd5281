// decode: the kernels give the bits of the CPU, whose bits are those of libjpeg-turbo.
#include "both.hpp"
#include "ops/decode/cuda/nvdec/planes.hpp"
#include "random_jpeg.hpp"
#include "robocache/decode.hpp"

namespace robocache::emulated {
namespace {

struct Pictures {
    std::vector<std::uint8_t> bytes;
    std::vector<std::int64_t> offsets{0};
    std::vector<PixelShape> shapes;
    PictureIndex index;
    std::vector<std::uint8_t> index_bytes;

    Pictures(Random& random, bool same_size) {
        const std::int64_t count = random.integer(1, 7);
        JpegShape shape = random_shape(random);
        const bool has_pixels = random.chance(0.4);
        const std::int64_t channels = random.chance(0.5) ? 3 : 1;
        for (std::int64_t i = 0; i < count; ++i) {
            if (!same_size) shape = random_shape(random);
            PixelShape pixels{0, 0, 3};
            std::vector<std::uint8_t> one;
            if (has_pixels && random.chance(0.5)) {
                pixels = {shape.height, shape.width, static_cast<std::int32_t>(channels)};
                std::int64_t size = std::int64_t{pixels.height} * pixels.width * pixels.channels;
                if (random.chance(0.4)) {  // a frame of video
                    pixels.channels = 3;
                    pixels.format = static_cast<PixelFormat>(random.integer(1, 10));
                    size = std::int64_t{pixels.height} * pixels.width +
                           2 * ((pixels.height + 1) / 2) * ((pixels.width + 1) / 2);
                }
                for (std::int64_t k = 0; k < size; ++k)
                    one.push_back(static_cast<std::uint8_t>(random.integer(0, 255)));
            } else {
                JpegShape coded = shape;
                coded.restart = random.chance(0.3) ? static_cast<int>(random.integer(1, 9)) : 0;
                coded.density = random.one_of({0.0, 0.03, 0.2, 0.7});
                one = random_jpeg(random, coded);
            }
            bytes.insert(bytes.end(), one.begin(), one.end());
            offsets.push_back(static_cast<std::int64_t>(bytes.size()));
            shapes.push_back(pixels);
        }
        PictureIndexOptions options;
        if (has_pixels) options.pixels = shapes;
        options.entry_points = random.chance(0.8);
        options.every = random.chance(0.5) ? static_cast<std::int32_t>(random.integer(1, 20)) : 0;
        index = index_pictures(bytes, offsets, options);
        index_bytes.assign(index.bytes().begin(), index.bytes().end());
    }

    [[nodiscard]] PicturesView on_device(Device device) const {
        PicturesView view;
        view.bytes = TensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}, device);
        view.offsets = TensorView(offsets.data(), DType::i64, {static_cast<std::int64_t>(offsets.size())}, device);
        view.index = &index;
        if (device == gpu) {
            view.device_index =
                TensorView(aligned_.data(), DType::u8, {static_cast<std::int64_t>(index_bytes.size())}, device);
        }
        return view;
    }
    void align_index() {
        aligned_ = Memory(static_cast<std::int64_t>(index_bytes.size()));
        std::memcpy(aligned_.data(), index_bytes.data(), index_bytes.size());
    }

private:
    Memory aligned_;

    static JpegShape random_shape(Random& random) {
        JpegShape shape;
        shape.width = static_cast<int>(random.chance(0.2) ? random.integer(1, 9) : random.integer(1, 120));
        shape.height = static_cast<int>(random.chance(0.2) ? random.integer(1, 9) : random.integer(1, 100));
        const std::int64_t sampling = random.integer(0, 4);
        shape.gray = sampling == 4;
        shape.across = sampling == 1 || sampling == 2 ? 2 : 1;
        shape.down = sampling == 2 ? 2 : 1;
        return shape;
    }
};

std::string describe(const TensorView& output, const DecodeOptions& options) {
    return shape_text(output) + " " + name(output.dtype) + (options.crops.empty() ? "" : ", cropped") +
           (options.flips.empty() ? "" : ", flipped") + (options.colors.empty() ? "" : ", colored") +
           (options.normalize ? ", normalized" : "");
}

class DecodeOnTheEmulatedGpu : public testing::TestWithParam<int> {};

TEST_P(DecodeOnTheEmulatedGpu, HasTheBitsOfTheCpu) {
    for (const std::uint64_t seed : seeds(GetParam(), 40)) {
        Random random(seed);
        choose_gpu(random);
        const bool resized = random.chance(0.6);
        Pictures pictures(random, !resized);
        pictures.align_index();
        DecodeOptions options;
        if (resized) options.size = {random.integer(1, 80), random.integer(1, 80)};
        options.filter = random.one_of({ResizeFilter::bilinear, ResizeFilter::area});
        options.layout = random.one_of({PictureLayout::hwc, PictureLayout::chw});
        options.dtype = random.one_of({DType::u8, DType::u8, DType::f32, DType::f16, DType::bf16});
        options.channels = random.chance(0.7) ? 3 : 1;
        std::vector<std::int64_t> rows;
        const std::int64_t num_rows = random.integer(1, 9);
        const std::int64_t num_pictures = pictures.index.num_pictures();
        for (std::int64_t r = 0; r < num_rows; ++r) rows.push_back(random.integer(0, num_pictures - 1));
        std::vector<CropBox> crops;
        std::vector<std::uint8_t> flips;
        std::vector<ColorFactors> colors;
        const bool crop = random.chance(0.5);
        for (const std::int64_t r : rows) {
            const int width = pictures.index.width(r);
            const int height = pictures.index.height(r);
            CropBox box{0, 0, width, height};
            if (crop && resized) {
                box.x0 = static_cast<int>(random.integer(0, width - 1));
                box.y0 = static_cast<int>(random.integer(0, height - 1));
                box.x1 = static_cast<int>(random.integer(box.x0 + 1, width));
                box.y1 = static_cast<int>(random.integer(box.y0 + 1, height));
            } else if (crop) {  // all of one size
                box.x0 = static_cast<int>(random.integer(0, width / 2));
                box.y0 = static_cast<int>(random.integer(0, height / 2));
                box.x1 = box.x0 + (width + 1) / 2;
                box.y1 = box.y0 + (height + 1) / 2;
            }
            crops.push_back(box);
            flips.push_back(random.chance(0.5) ? 1 : 0);
            colors.push_back({static_cast<float>(random.real(0.5, 1.5)), static_cast<float>(random.real(0.5, 1.5)),
                              static_cast<float>(random.real(0.5, 1.5))});
        }
        if (crop) options.crops = crops;
        if (random.chance(0.4)) options.flips = flips;
        if (random.chance(0.4)) options.colors = colors;
        if (options.dtype != DType::u8 && random.chance(0.6))
            options.normalize = Normalization{{0.4F, 0.5F, 0.3F}, {0.2F, 0.25F, 0.3F}};
        std::vector<Memory> results;
        std::string what;
        for (const Device device : {cpu, gpu}) {
            PicturesView view = pictures.on_device(device);
            view.rows = rows;
            const DecodePlan plan = plan_decode(view, options);
            TensorView output = plan.output();
            results.push_back(memory_of(output));
            output.data = results.back().data();
            const Memory workspace(plan.workspace_bytes());
            run(plan, output, {workspace.data(), workspace.size()});
            what = describe(output, options);
        }
        EXPECT_EQ(difference(results[0], results[1]), "") << "seed " << seed << ": " << what;
        if (testing::Test::HasFailure()) return;
    }
}

/// Bytes that do not fit the index decode to anything, but nothing outside of the arrays is read or written, and the
/// kernels end. The address sanitizer watches.
TEST_P(DecodeOnTheEmulatedGpu, DamagedBytesStayInsideTheMemory) {
    for (const std::uint64_t seed : seeds(GetParam(), 40)) {
        Random random(seed);
        choose_gpu(random);
        Pictures pictures(random, false);
        pictures.align_index();
        const std::int64_t changes = random.integer(1, 20);
        for (std::int64_t k = 0; k < changes; ++k) {
            auto& byte = pictures.bytes[static_cast<std::size_t>(
                random.integer(0, static_cast<std::int64_t>(pictures.bytes.size()) - 1))];
            byte = static_cast<std::uint8_t>(random.chance(0.3) ? 0xff : random.integer(0, 255));
        }
        DecodeOptions options;
        options.size = {random.integer(1, 40), random.integer(1, 40)};
        const DecodePlan plan = plan_decode(pictures.on_device(gpu), options);
        TensorView output = plan.output();
        const Memory pixels = memory_of(output);
        output.data = pixels.data();
        const Memory workspace(plan.workspace_bytes());
        run(plan, output, {workspace.data(), workspace.size()});
    }
}

/// NVDEC itself is not emulated; what it leaves are surfaces like this one.
TEST_P(DecodeOnTheEmulatedGpu, FramesOfADecoderBecomePlanes) {
    for (const std::uint64_t seed : seeds(GetParam(), 20)) {
        Random random(seed);
        choose_gpu(random);
        const std::int64_t width = 2 * random.integer(1, 60);
        const std::int64_t height = 2 * random.integer(1, 40);
        decode_detail::Surface surface;
        surface.left = static_cast<std::size_t>(2 * random.integer(0, 3));
        surface.top = static_cast<std::size_t>(2 * random.integer(0, 3));
        surface.pitch = 256;
        surface.num_rows =
            static_cast<std::size_t>(height) + surface.top + static_cast<std::size_t>(2 * random.integer(0, 4));
        const Memory memory(static_cast<std::int64_t>(surface.pitch * surface.num_rows * 3 / 2));
        auto* samples = static_cast<std::uint8_t*>(memory.data());
        for (std::int64_t k = 0; k < memory.size(); ++k) samples[k] = static_cast<std::uint8_t>(random.integer(0, 255));
        surface.data = reinterpret_cast<std::uintptr_t>(samples);
        std::vector<std::uint8_t> expected;
        for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t x = 0; x < width; ++x) {
                expected.push_back(samples[(surface.top + static_cast<std::size_t>(y)) * surface.pitch + surface.left +
                                           static_cast<std::size_t>(x)]);
            }
        }
        for (std::size_t plane = 0; plane < 2; ++plane) {
            for (std::int64_t y = 0; y < height / 2; ++y) {
                for (std::int64_t x = 0; x < width / 2; ++x) {
                    const std::size_t row = surface.num_rows + surface.top / 2 + static_cast<std::size_t>(y);
                    expected.push_back(
                        samples[row * surface.pitch + surface.left + 2 * static_cast<std::size_t>(x) + plane]);
                }
            }
        }
        std::vector<std::uint8_t> out(expected.size());
        decode_detail::queue_planes(surface, static_cast<int>(width), static_cast<int>(height), out.data(), nullptr);
        EXPECT_EQ(out, expected);
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DecodeOnTheEmulatedGpu, testing::Range(0, 4));

}  // namespace
}  // namespace robocache::emulated
