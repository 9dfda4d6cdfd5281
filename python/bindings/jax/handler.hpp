// What every XLA FFI handler uses: buffers of XLA as views, packed options, errors as XLA expects them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cuda/memory.hpp"
#include "robocache/errors.hpp"
#include "robocache/tensor.hpp"
#include "xla/ffi/api/ffi.h"

namespace robocache::python::xla_ffi {

namespace ffi = xla::ffi;

enum class Platform { cpu, cuda };

/// Note [int64 without x64]: JAX has no int64 arrays unless jax_enable_x64 is set. An array that the contract wants as
/// int64 (times in nanoseconds, offsets, episodes, indexes) then travels as int32 of shape (..., 2): the same bytes,
/// lower half first. No array of these roles is int32 otherwise, so the dtype tells the two forms apart.
enum class Role {
    plain,  ///< the dtype is what the contract sees
    wide,   ///< int64, or its halves
};

inline DType dtype_of(ffi::DataType type) {
    switch (type) {
        case ffi::DataType::PRED: return DType::boolean;
        case ffi::DataType::U8: return DType::u8;
        case ffi::DataType::U16: return DType::u16;
        case ffi::DataType::U32: return DType::u32;
        case ffi::DataType::U64: return DType::u64;
        case ffi::DataType::S8: return DType::i8;
        case ffi::DataType::S16: return DType::i16;
        case ffi::DataType::S32: return DType::i32;
        case ffi::DataType::S64: return DType::i64;
        case ffi::DataType::F16: return DType::f16;
        case ffi::DataType::BF16: return DType::bf16;
        case ffi::DataType::F32: return DType::f32;
        case ffi::DataType::F64: return DType::f64;
        default: throw Unsupported("robocache: no view of an XLA buffer of type " + std::to_string(int(type)));
    }
}

inline TensorView view_of(const ffi::AnyBuffer& buffer, Device device, Role role) {
    TensorView view;
    view.data = buffer.untyped_data();
    view.dtype = dtype_of(buffer.element_type());
    view.device = device;
    const auto dimensions = buffer.dimensions();
    std::size_t rank = dimensions.size();
    if (role == Role::wide && view.dtype == DType::i32 && rank > 0 && dimensions[rank - 1] == 2) {
        view.dtype = DType::i64;
        --rank;
    }
    if (rank > static_cast<std::size_t>(TensorView::max_rank)) {
        throw InvalidArgument("robocache: arrays must have at most 8 dimensions, got " + std::to_string(rank));
    }
    view.rank = static_cast<int>(rank);
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.shape[d] = dimensions[static_cast<std::size_t>(d)];
        view.strides[d] = stride;
        stride *= view.shape[d];
    }
    return view;
}

/// Operands and results of one call, taken one after the other in the order in which the Python side passes them.
class Buffers {
public:
    Buffers(Platform platform, ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {
        if (platform == Platform::cuda) device_ = {DeviceType::cuda, current_device()};
    }

    TensorView operand(Role role = Role::plain) {
        const auto buffer = args_.get<ffi::AnyBuffer>(next_arg_++);
        if (!buffer.has_value()) throw std::logic_error("robocache: operands: " + buffer.error().message());
        return view_of(buffer.value(), device_, role);
    }
    TensorView result(Role role = Role::plain) {
        auto buffer = rets_.get<ffi::AnyBuffer>(next_ret_++);
        if (!buffer.has_value()) throw std::logic_error("robocache: results: " + buffer.error().message());
        return view_of(*buffer.value(), device_, role);
    }
    /// The last result, where the plan needs one.
    Workspace workspace(std::int64_t bytes) {
        if (bytes == 0) return {};
        const TensorView view = result();
        return {view.data, view.num_elements()};
    }

private:
    ffi::RemainingArgs args_;
    ffi::RemainingRets rets_;
    Device device_;
    std::size_t next_arg_ = 0;
    std::size_t next_ret_ = 0;
};

/// Options as XLA attributes: an array of int64 and one of float64, written by the trace and read by the handler.
struct Packed {
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
};

class Unpacker {
public:
    Unpacker(ffi::Span<const std::int64_t> integers, ffi::Span<const double> reals)
        : integers_(integers), reals_(reals) {}

    std::int64_t integer() {
        if (next_integer_ >= integers_.size()) throw std::logic_error("robocache: too few integers in the attributes");
        return integers_[next_integer_++];
    }
    bool flag() { return integer() != 0; }
    template <class Enum>
    Enum as() {
        return static_cast<Enum>(integer());
    }
    double real() {
        if (next_real_ >= reals_.size()) throw std::logic_error("robocache: too few numbers in the attributes");
        return reals_[next_real_++];
    }

private:
    ffi::Span<const std::int64_t> integers_;
    ffi::Span<const double> reals_;
    std::size_t next_integer_ = 0;
    std::size_t next_real_ = 0;
};

/// The five errors of the library, with their messages unchanged.
template <class Function>
ffi::Error guarded(Function&& function) {
    try {
        std::forward<Function>(function)();
        return ffi::Error::Success();
    } catch (const InvalidArgument& e) {
        return {ffi::ErrorCode::kInvalidArgument, e.what()};
    } catch (const Unsupported& e) {
        return {ffi::ErrorCode::kUnimplemented, e.what()};
    } catch (const FormatError& e) {
        return {ffi::ErrorCode::kDataLoss, e.what()};
    } catch (const OutOfMemory& e) {
        return {ffi::ErrorCode::kResourceExhausted, e.what()};
    } catch (const std::bad_alloc&) {
        return {ffi::ErrorCode::kResourceExhausted, "robocache: out of host memory"};
    } catch (const std::exception& e) {
        return {ffi::ErrorCode::kInternal, e.what()};
    }
}

/// How an op computes: `Call(buffers, names, options, queue)`.
using Compute = void (*)(Buffers& buffers, std::string_view names, Unpacker options, CudaQueue queue);

template <Compute compute>
ffi::Error run_on_cpu(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view names,
                      ffi::Span<const std::int64_t> integers, ffi::Span<const double> reals) {
    return guarded([&] {
        Buffers buffers(Platform::cpu, args, rets);
        compute(buffers, names, Unpacker(integers, reals), {});
    });
}

template <Compute compute>
ffi::Error run_on_cuda(void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view names,
                       ffi::Span<const std::int64_t> integers, ffi::Span<const double> reals) {
    return guarded([&] {
        Buffers buffers(Platform::cuda, args, rets);
        compute(buffers, names, Unpacker(integers, reals), {stream});
    });
}

/// All options of a call are attributes of these three names.
template <class Binding>
auto with_options(Binding&& binding) {
    return std::forward<Binding>(binding)
        .RemainingArgs()
        .RemainingRets()
        .template Attr<std::string_view>("names")
        .template Attr<ffi::Span<const std::int64_t>>("integers")
        .template Attr<ffi::Span<const double>>("reals");
}

template <Compute compute>
XLA_FFI_Error* call_cpu(XLA_FFI_CallFrame* frame) {
    static auto* const handler = with_options(ffi::Ffi::Bind()).To(run_on_cpu<compute>).release();
    return handler->Call(frame);
}

template <Compute compute, bool waits>
XLA_FFI_Error* call_cuda(XLA_FFI_CallFrame* frame) {
    static auto* const handler = [] {
        auto binding = with_options(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>());
        if constexpr (waits)
            return std::move(binding).To(run_on_cuda<compute>).release();
        else
            return std::move(binding).To(run_on_cuda<compute>, {ffi::Traits::kCmdBufferCompatible}).release();
    }();
    return handler->Call(frame);
}

/// The handlers of one op. A call that copies data to the host and waits for it (check=True, outside="error") takes
/// `cuda_waiting`, because a command buffer (a CUDA graph of XLA) must not contain it.
struct Handlers {
    const char* name;
    XLA_FFI_Handler* cpu;
    XLA_FFI_Handler* cuda;
    XLA_FFI_Handler* cuda_waiting;
};

template <Compute compute>
Handlers handlers(const char* name) {
    return {name, &call_cpu<compute>, &call_cuda<compute, false>, &call_cuda<compute, true>};
}

[[nodiscard]] std::vector<Handlers> align_handlers();
[[nodiscard]] std::vector<Handlers> voxelize_handlers();
[[nodiscard]] std::vector<Handlers> decode_handlers();

}  // namespace robocache::python::xla_ffi
