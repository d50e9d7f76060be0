# What `cmake --install` installs, in three components:
#
#   distile_runtime      the shared library, if there is one, for programs linked with it
#   distile_development  headers, libraries, the PolyKernels that ship, and the package for find_package
#   distile_compiler     the distile command, its compilers of plans, and operators, plans and device profiles
# The installed tree is relocatable.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
block()
set(development COMPONENT distile_development)
set(compiler COMPONENT distile_compiler)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/distile")
set(data_folder "${CMAKE_INSTALL_DATADIR}/distile")
# The command looks for its tools in its own folder.
set(tools_folder "${CMAKE_INSTALL_LIBDIR}/distile")
set(built "${PROJECT_BINARY_DIR}/install")
file(MAKE_DIRECTORY "${built}")

# Our licence, and notices for the third-party code compiled into the installation, with the versions found here.
foreach (package IN ITEMS CLI11 Eigen3 fmt nlohmann_json)
    find_package(${package} REQUIRED)
endforeach ()
find_file(stb_image stb/stb_image.h REQUIRED NO_CACHE)
file(STRINGS "${stb_image}" stb_image_version LIMIT_COUNT 1)
string(REGEX REPLACE ".* v([0-9.]+) .*" "\\1" stb_image_version "${stb_image_version}")
set(gcc_version "")
if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(gcc_version "${CMAKE_CXX_COMPILER_VERSION}")
endif ()
configure_file(cmake/THIRD_PARTY_NOTICES.in "${built}/THIRD_PARTY_NOTICES" @ONLY)
foreach (component IN ITEMS distile_runtime distile_development distile_compiler)
    install(FILES LICENSE "${built}/THIRD_PARTY_NOTICES" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ${component})
endforeach ()

# The runtime, static and shared under the same names: distile-config.cmake takes one of them.
install(DIRECTORY runtime/include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${development})
set_target_properties(distile_runtime PROPERTIES EXPORT_NAME runtime)
set(kinds static)
set(static distile_runtime)
if (TARGET distile_cuda)
    set_target_properties(distile_cuda PROPERTIES EXPORT_NAME cuda)
    list(APPEND static distile_cuda)
endif ()
if (TARGET distile_opencl)
    set_target_properties(distile_opencl PROPERTIES EXPORT_NAME opencl)
    list(APPEND static distile_opencl)
endif ()
if (TARGET distile_shared)
    set_target_properties(distile_shared PROPERTIES EXPORT_NAME runtime)
    list(APPEND kinds shared)
    set(shared distile_shared)
    if (TARGET distile_cuda)
        add_library(distile_shared_cuda INTERFACE)
        target_link_libraries(distile_shared_cuda INTERFACE distile_shared)
        set_target_properties(distile_shared_cuda PROPERTIES EXPORT_NAME cuda)
        list(APPEND shared distile_shared_cuda)
    endif ()
    if (TARGET distile_opencl)
        add_library(distile_shared_opencl INTERFACE)
        target_link_libraries(distile_shared_opencl INTERFACE distile_shared)
        set_target_properties(distile_shared_opencl PROPERTIES EXPORT_NAME opencl)
        list(APPEND shared distile_shared_opencl)
    endif ()
endif ()
foreach (kind IN LISTS kinds)
    install(TARGETS ${${kind}} EXPORT distile-${kind}
        ARCHIVE ${development}
        LIBRARY COMPONENT distile_runtime NAMELINK_COMPONENT distile_development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(EXPORT distile-${kind} NAMESPACE distile:: DESTINATION "${package_folder}" ${development})
endforeach ()

# The PolyKernels that ship.
if (DISTILE_BUILD_POLYKERNELS)
    get_property(polykernels DIRECTORY data PROPERTY distile_polykernels)
    install(TARGETS ${polykernels} EXPORT distile-polykernels
        ARCHIVE ${development} FILE_SET HEADERS ${development} INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(EXPORT distile-polykernels NAMESPACE distile:: DESTINATION "${package_folder}" ${development})
endif ()

# The command and its tools. Tools that need libHalide look for it in this installation, in CMAKE_INSTALL_RPATH, and
# where it was found; distile-config.cmake starts them with the user's Halide. An installation for another machine than
# the one that builds has no programs that generate code.
set_target_properties(distile_command PROPERTIES EXPORT_NAME command)
set(programs distile_command)
if (NOT CMAKE_CROSSCOMPILING)
    set_target_properties(distile_builder PROPERTIES EXPORT_NAME builder)
    set_target_properties(distile_polykernel PROPERTIES EXPORT_NAME PolyKernel)
    set_target_properties(distile_generators distile_polykernel PROPERTIES INSTALL_RPATH
        "\$ORIGIN/..;${CMAKE_INSTALL_RPATH};$<TARGET_FILE_DIR:Halide::Halide>")
    list(APPEND programs distile_builder distile_polykernel)
    install(TARGETS distile_generators RUNTIME DESTINATION "${tools_folder}" ${compiler})
endif ()
install(TARGETS ${programs} EXPORT distile-compiler
    RUNTIME DESTINATION "${tools_folder}" ${compiler} LIBRARY DESTINATION "${tools_folder}" ${compiler})
install(EXPORT distile-compiler NAMESPACE distile:: DESTINATION "${package_folder}" ${compiler})
set(objects distile_halide_runtime.o distile_hooks.o distile_gpu_hooks.o)
foreach (instructions IN LISTS DISTILE_DOT_PRODUCTS)
    list(APPEND objects distile_${instructions}.o)
endforeach ()
if (TARGET distile_cuda)
    list(APPEND objects distile_dp4a.o distile_cuda_bitmap.o distile_cuda_nonzeros.o distile_cuda_two_four.o distile_tensor_core.o)
endif ()
foreach (folder IN ITEMS facts kernels runtime/choice)
    install(DIRECTORY ${folder}/ DESTINATION "${tools_folder}/${folder}" ${compiler}
        FILES_MATCHING REGEX "\\.(h|cuh)$" PATTERN "cpu" EXCLUDE)
endforeach ()
install(DIRECTORY data/masks DESTINATION "${tools_folder}" ${compiler})
list(TRANSFORM objects PREPEND "${PROJECT_BINARY_DIR}/autoscheduler/")
install(FILES ${objects} DESTINATION "${tools_folder}" ${compiler})
foreach (folder IN ITEMS operators plans devices)
    install(DIRECTORY data/${folder} DESTINATION "${data_folder}" ${compiler})
endforeach ()

# All that an installation holds, and no tests and no benchmarks.
add_custom_target(distile_installed)
foreach (kind IN LISTS kinds)
    add_dependencies(distile_installed ${${kind}})
endforeach ()
if (DISTILE_BUILD_POLYKERNELS)
    add_dependencies(distile_installed ${polykernels})
endif ()
add_dependencies(distile_installed ${programs} distile_tools)

# Three links: the command on the PATH, and the headers and plans beside the command.
set(full_tools_folder "${CMAKE_INSTALL_FULL_LIBDIR}/distile")
file(RELATIVE_PATH command "${CMAKE_INSTALL_FULL_BINDIR}" "${full_tools_folder}/distile")
file(RELATIVE_PATH headers "${full_tools_folder}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
file(RELATIVE_PATH plans "${full_tools_folder}" "${CMAKE_INSTALL_FULL_DATADIR}/distile/plans")
file(CREATE_LINK "${command}" "${built}/distile" SYMBOLIC)
file(CREATE_LINK "${headers}" "${built}/include" SYMBOLIC)
file(CREATE_LINK "${plans}" "${built}/plans" SYMBOLIC)
install(FILES "${built}/distile" DESTINATION "${CMAKE_INSTALL_BINDIR}" ${compiler})
install(FILES "${built}/include" "${built}/plans" DESTINATION "${tools_folder}" ${compiler})

# The files for find_package and pkg-config.
configure_package_config_file(cmake/distile-config.cmake.in "${built}/distile-config.cmake"
    INSTALL_DESTINATION "${package_folder}" PATH_VARS data_folder NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${built}/distile-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${built}/distile-config.cmake" "${built}/distile-config-version.cmake"
    DESTINATION "${package_folder}" ${development})
install(FILES cmake/DistileArchitecture.cmake cmake/DistileHalide.cmake cmake/DistilePolykernel.cmake
    DESTINATION "${package_folder}" ${compiler})

file(RELATIVE_PATH prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" prefix "${prefix}")
# Programs that link the static library need what it needs. It has no part for GPUs, unlike the shared one.
set(libraries "-ldistile")
set(private_libraries "-lstdc++ -lm -ldl -pthread")
if (TARGET distile_cuda)
    string(PREPEND private_libraries "-ldistile_cuda -ldistile ")
endif ()
if (TARGET distile_opencl)
    string(PREPEND private_libraries "-ldistile_opencl -ldistile ")
endif ()
if (NOT TARGET distile_shared)
    string(APPEND libraries " ${private_libraries}")
endif ()
configure_file(cmake/distile.pc.in "${built}/distile.pc" @ONLY)
install(FILES "${built}/distile.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" ${development})
endblock()
