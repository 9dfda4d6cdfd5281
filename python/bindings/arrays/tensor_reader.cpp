// Reading arrays of any framework.
#include "arrays/tensor_reader.hpp"

#include <nanobind/stl/string.h>

#include <atomic>
#include <string>
#include <unordered_map>

#include "arrays/known.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

constexpr std::string_view supported_dtypes =
    "float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64 or bool";

DType convert(dlpack::DataType type, const Argument& argument) {
    if (type.lanes == 1) {
        const int key = type.code * 1000 + type.bits;
        switch (key) {
            case 6008: return DType::boolean;
            case 1008: return DType::u8;
            case 1016: return DType::u16;
            case 1032: return DType::u32;
            case 1064: return DType::u64;
            case 8: return DType::i8;
            case 16: return DType::i16;
            case 32: return DType::i32;
            case 64: return DType::i64;
            case 2016: return DType::f16;
            case 2032: return DType::f32;
            case 2064: return DType::f64;
            case 4016: return DType::bf16;
            default: break;
        }
    }
    const char* kind = type.code == 5 ? "complex" : type.code == 2 ? "float" : "DLPack code ";
    std::string given = kind;
    if (type.code != 5 && type.code != 2) given += std::to_string(type.code) + ", bits ";
    fail(argument.op, argument.name, "have a dtype of " + std::string(supported_dtypes),
         given + std::to_string(type.bits));
}

void set_shape(TensorView& view, int rank, const std::int64_t* shape, const std::int64_t* strides,
               const Argument& argument) {
    if (rank > TensorView::max_rank) {
        fail(argument.op, argument.name, "have at most 8 dimensions", std::to_string(rank));
    }
    view.rank = rank;
    std::int64_t contiguous = 1;
    for (int d = rank - 1; d >= 0; --d) {
        view.shape[d] = shape[d];
        view.strides[d] = strides != nullptr ? strides[d] : contiguous;
        contiguous *= shape[d];
    }
}

/// The exchange table of the object's type, or null. Looked up once per type.
const dlpack::ExchangeApi* exchange_api(nb::handle object) {
    static auto& apis = *new std::unordered_map<PyObject*, const dlpack::ExchangeApi*>;
    static nb::ft_mutex mutex;  // without a GIL; nothing otherwise
    PyObject* type = object.type().ptr();
    {
        const nb::ft_lock_guard lock(mutex);
        const auto found = apis.find(type);
        if (found != apis.end()) return found->second;
    }
    const dlpack::ExchangeApi* api = nullptr;
    if (PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"); capsule != nullptr) {
        api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
        Py_DECREF(capsule);  // the table is static in its library
    }
    PyErr_Clear();
    while (api != nullptr && api->version_major != 1) api = api->older;
    if (api != nullptr && api->tensor_from_py_object == nullptr) api = nullptr;
    const nb::ft_lock_guard lock(mutex);
    if (apis.emplace(type, api).second) Py_INCREF(type);  // the key must not be reused for another type
    return api;
}

/// str(object) of Python.
std::string text_of(nb::handle object) {
    return nb::cast<std::string>(nb::str(object));
}

/// The expression that makes a readable array of the object, or nothing if there is none.
std::string repair_of(nb::handle object) {
    if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) return "np.asarray(x)";
    if (nb::hasattr(object, "layout") && text_of(nb::object(object.attr("layout"))).starts_with("torch.sparse")) {
        return "x.to_dense()";
    }
    if (!nb::hasattr(object, "dtype")) return "";
    const nb::object dtype = object.attr("dtype");
    if (nb::hasattr(dtype, "isnative") && !nb::cast<bool>(dtype.attr("isnative"))) {
        return "x.astype(x.dtype.newbyteorder('='))";
    }
    const std::string name = text_of(dtype);
    for (const char* kind : {"datetime64", "timedelta64"}) {
        if (name.starts_with(kind)) return std::string("x.astype('") + kind + "[ns]')";
    }
    return "";
}

[[noreturn]] void fail_unreadable(nb::handle object, const Argument& argument, Access access) {
    std::string why;  // what the array's own library said; taken first, since Python must not be called with it pending
    if (PyErr_Occurred() != nullptr) {
        const nb::python_error error;
        const std::string said = text_of(error.value());
        why = " (" + said.substr(0, said.find('\n')) + ")";  // torch appends a stack trace
    }
    std::string given = text_of(object.type());
    if (access == Access::write && nb::hasattr(object, "flags") && nb::hasattr(object.attr("flags"), "writeable") &&
        !nb::cast<bool>(object.attr("flags").attr("writeable"))) {
        given = "read-only " + given;
    }
    if (nb::hasattr(object, "dtype")) given += " of dtype " + text_of(nb::object(object.attr("dtype")));
    std::string rule = access == Access::write ? "be a writable NumPy, torch or CuPy array of a supported dtype"
                                               : "be a NumPy, torch, JAX or CuPy array of a supported dtype";
    if (const std::string repair = repair_of(object); access == Access::read && !repair.empty()) {
        rule += " (" + repair + ")";
    }
    fail(argument.op, argument.name, rule, given + why);
}

/// Fake tensors and tensors that are zero without being written anywhere have no memory: their address is null, and
/// that of a view of one its offset from null.
void require_data(const TensorView& view, nb::handle object, const Argument& argument) {
    const auto address = reinterpret_cast<std::uintptr_t>(view.data);
    if (address >> 32 != 0 || view.num_elements() == 0) return;  // no offset is so large
    std::uintptr_t offset = 0;
    if (address != 0) {
        if (!nb::hasattr(object, "storage_offset")) return;
        const nb::int_ elements(object.attr("storage_offset")());
        offset = nb::cast<std::uintptr_t>(elements) * static_cast<std::uintptr_t>(size_bytes(view.dtype));
    }
    if (address == offset) fail(argument.op, argument.name, "be in memory", text_of(object.type()) + " without any");
}

TensorView read_through_table(const dlpack::ExchangeApi& api, nb::handle object, const Argument& argument) {
    dlpack::Tensor tensor{};
    if (api.tensor_from_py_object(object.ptr(), &tensor) != 0) fail_unreadable(object, argument, Access::read);
    TensorView view;
    set_shape(view, tensor.rank, tensor.shape, tensor.strides, argument);
    view.dtype = convert(tensor.dtype, argument);
    view.device = {static_cast<DeviceType>(tensor.device.type), tensor.device.index};
    view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    require_data(view, object, argument);
    return view;
}

void refuse_mask(nb::handle object, const Argument& argument) {
    static constinit Known masked;
    if (!nb::isinstance(object, masked.attribute("numpy.ma", "MaskedArray"))) return;
    fail(argument.op, argument.name, "be an array without a mask, which nothing would read: x.filled(...) or x.data",
         text_of(object.type()));
}

/// An array of integers with the bits of another array.
struct SameBits {
    nb::object array;
    DType dtype;
};

/// For NumPy and CuPy arrays of a dtype that DLPack has no name for: bfloat16, and times in nanoseconds. Keeps a
/// pending Python error where there is no such array.
std::optional<SameBits> same_bits(nb::handle object) {
    std::optional<nb::python_error> pending;
    if (PyErr_Occurred() != nullptr) pending.emplace();
    if (nb::hasattr(object, "dtype") && nb::hasattr(object, "view")) {
        const std::string dtype = text_of(nb::object(object.attr("dtype")));
        if (dtype == "bfloat16") return SameBits{object.attr("view")("uint16"), DType::bf16};
        if (dtype == "datetime64[ns]" || dtype == "timedelta64[ns]") {
            return SameBits{object.attr("view")("int64"), DType::i64};
        }
    }
    if (pending) pending->restore();
    return std::nullopt;
}

bool is_on_cuda(nb::handle object) {
    if (!nb::hasattr(object, "__dlpack_device__")) return false;
    const nb::object device = object.attr("__dlpack_device__")();
    return nb::cast<int>(nb::int_(device[nb::int_(0)])) == static_cast<int>(DeviceType::cuda);
}

}  // namespace

TensorReader::TensorReader(nb::handle queue) {
    if (queue.is_none()) return;
    const auto pair = nb::borrow<nb::tuple>(queue);
    stream_ = CudaQueue{reinterpret_cast<void*>(nb::cast<std::uintptr_t>(pair[0]))};
    type_ = pair[1];
}

TensorView TensorReader::read(nb::handle object, const Argument& argument, Access access) {
    if (const dlpack::ExchangeApi* api = exchange_api(object)) {
        const TensorView view = read_through_table(*api, object, argument);
        if (view.device.type != DeviceType::cuda || api == api_) return view;
        if (!stream_) {  // the first one
            stream_.emplace();
            api_ = api;
            const auto type = static_cast<std::int32_t>(view.device.type);
            if (api->current_work_stream(type, view.device.index, &stream_->handle) != 0) throw nb::python_error();
            return view;
        }
    }
    return read_through_export(object, argument, access);
}

/// False, with a Python error pending in most cases, where the array cannot be exported.
bool TensorReader::try_export(nb::handle object, Access access, nb::ndarray<nb::ro>& array) const {
    nb::object source = nb::borrow(object);
    try {
        if (stream_ && is_on_cuda(object)) source = ready_on_stream(object);
    } catch (nb::python_error& error) {
        error.restore();
        return false;
    }
    if (access == Access::read) return nb::try_cast(source, array, false);
    nb::ndarray<> writable;
    if (!nb::try_cast(source, writable, false)) return false;
    array = nb::ndarray<nb::ro>(writable.handle());
    return true;
}

TensorView TensorReader::read_through_export(nb::handle object, const Argument& argument, Access access) {
    if (nb::isinstance<AbstractArray>(object)) return nb::cast<const AbstractArray&>(object).view;
    refuse_mask(object, argument);
    nb::ndarray<nb::ro> array;
    if (!try_export(object, access, array)) {
        const std::optional<SameBits> same = same_bits(object);
        if (!same) fail_unreadable(object, argument, access);
        TensorView view = read_through_export(same->array, argument, access);
        view.dtype = same->dtype;
        return view;
    }
    TensorView view;
    set_shape(view, static_cast<int>(array.ndim()), array.shape_ptr(), array.stride_ptr(), argument);
    const nb::dlpack::dtype dtype = array.dtype();
    view.dtype = convert({dtype.code, dtype.bits, dtype.lanes}, argument);
    view.device = {static_cast<DeviceType>(array.device_type()), array.device_id()};
    view.data = const_cast<void*>(static_cast<const void*>(array.data()));
    require_data(view, object, argument);
    if (view.device.type == DeviceType::cuda && !object.type().is(type_)) must_wait_ = true;
    exported_.push_back(std::move(array));
    return view;
}

/// A DLPack capsule of an array whose owner has seen to it that our stream finds it written.
nb::object TensorReader::ready_on_stream(nb::handle object) const {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream_->handle);
    const std::uintptr_t stream = handle == 0 ? 1 : handle;  // DLPack's number of the legacy default stream
    return object.attr("__dlpack__")(nb::arg("stream") = stream);
}

bool is_plain_tensor(nb::handle object) {
    static constinit std::atomic<PyObject*> tensor_type = nullptr;  // of torch, once somebody has imported it
    static constinit Known requires_grad;
    static constinit Known is_neg;
    PyObject* type = object.type().ptr();
    if (PyObject* known = tensor_type.load(std::memory_order_relaxed); type != known) {
        if (known != nullptr || exchange_api(object) == nullptr) return false;
        if (text_of(object.type()) != "<class 'torch.Tensor'>") return false;
        tensor_type.store(type, std::memory_order_relaxed);  // exchange_api keeps it alive
    }
    const nb::object grad = nb::steal(PyObject_GetAttr(object.ptr(), requires_grad.interned("requires_grad")));
    PyObject* const self = object.ptr();
    const nb::object negative = nb::steal(PyObject_VectorcallMethod(is_neg.interned("is_neg"), &self, 1, nullptr));
    if (!grad.is_valid() || !negative.is_valid()) throw nb::python_error();
    if (grad.ptr() != Py_False || negative.ptr() != Py_False) return false;
    dlpack::Tensor tensor{};
    if (exchange_api(object)->tensor_from_py_object(object.ptr(), &tensor) != 0) {  // sparse, or on another device
        PyErr_Clear();
        return false;
    }
    return tensor.device.type >= static_cast<std::int32_t>(DeviceType::cpu) &&
           tensor.device.type <= static_cast<std::int32_t>(DeviceType::cuda_host);
}

DType dtype_from_name(std::string_view given, const Argument& argument) {
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
        if (given == name(static_cast<DType>(i))) return static_cast<DType>(i);
    }
    fail(argument.op, argument.name, "be " + std::string(supported_dtypes), given);
}

std::string_view text(nb::handle object) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<std::size_t>(size)};
}

std::string repr_of(nb::handle object) {
    return nb::cast<std::string>(nb::repr(object));
}

}  // namespace robocache::python
