// decode_images as an XLA FFI handler. Index, rows and edits are known when a function is traced.
#include "robocache/decode.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "decode/options.hpp"
#include "jax/traced.hpp"

namespace nb = nanobind;

namespace robocache::python::xla_ffi {
namespace {

constexpr const char* op = "decode_images";

/// What a compiled function needs of a call besides bytes and offsets. Immutable.
struct Spec {
    PictureIndex index;
    std::vector<std::int64_t> rows;
    std::vector<CropBox> crops;
    std::vector<std::uint8_t> flips;
    std::vector<ColorFactors> colors;
    DecodeOptions options;

    Spec(const PictureIndex& given_index, std::span<const std::int64_t> given_rows, const DecodeOptions& given)
        : index(given_index),
          rows(given_rows.begin(), given_rows.end()),
          crops(given.crops.begin(), given.crops.end()),
          flips(given.flips.begin(), given.flips.end()),
          colors(given.colors.begin(), given.colors.end()),
          options(given) {
        options.op = op;
        options.crops = crops;
        options.flips = flips;
        options.colors = colors;
    }
    Spec(const Spec&) = delete;
    Spec& operator=(const Spec&) = delete;
    ~Spec() = default;

    [[nodiscard]] DecodePlan plan(const TensorView& bytes, const TensorView& offsets,
                                  const std::optional<TensorView>& device_index) const {
        PicturesView view;
        view.bytes = bytes;
        view.offsets = offsets;
        view.index = &index;
        view.device_index = device_index;
        view.rows = rows;
        return plan_decode(view, options);
    }
};

/// Note [Specs by content]: an index is megabytes and must be on the host, so it is no attribute. The attribute is a
/// key made of the contents: an executable that JAX has loaded from its cache of compilations finds the same spec,
/// because its trace has registered it again. Specs stay for the life of the process, as compiled functions do.
class Specs {
public:
    void add(const std::string& key, std::shared_ptr<const Spec> spec) {
        const std::lock_guard lock(mutex_);
        specs_.emplace(key, std::move(spec));
    }
    [[nodiscard]] std::shared_ptr<const Spec> find(std::string_view key) {
        const std::lock_guard lock(mutex_);
        const auto found = specs_.find(std::string(key));
        if (found != specs_.end()) return found->second;
        throw Unsupported(
            std::string(op) +
            ": the index of this compiled function is not in this process; trace the function again here");
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<const Spec>> specs_;
};

Specs& specs() {
    static auto& all = *new Specs;  // never destroyed: XLA may still run a handler at exit
    return all;
}

/// Options: whether the index is there as an array of the device. Operands: bytes, offsets, that array. Result: pixels.
void compute_decode(Buffers& buffers, std::string_view key, Unpacker options, CudaQueue queue) {
    const std::shared_ptr<const Spec> spec = specs().find(key);
    const TensorView bytes = buffers.operand();
    const TensorView offsets = buffers.operand(Role::wide);
    std::optional<TensorView> device_index;
    if (const TensorView index = buffers.operand(); options.flag() && bytes.device.type == DeviceType::cuda) {
        device_index = index;
    }
    const DecodePlan plan = spec->plan(bytes, offsets, device_index);
    const TensorView output = buffers.result();
    run(plan, output, buffers.workspace(plan.workspace_bytes()), queue);
}

nb::tuple trace_decode(const std::string& key, nb::handle bytes, nb::handle offsets, const PictureIndex& index,
                       nb::handle device_index, nb::handle rows, nb::handle crops, nb::handle flips, nb::handle colors,
                       GivenSize size, std::string_view filter, std::string_view layout, std::string_view dtype,
                       MeanAndDeviation normalize, int channels) {
    TensorReader reader;
    TensorReader host;
    const auto picked = host_vector<std::int64_t>(host, rows, {op, "rows"}, DType::i64);
    const DecodeOptions options =
        read_options(op, host, {crops, flips, colors}, {size, filter, layout, dtype, normalize, channels});
    auto spec = std::make_shared<const Spec>(index, picked, options);
    std::optional<TensorView> on_device;
    if (!device_index.is_none()) on_device = reader.read(device_index, {op, "device_index"});
    const DecodePlan plan =
        spec->plan(reader.read(bytes, {op, "bytes"}), reader.read(offsets, {op, "offsets"}), on_device);
    Packed packed;
    packed.integers = {on_device.has_value()};
    packed.reals = {0};
    nb::list results;
    results.append(result_of(plan.output()));
    const std::int64_t workspace_bytes = plan.workspace_bytes();
    specs().add(key, std::move(spec));
    return traced(results, workspace_bytes, key, packed);
}

}  // namespace

std::vector<Handlers> decode_handlers() {
    return {handlers<compute_decode>("robocache_decode")};
}

void bind_decode(nb::module_& m) {
    m.def("trace_decode", &trace_decode, nb::arg("key"), nb::arg("bytes"), nb::arg("offsets"), nb::arg("index"),
          nb::arg("device_index").none(), nb::arg("rows"), nb::arg("crops").none(), nb::arg("flips").none(),
          nb::arg("colors").none(), nb::arg("size").none(), nb::arg("filter"), nb::arg("layout"), nb::arg("dtype"),
          nb::arg("normalize").none(), nb::arg("channels"));
}

}  // namespace robocache::python::xla_ffi
