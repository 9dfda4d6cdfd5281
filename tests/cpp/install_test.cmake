# Installs the library into an empty prefix and uses it from outside: through find_package, and through pkg-config.
#   cmake -DBUILD=<build folder> -DSOURCE=<repository> -DWORK=<scratch> -P install_test.cmake
function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${ARGN}\n${output}")
    endif()
    message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/cpp -B ${WORK}/example -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/example)
run(${WORK}/example/align_arm)
run(${WORK}/example/control_loop)
run(${WORK}/example/voxelize_scan)

find_program(PKG_CONFIG pkg-config REQUIRED)
file(GLOB_RECURSE pc_file ${WORK}/prefix/*/robocache.pc)
get_filename_component(pc_dir ${pc_file} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs robocache
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags)
run(c++ -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror ${SOURCE}/examples/cpp/align_arm.cpp
    -o ${WORK}/with_pkg_config ${flags})
run(${WORK}/with_pkg_config)
