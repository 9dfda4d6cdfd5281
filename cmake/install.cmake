# Installs the C++ library with a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/robocache)

install(TARGETS robocache EXPORT robocacheTargets)
install(DIRECTORY include/robocache DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE THIRD_PARTY_NOTICES.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT robocacheTargets NAMESPACE robocache:: DESTINATION ${package_dir})
configure_package_config_file(cmake/robocacheConfig.cmake.in ${PROJECT_BINARY_DIR}/robocacheConfig.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/robocacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/robocacheConfig.cmake ${PROJECT_BINARY_DIR}/robocacheConfigVersion.cmake
    DESTINATION ${package_dir})

# The prefix is found from where the .pc file lies: cmake --install --prefix may choose another one than the build knew.
file(RELATIVE_PATH ROBOCACHE_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
# A static library needs its own dependencies in the link of each program, also without `pkg-config --static`. dlopen is in a library
# of its own before glibc 2.34.
set(ROBOCACHE_PC_DEPENDENCIES "-pthread -lstdc++ -ldl")
if(ROBOCACHE_HAS_CUDA)
    string(APPEND ROBOCACHE_PC_DEPENDENCIES " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
get_target_property(library_type robocache TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
    set(ROBOCACHE_PC_LIBS " ${ROBOCACHE_PC_DEPENDENCIES}")
    set(ROBOCACHE_PC_PRIVATE "")
else()
    set(ROBOCACHE_PC_LIBS "")
    set(ROBOCACHE_PC_PRIVATE "${ROBOCACHE_PC_DEPENDENCIES}")
endif()
configure_file(cmake/robocache.pc.in ${PROJECT_BINARY_DIR}/robocache.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/robocache.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
