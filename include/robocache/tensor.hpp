// TensorView, DType, Device, CudaQueue and Workspace: the common types of all operations.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace robocache {

/// Type of an element. `boolean` is one byte, 0 or 1; f16 is IEEE binary16, bf16 the upper half of an f32.
enum class DType : std::uint8_t { boolean, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64 };

/// Bytes of one element.
[[nodiscard]] std::int64_t size_bytes(DType dtype) noexcept;
[[nodiscard]] bool is_floating(DType dtype) noexcept;
/// The name NumPy and PyTorch use: "float32", "bfloat16", "int64", "bool".
[[nodiscard]] const char* name(DType dtype) noexcept;

/// Values are DLPack's device codes, so a DLPack device converts by value.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3 };

/// A device by type and number. The number counts the GPUs of this process from 0; on the CPU it is 0.
struct Device {
    DeviceType type = DeviceType::cpu;
    std::int32_t index = 0;

    [[nodiscard]] bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:1".
[[nodiscard]] std::string name(Device device);

/// A queue of work on a device: a cudaStream_t, or nothing on the CPU. Does not own it.
struct CudaQueue {
    void* handle = nullptr;
};

/// Scratch memory of the caller for one run of a plan: on the plan's device, aligned to 16 bytes, contents irrelevant.
struct Workspace {
    void* data = nullptr;
    std::int64_t size_bytes = 0;
};

/// A non-owning view of a strided array, like a DLPack tensor. Strides count elements and may be 0 or negative.
struct TensorView {
    static constexpr int max_rank = 8;
    using Extents = std::array<std::int64_t, max_rank>;

    void* data = nullptr;
    DType dtype = DType::f32;
    Device device;
    int rank = 0;
    Extents shape{};
    Extents strides{};

    TensorView() = default;
    /// A C-contiguous view of elements of this type and shape in memory.
    TensorView(void* memory, DType type, std::initializer_list<std::int64_t> sizes, Device where = {});
    TensorView(const void* memory, DType type, std::initializer_list<std::int64_t> sizes, Device where = {})
        : TensorView(const_cast<void*>(memory), type, sizes, where) {}

    [[nodiscard]] std::int64_t num_elements() const noexcept;
    /// The part `[begin, end)` of dimension `dim`, without copying: a column slice of an output.
    [[nodiscard]] TensorView slice(int dim, std::int64_t begin, std::int64_t end) const;
};

/// "(8, 100, 7)", "(5,)", "()".
[[nodiscard]] std::string shape_text(const TensorView& tensor);

}  // namespace robocache
