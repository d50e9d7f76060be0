# Generated code is the same in every build tree of a source, whatever the sanitizers and options of our own code. With
# DISTILE_POLYKERNELS_FROM, distile_add_polykernel takes PolyKernels from another build tree; each build of this tree
# updates them there first.

set(DISTILE_POLYKERNELS_FROM "" CACHE PATH "Another build tree of the same source, to take PolyKernels from")
if (NOT DISTILE_POLYKERNELS_FROM)
    return()
endif ()
distile_check_build_tree(DISTILE_POLYKERNELS_FROM)

# Adds the other build tree's target with this name.
function(distile_take_polykernel target)
    file(RELATIVE_PATH folder "${PROJECT_BINARY_DIR}" "${CMAKE_CURRENT_BINARY_DIR}")
    set(folder "${DISTILE_POLYKERNELS_FROM}/${folder}")
    add_library(${target} STATIC "${folder}/${target}.o")
    set_source_files_properties("${folder}/${target}.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${folder}" FILES "${folder}/${target}.h")
    target_link_libraries(${target} PUBLIC distile::runtime)
    add_dependencies(${target} distile_take_polykernels)
    set_property(DIRECTORY APPEND PROPERTY distile_polykernels ${target})
    set_property(GLOBAL APPEND PROPERTY distile_taken ${target})
    set_property(GLOBAL APPEND PROPERTY distile_taken_files "${folder}/${target}.o" "${folder}/${target}.h")
endfunction()

# Builds the PolyKernels there; called once, after the last is added.
function(distile_take_polykernels)
    get_property(targets GLOBAL PROPERTY distile_taken)
    get_property(files GLOBAL PROPERTY distile_taken_files)
    add_custom_target(distile_take_polykernels
        COMMAND ${CMAKE_COMMAND} --build "${DISTILE_POLYKERNELS_FROM}" --target ${targets}
        BYPRODUCTS ${files}
        USES_TERMINAL COMMENT "Building the PolyKernels in ${DISTILE_POLYKERNELS_FROM}" VERBATIM)
endfunction()
cmake_language(DEFER CALL distile_take_polykernels)
