# robocache_harden(target): compiler flags against memory errors. tests/project/test_artefacts.py checks them in the module.
#   stack protector, stack clash   a buffer overrun on the stack ends the process before a return address is used
#   FORTIFY                        memcpy and others check sizes that the compiler knows; needs optimization
#   CET                            landing pads for indirect calls (x86-64)
#   RELRO, BIND_NOW, noexecstack   tables of addresses are read-only after loading, and the stack is never executed
# Not with sanitizers: they watch the same things and replace the functions that FORTIFY does.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-fstack-clash-protection ROBOCACHE_HAS_STACK_CLASH_PROTECTION)
check_cxx_compiler_flag(-fcf-protection=full ROBOCACHE_HAS_CF_PROTECTION)
# Level 3 needs GCC 12 and glibc 2.34. Older ones warn (glibc 2.33 and newer) or ignore it, and level 2 is what they have.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
check_cxx_source_compiles("
    #include <cstring>
    #if !defined(__USE_FORTIFY_LEVEL) || __USE_FORTIFY_LEVEL < 3
    #error level 3 is not supported
    #endif
    int main() { return 0; }" ROBOCACHE_HAS_FORTIFY_3)
unset(CMAKE_REQUIRED_FLAGS)
if(ROBOCACHE_HAS_FORTIFY_3)
    set(robocache_fortify_level 3)
else()
    set(robocache_fortify_level 2)
endif()

set(robocache_hardening -fstack-protector-strong)
if(ROBOCACHE_HAS_STACK_CLASH_PROTECTION)
    list(APPEND robocache_hardening -fstack-clash-protection)
endif()
if(ROBOCACHE_HAS_CF_PROTECTION)
    list(APPEND robocache_hardening -fcf-protection=full)
endif()

function(robocache_harden target)
    if(ROBOCACHE_SANITIZE)
        return()
    endif()
    list(JOIN robocache_hardening "," for_nvcc)
    set(optimized "$<OR:$<CONFIG:Release>,$<CONFIG:RelWithDebInfo>,$<CONFIG:MinSizeRel>>")
    set(fortify -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${robocache_fortify_level})
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:${robocache_hardening}>
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,${optimized}>:${fortify}>
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${for_nvcc}>
        $<$<AND:$<COMPILE_LANGUAGE:CUDA>,${optimized}>:-Xcompiler=-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=${robocache_fortify_level}>)
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL "STATIC_LIBRARY")
        target_link_options(${target} PRIVATE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
    endif()
endfunction()
