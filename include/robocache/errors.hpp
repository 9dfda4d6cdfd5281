// The five exceptions of RoboCache. Everything the library throws on purpose derives from Error.
#pragma once

#include <stdexcept>
#include <string>

namespace robocache {

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

}  // namespace robocache
