# ROBOCACHE_CUDA=EMULATED: the CUDA code is translated to C++ and runs on a GPU that is emulated on the CPU
# (tests/cpp/emulation), so that machines without a GPU test what the kernels compute. For tests only.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    message(FATAL_ERROR "ROBOCACHE_CUDA=EMULATED needs x86-64")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(ROBOCACHE_EMULATION ${PROJECT_SOURCE_DIR}/tests/cpp/emulation)
set(ROBOCACHE_TRANSLATED ${PROJECT_BINARY_DIR}/translated)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cu ${PROJECT_SOURCE_DIR}/src/*.cuh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_sources} ${ROBOCACHE_EMULATION}/translate.py)
execute_process(
    COMMAND ${Python3_EXECUTABLE} ${ROBOCACHE_EMULATION}/translate.py ${PROJECT_SOURCE_DIR}/src ${ROBOCACHE_TRANSLATED}
    COMMAND_ERROR_IS_FATAL ANY)
add_library(robocache_emulation OBJECT ${ROBOCACHE_EMULATION}/device.cpp ${ROBOCACHE_EMULATION}/runtime.cpp)
target_include_directories(robocache_emulation PUBLIC ${ROBOCACHE_EMULATION} ${ROBOCACHE_EMULATION}/include)
target_compile_options(robocache_emulation PRIVATE -frounding-math -ffp-contract=off ${ROBOCACHE_SANITIZE_OPTIONS})
set(ROBOCACHE_HAS_CUDA ON)

# Adds the CUDA files of a layer to its target, translated.
function(robocache_emulate target)
    target_include_directories(${target} BEFORE PRIVATE ${ROBOCACHE_TRANSLATED})
    target_include_directories(${target} PRIVATE ${ROBOCACHE_EMULATION} ${ROBOCACHE_EMULATION}/include)
    target_compile_definitions(${target} PRIVATE ROBOCACHE_HAS_CUDA)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
    foreach(file IN LISTS ARGN)
        if(file MATCHES "\\.cu$")
            set(file ${ROBOCACHE_TRANSLATED}/${folder}/${file}.cpp)
            set_source_files_properties(${file} PROPERTIES
                COMPILE_DEFINITIONS "__CUDACC__;__CUDA_ARCH__=900"
                COMPILE_OPTIONS "-include;cuda_runtime.h;-Wno-unknown-pragmas;-Wno-unused-variable;-Wno-conversion;-Wno-psabi")
        endif()
        target_sources(${target} PRIVATE ${file})
    endforeach()
endfunction()
