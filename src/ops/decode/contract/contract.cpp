// The contract of decode (docs/decode.md): validates a call and turns it into a plan.
#include <array>
#include <cmath>
#include <string>

#include "core/contract.hpp"
#include "ops/decode/contract/plan.hpp"
#include "ops/decode/jpeg/index.hpp"

namespace robocache::decode_detail {
namespace {

constexpr std::int64_t max_extent = 65535;

std::string size_text(std::int64_t width, std::int64_t height) {
    return std::to_string(width) + " x " + std::to_string(height);
}

std::string box_text(const CropBox& box) {
    return "(" + std::to_string(box.x0) + ", " + std::to_string(box.y0) + ", " + std::to_string(box.x1) + ", " +
           std::to_string(box.y1) + ")";
}

/// Validates the arguments of one call, in their order.
class Call {
public:
    Call(DecodePlan::State& state, const PicturesView& pictures, const DecodeOptions& options)
        : state_(state), plan_(state.plan), pictures_(pictures), options_(options), op_(options.op) {}

    void read() {
        read_pictures();
        read_style();
        read_jobs();
        read_size();
        make_output();
    }

private:
    [[noreturn]] void refuse(const ArgumentName& argument, std::string_view rule, std::string_view given) const {
        fail(op_, argument, rule, given);
    }

    void require_vector(const char* name, const TensorView& tensor, DType dtype, Device device) const {
        require_dtype(op_, name, tensor, dtype);
        require_rank(op_, name, tensor, 1);
        require_device(op_, name, tensor, device);
        if (tensor.shape[0] > 1 && tensor.strides[0] != 1) {
            refuse(name, "be contiguous", "stride " + std::to_string(tensor.strides[0]));
        }
    }

    void read_pictures() {
        const Device device = pictures_.bytes.device;
        require_vector("bytes", pictures_.bytes, DType::u8, device);
        require_vector("offsets", pictures_.offsets, DType::i64, device);
        if (pictures_.index == nullptr) refuse("index", "be given", "none");
        const std::int64_t num_pictures = pictures_.index->num_pictures();
        if (pictures_.offsets.shape[0] != num_pictures + 1) {
            refuse("offsets", "have one entry more than the index has pictures",
                   std::to_string(pictures_.offsets.shape[0]) + " for " + std::to_string(num_pictures));
        }
        plan_.device = device;
        plan_.bytes = static_cast<const std::uint8_t*>(pictures_.bytes.data);
        plan_.num_bytes = pictures_.bytes.shape[0];
        plan_.offsets = static_cast<const std::int64_t*>(pictures_.offsets.data);
        plan_.num_pictures = num_pictures;
        plan_.index = view_of(*pictures_.index);
        if (device.type == DeviceType::cuda) read_device_index(device);
    }

    void read_device_index(Device device) {
        if (!pictures_.device_index) refuse("device_index", "be given for pictures on a GPU", "none");
        const TensorView& copy = *pictures_.device_index;
        require_vector("device_index", copy, DType::u8, device);
        const auto num_bytes = static_cast<std::int64_t>(pictures_.index->bytes().size());
        if (copy.shape[0] != num_bytes) {
            refuse("device_index", "have the " + std::to_string(num_bytes) + " bytes of the index",
                   std::to_string(copy.shape[0]));
        }
        if (reinterpret_cast<std::uintptr_t>(copy.data) % 16 != 0) {
            refuse("device_index", "be aligned to 16 bytes", "another address");
        }
        plan_.device_index = view_of(*pictures_.index, copy.data);
    }

    void read_style() {
        Style& style = plan_.style;
        style.channels = options_.channels;
        style.dtype = options_.dtype;
        style.is_area = options_.filter == ResizeFilter::area;
        style.is_chw = options_.layout == PictureLayout::chw;
        if (style.channels != 1 && style.channels != 3) refuse("channels", "be 1 or 3", std::to_string(style.channels));
        const bool is_known = style.dtype == DType::u8 || style.dtype == DType::f16 || style.dtype == DType::bf16 ||
                              style.dtype == DType::f32;
        if (!is_known) refuse("dtype", "be uint8, float16, bfloat16 or float32", name(style.dtype));
        if (options_.normalize && style.dtype == DType::u8) {
            refuse("dtype", "be floating with normalize", name(style.dtype));
        }
        const Normalization normalize = options_.normalize.value_or(Normalization{});
        for (std::size_t c = 0; c < 3; ++c) {
            const double mean = normalize.mean[c];
            const double std = normalize.std[c];
            if (!std::isfinite(mean)) refuse("normalize", "have finite means", number_text(mean));
            if (!std::isfinite(std) || std <= 0) refuse("normalize", "have positive deviations", number_text(std));
            style.scaling.scale[c] = static_cast<float>(1.0 / (255.0 * std));
            style.scaling.offset[c] = static_cast<float>(-mean / std);
        }
    }

    void require_count(const char* name, std::size_t given, std::size_t expected) const {
        if (given == 0 || given == expected) return;
        refuse(name, "have one entry per picture (" + std::to_string(expected) + ")", std::to_string(given));
    }

    void read_jobs() {
        const auto count = pictures_.rows ? pictures_.rows->size() : static_cast<std::size_t>(plan_.num_pictures);
        require_count("crop", options_.crops.size(), count);
        require_count("flip", options_.flips.size(), count);
        require_count("color", options_.colors.size(), count);
        plan_.style.has_factors = !options_.colors.empty();
        plan_.jobs.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            PictureJob& job = plan_.jobs[i];
            job.row = pictures_.rows ? (*pictures_.rows)[i] : static_cast<std::int64_t>(i);
            if (job.row < 0 || job.row >= plan_.num_pictures) {
                refuse("rows", "be from 0 to " + std::to_string(plan_.num_pictures - 1), std::to_string(job.row));
            }
            const PictureRecord& record = plan_.index.record(job.row);
            if (record.width == 0) {
                refuse("rows", "be among those that the index was made for", std::to_string(job.row));
            }
            job.box = box_of(i, record);
            if (!options_.flips.empty()) job.flip = options_.flips[i] != 0;
            if (!options_.colors.empty()) job.factors = factors_of(i);
        }
    }

    [[nodiscard]] Box box_of(std::size_t i, const PictureRecord& record) const {
        if (options_.crops.empty()) return {0, 0, record.width, record.height};
        const CropBox& box = options_.crops[i];
        if (box.x0 < 0 || box.y0 < 0 || box.x1 > record.width || box.y1 > record.height || box.x0 >= box.x1 ||
            box.y0 >= box.y1) {
            refuse({"crop", i, ""},
                   "be pixels (x0, y0, x1, y1) of a picture of " + size_text(record.width, record.height),
                   box_text(box));
        }
        return {box.x0, box.y0, box.x1, box.y1};
    }

    [[nodiscard]] Factors factors_of(std::size_t i) const {
        const ColorFactors& given = options_.colors[i];
        for (const float factor : {given.brightness, given.contrast, given.saturation}) {
            if (!std::isfinite(factor) || factor < 0) {
                refuse({"color", i, ""}, "be finite and not negative", number_text(factor));
            }
        }
        return {given.brightness, given.contrast, given.saturation};
    }

    void read_size() {
        Style& style = plan_.style;
        if (options_.size) {
            const auto [height, width] = *options_.size;
            if (height < 1 || height > max_extent || width < 1 || width > max_extent) {
                refuse("size", "be from 1 to 65535 pixels",
                       "(" + std::to_string(height) + ", " + std::to_string(width) + ")");
            }
            style.out_height = static_cast<std::int32_t>(height);
            style.out_width = static_cast<std::int32_t>(width);
            return;
        }
        for (const PictureJob& job : plan_.jobs) {
            const std::int32_t width = job.box.x1 - job.box.x0;
            const std::int32_t height = job.box.y1 - job.box.y0;
            if (style.out_width == 0) {
                style.out_width = width;
                style.out_height = height;
            } else if (style.out_width != width || style.out_height != height) {
                refuse("size", "be given for pictures of several sizes",
                       size_text(style.out_width, style.out_height) + " and " + size_text(width, height));
            }
        }
    }

    void make_output() {
        const Style& style = plan_.style;
        const auto count = static_cast<std::int64_t>(plan_.jobs.size());
        void* none = nullptr;
        state_.output = style.is_chw
                            ? TensorView(none, style.dtype, {count, style.channels, style.out_height, style.out_width},
                                         plan_.device)
                            : TensorView(none, style.dtype, {count, style.out_height, style.out_width, style.channels},
                                         plan_.device);
    }

    DecodePlan::State& state_;
    Plan& plan_;
    const PicturesView& pictures_;
    const DecodeOptions& options_;
    std::string_view op_;
};

}  // namespace

void make_plan(DecodePlan::State& state, const PicturesView& pictures, const DecodeOptions& options) {
    state.op = options.op;
    Call(state, pictures, options).read();
}

Target bind(const DecodePlan::State& state, const TensorView& output, Workspace workspace) {
    const TensorView& expected = state.output;
    require_dtype(state.op, "output", output, expected.dtype);
    require_device(state.op, "output", output, expected.device);
    const TensorView contiguous(output.data, output.dtype,
                                {expected.shape[0], expected.shape[1], expected.shape[2], expected.shape[3]},
                                output.device);
    bool fits = output.rank == expected.rank && output.shape == expected.shape;
    for (int d = 0; fits && d < expected.rank; ++d) {
        const auto i = static_cast<std::size_t>(d);
        fits = output.shape[i] <= 1 || output.strides[i] == contiguous.strides[i];
    }
    if (!fits)
        fail(state.op, "output", "be C-contiguous with shape " + shape_text(expected), "shape " + shape_text(output));
    if (workspace.size_bytes < state.workspace_bytes || (state.workspace_bytes > 0 && workspace.data == nullptr)) {
        fail(state.op, "workspace", "have " + std::to_string(state.workspace_bytes) + " bytes",
             std::to_string(workspace.data == nullptr ? 0 : workspace.size_bytes));
    }
    return {output.data, workspace};
}

}  // namespace robocache::decode_detail
