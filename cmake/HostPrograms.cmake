# The programs that generate code run on the machine that builds. A build for another machine takes them from
# DISTILE_HOST_BUILD, a build tree of the same source for this one; each build updates them there first.

set(DISTILE_HOST_BUILD "" CACHE PATH "For cross-compiling: a build tree of the same source for the machine that builds")
if (NOT CMAKE_CROSSCOMPILING)
    return()
endif ()
if (NOT DISTILE_HOST_BUILD)
    message(FATAL_ERROR "This build is for ${CMAKE_SYSTEM_PROCESSOR}, and generated code comes from programs that run here: "
                        "name a build tree for this machine in DISTILE_HOST_BUILD")
endif ()
distile_check_build_tree(DISTILE_HOST_BUILD)

# distile_take_program(<target> <file in the other build tree> [<what builds it there>]): adds an imported program,
# which a target of the same name builds there unless another is named.
function(distile_take_program target file)
    add_executable(${target} IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${DISTILE_HOST_BUILD}/${file}")
    list(APPEND ARGN ${target})
    list(GET ARGN 0 builds)
    set_property(GLOBAL APPEND PROPERTY distile_host_targets ${builds})
    set_property(GLOBAL APPEND PROPERTY distile_host_files "${DISTILE_HOST_BUILD}/${file}")
endfunction()

distile_take_program(distile_builder autoscheduler/distile_builder)
add_executable(distile::builder ALIAS distile_builder)
distile_take_program(distile_generators autoscheduler/distile_generators)
add_library(distile::PolyKernel MODULE IMPORTED GLOBAL)
set(plugin autoscheduler/libautoschedule_polykernel.so)
set_target_properties(distile::PolyKernel PROPERTIES IMPORTED_LOCATION "${DISTILE_HOST_BUILD}/${plugin}")
set_property(GLOBAL APPEND PROPERTY distile_host_files "${DISTILE_HOST_BUILD}/${plugin}")

# Builds them there; called once, after the last is added.
function(distile_build_host_programs)
    get_property(targets GLOBAL PROPERTY distile_host_targets)
    get_property(files GLOBAL PROPERTY distile_host_files)
    add_custom_target(distile_host_programs
        COMMAND ${CMAKE_COMMAND} --build "${DISTILE_HOST_BUILD}" --target ${targets}
        BYPRODUCTS ${files}
        USES_TERMINAL COMMENT "Building the programs that generate code in ${DISTILE_HOST_BUILD}" VERBATIM)
endfunction()
cmake_language(DEFER CALL distile_build_host_programs)
