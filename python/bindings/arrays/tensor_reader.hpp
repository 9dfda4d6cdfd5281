// Python arrays as TensorViews, without copying, in the order of the stream that a call computes on.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arrays/dlpack.hpp"
#include "core/contract.hpp"
#include "robocache/tensor.hpp"

namespace robocache::python {

/// The op and the argument, for error messages.
struct Argument {
    std::string_view op;
    ArgumentName name;
};

enum class Access { read, write };

/// An array without memory: what is known of an array while JAX traces a function. Only plans may use its view.
struct AbstractArray {
    TensorView view;
};

/// Reads the arrays of one call. Views live as long as the reader and the Python objects do.
///
/// The call computes on the current stream of the framework of its first array. Torch says which that is through the
/// DLPack C exchange table; for other frameworks `queue` does: (stream, type). Memory of arrays of that type is
/// reused in the order of the stream; None: of no array. Every array of another framework is made ready there.
class TensorReader {
public:
    explicit TensorReader(nanobind::handle queue = nanobind::none());

    /// Torch tensors through the exchange table, everything else through `__dlpack__` or the buffer protocol. NumPy and
    /// CuPy arrays of bfloat16, and of times in nanoseconds, which DLPack cannot express, are read as integers.
    TensorView read(nanobind::handle object, const Argument& argument, Access access = Access::read);

    /// Where to compute; nothing on the CPU.
    [[nodiscard]] CudaQueue stream() const { return stream_.value_or(CudaQueue{}); }
    /// Some memory on the GPU may be reused as soon as the call returns: its work must be done by then.
    [[nodiscard]] bool must_wait() const { return must_wait_; }

private:
    bool try_export(nanobind::handle object, Access access, nanobind::ndarray<nanobind::ro>& array) const;
    TensorView read_through_export(nanobind::handle object, const Argument& argument, Access access);
    nanobind::object ready_on_stream(nanobind::handle object) const;

    std::optional<CudaQueue> stream_;           // where the first array is on a GPU
    const dlpack::ExchangeApi* api_ = nullptr;  // the table that named the stream, if one did
    nanobind::handle type_;                     // ... or the type of the arrays it belongs to
    bool must_wait_ = false;
    std::vector<nanobind::ndarray<nanobind::ro>> exported_;
};

/// Whether the object is a torch tensor on a CPU or a CUDA device with nothing that DLPack cannot express: no subclass,
/// no gradient, no lazy negation.
[[nodiscard]] bool is_plain_tensor(nanobind::handle object);

[[nodiscard]] DType dtype_from_name(std::string_view name, const Argument& argument);

/// The characters of a str, which live as long as it does.
[[nodiscard]] std::string_view text(nanobind::handle object);
/// repr(object), for error messages.
[[nodiscard]] std::string repr_of(nanobind::handle object);

}  // namespace robocache::python
