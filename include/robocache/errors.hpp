// The five exceptions of RoboCache, and how their messages name an argument. Everything the library throws on purpose
// derives from Error.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace robocache {

/// The base of every exception that the library throws by itself.
class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// An argument breaks a rule of the contract. Nothing was written. Python: ValueError.
class InvalidArgument : public Error {
    using Error::Error;
};

/// A valid request that this build or this device cannot serve. Python: NotImplementedError.
class Unsupported : public Error {
    using Error::Error;
};

/// A file or a log does not conform to its format. Python: robocache.FormatError.
class FormatError : public Error {
    using Error::Error;
};

/// Memory of the host or of a device ran out. Python: MemoryError.
class OutOfMemory : public Error {
    using Error::Error;
};

/// A CUDA call failed. Python: RuntimeError.
class CudaError : public Error {
    using Error::Error;
};

/// What messages call an argument: "times", "streams[2].times", "out[0]". Becomes text only where there is a message.
struct ArgumentName {
    std::string_view name;
    std::string_view list;  // not empty: `name` is a field of item i of this list
    std::size_t i = 0;

    ArgumentName(std::string_view argument) : name(argument) {}
    ArgumentName(const char* argument) : name(argument) {}
    ArgumentName(const std::string& argument) : name(argument) {}
    ArgumentName(std::string_view of, std::size_t item, std::string_view field) : name(field), list(of), i(item) {}

    [[nodiscard]] std::string text() const {
        if (list.empty()) return std::string(name);
        const std::string item = std::string(list) + "[" + std::to_string(i) + "]";
        return name.empty() ? item : item + "." + std::string(name);
    }
};

}  // namespace robocache
