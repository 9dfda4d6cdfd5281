# Decides whether the XLA FFI handlers are compiled: sets ROBOCACHE_JAX_HEADERS, the folder with xla/ffi/api/ffi.h, or empty.
# The headers are not in this repository. A handler runs on every jaxlib whose XLA FFI version is that of its headers or newer.
set(ROBOCACHE_JAX_HEADERS "")
if(NOT ROBOCACHE_JAX)
    return()
endif()

if(ROBOCACHE_JAX_INCLUDE_DIR)
    set(candidate "${ROBOCACHE_JAX_INCLUDE_DIR}")
else()
    # Found, not imported: an import of jaxlib would load all of XLA.
    execute_process(COMMAND "${Python_EXECUTABLE}" -c
        "import importlib.util as u, os; s = u.find_spec('jaxlib'); print(os.path.join(os.path.dirname(s.origin), 'include') if s else '')"
        OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE candidate ERROR_QUIET)
endif()

if(candidate AND EXISTS "${candidate}/xla/ffi/api/ffi.h")
    set(ROBOCACHE_JAX_HEADERS "${candidate}")
    file(STRINGS "${candidate}/xla/ffi/api/c_api.h" version_lines REGEX "^#define XLA_FFI_API_(MAJOR|MINOR) [0-9]+")
    list(TRANSFORM version_lines REPLACE "^.* ([0-9]+)$" "\\1")
    list(JOIN version_lines "." version)
    message(STATUS "robocache: JAX handlers, compiled with XLA FFI ${version} from ${candidate}")
elseif(ROBOCACHE_JAX STREQUAL "AUTO")
    message(STATUS "robocache: no jaxlib headers found, compiled without the handlers for jax.jit")
else()
    message(FATAL_ERROR "ROBOCACHE_JAX is ON, but there is no xla/ffi/api/ffi.h: install jaxlib 0.5 or newer for this "
        "Python, or set ROBOCACHE_JAX_INCLUDE_DIR to the folder 'include' of a jaxlib wheel")
endif()
