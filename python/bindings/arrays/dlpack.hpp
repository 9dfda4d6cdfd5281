// The few DLPack structs we use (DLPack 1.3, https://github.com/dmlc/dlpack), declared here because no package ships
// the header everywhere we build. Layout is ABI: field order and types must not change.
#pragma once

#include <cstdint>

namespace robocache::dlpack {

struct Device {
    std::int32_t type;
    std::int32_t index;
};

struct DataType {
    std::uint8_t code;  // 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t rank;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: C-contiguous
    std::uint64_t byte_offset;
};

/// What a capsule called "dltensor" points at.
struct ManagedTensor {
    Tensor tensor;
    void* manager;
    void (*deleter)(ManagedTensor* self);
};

/// What `type(x).__dlpack_c_exchange_api__` points at: a C table that reads a tensor without Python calls.
struct ExchangeApi {
    std::uint32_t version_major;
    std::uint32_t version_minor;
    ExchangeApi* older;
    void* managed_tensor_allocator;
    void* managed_tensor_from_py_object;
    void* managed_tensor_to_py_object;
    int (*tensor_from_py_object)(void* object, Tensor* out);  // borrowed: valid while the object lives; may be null
    int (*current_work_stream)(std::int32_t device_type, std::int32_t device_index, void** out_stream);
};

}  // namespace robocache::dlpack
