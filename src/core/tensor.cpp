// Names, sizes and views.
#include "robocache/tensor.hpp"

#include "robocache/errors.hpp"

namespace robocache {
namespace {

struct DTypeInfo {
    const char* name;
    std::int64_t size_bytes;
};

constexpr DTypeInfo dtype_info[] = {{"bool", 1},     {"uint8", 1},   {"uint16", 2}, {"uint32", 4}, {"uint64", 8},
                                    {"int8", 1},     {"int16", 2},   {"int32", 4},  {"int64", 8},  {"float16", 2},
                                    {"bfloat16", 2}, {"float32", 4}, {"float64", 8}};

}  // namespace

std::int64_t size_bytes(DType dtype) noexcept {
    return dtype_info[static_cast<int>(dtype)].size_bytes;
}

bool is_floating(DType dtype) noexcept {
    return dtype >= DType::f16;
}

const char* name(DType dtype) noexcept {
    return dtype_info[static_cast<int>(dtype)].name;
}

std::string name(Device device) {
    switch (device.type) {
        case DeviceType::cpu:
        case DeviceType::cuda_host: return "cpu";
        case DeviceType::cuda: return "cuda:" + std::to_string(device.index);
    }
    return "device type " + std::to_string(static_cast<int>(device.type));
}

/// Wraps. Shapes that cannot be are for contracts to refuse, in words.
static std::int64_t product(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

TensorView::TensorView(void* memory, DType type, std::initializer_list<std::int64_t> sizes, Device where)
    : data(memory), dtype(type), device(where), rank(static_cast<int>(sizes.size())) {
    if (rank > max_rank) throw InvalidArgument("TensorView: rank must be at most 8, got " + std::to_string(rank));
    std::int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
        shape[d] = sizes.begin()[d];
        strides[d] = stride;
        stride = product(stride, shape[d]);
    }
}

std::int64_t TensorView::num_elements() const noexcept {
    std::int64_t count = 1;
    for (int d = 0; d < rank; ++d) count = product(count, shape[d]);
    return count;
}

TensorView TensorView::slice(int dim, std::int64_t begin, std::int64_t end) const {
    if (dim < 0 || dim >= rank || begin < 0 || begin > end || end > shape[dim]) {
        throw InvalidArgument("TensorView::slice: [" + std::to_string(begin) + ", " + std::to_string(end) +
                              ") of dimension " + std::to_string(dim) + " is not inside shape " + shape_text(*this));
    }
    TensorView part = *this;
    part.shape[dim] = end - begin;
    part.data = static_cast<char*>(data) + begin * strides[dim] * size_bytes(dtype);
    return part;
}

std::string shape_text(const TensorView& tensor) {
    std::string text = "(";
    for (int d = 0; d < tensor.rank; ++d) {
        if (d > 0) text += ", ";
        text += std::to_string(tensor.shape[d]);
    }
    return text + (tensor.rank == 1 ? ",)" : ")");
}

}  // namespace robocache
