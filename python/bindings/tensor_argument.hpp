// A Python array as a TensorView, without copying.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string_view>

#include "dlpack.hpp"
#include "robocache/tensor.hpp"

namespace robocache::python {

/// Who is asking, for error messages.
struct Argument {
    std::string_view op;
    std::string_view name;
};

/// The view, and whatever keeps it alive as long as the Python object itself lives.
struct TensorArgument {
    TensorView view;
    nanobind::ndarray<nanobind::ro> exported;
    const dlpack::ExchangeApi* api = nullptr;  ///< of the array's type, where it has one

    /// The stream on which the array's framework is working now; the default stream where it cannot be asked.
    [[nodiscard]] Stream current_stream() const;
};

enum class Access { read, write };

/// Reads torch tensors through the DLPack C exchange table, everything else through `__dlpack__` or the buffer
/// protocol. A tuple (array, "bfloat16") is a 16-bit array whose bits mean bfloat16: NumPy cannot say so itself.
[[nodiscard]] TensorArgument read_tensor(nanobind::handle object, const Argument& argument,
                                         Access access = Access::read);

[[nodiscard]] DType dtype_from_name(std::string_view name, const Argument& argument);

}  // namespace robocache::python
