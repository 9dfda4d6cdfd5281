# Decides whether CUDA code is compiled, and for which GPUs: sets ROBOCACHE_HAS_CUDA and, if ON, enables the language.
set(ROBOCACHE_HAS_CUDA OFF)
if(NOT ROBOCACHE_CUDA)
    return()
elseif(ROBOCACHE_CUDA STREQUAL "EMULATED")
    set(ROBOCACHE_EMULATED ON)  # cmake/emulation.cmake
    return()
endif()

# CMake before 4.1 predates CUDA 13 and would compile for a GPU that CUDA 13 has dropped, so the architectures are always set here:
# CMAKE_CUDA_ARCHITECTURES where it is given, all of them in a release, else those of the GPUs in this machine.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake)
if(ROBOCACHE_RELEASE_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${ROBOCACHE_ALL_ARCHITECTURES})
    set(architectures_from "a release")
elseif(DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(architectures_from "given by CMAKE_CUDA_ARCHITECTURES")
else()
    robocache_detect_architectures(CMAKE_CUDA_ARCHITECTURES architectures_from)
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    # The standard is set after the language is enabled: older CMake does not know that nvcc compiles C++20, and its test of
    # the compiler would fail.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(ROBOCACHE_HAS_CUDA ON)
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " shown)
    message(STATUS "robocache: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, compiled for compute capability ${shown} "
        "(${architectures_from})")
elseif(ROBOCACHE_CUDA STREQUAL "AUTO")
    message(STATUS "robocache: no nvcc found, compiled for the CPU only")
else()
    message(FATAL_ERROR "ROBOCACHE_CUDA is ON, but no CUDA compiler was found: put nvcc on the PATH or set CUDACXX")
endif()
