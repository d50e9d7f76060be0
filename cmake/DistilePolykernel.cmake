# distile_add_polykernel(<target> OPERATOR <operator.json> PLAN <plan.json>... [DTYPE <type>] [NO_PORTABLE])
#
# Builds the PolyKernel of an operator: a static library <target> and a header <target>.h that declares
#
#     extern const distile_polykernel <target>;
#
# Several plans serve several kinds of CPU; list the most demanding first. At run time the first plan that the CPU can
# run is taken. A portable plan that every x86-64 CPU runs (`distile portable`) follows, unless NO_PORTABLE leaves it
# out or the last plan is portable itself. DTYPE builds the operator in another type, for instance float16, with the
# schedules of its plans but without their times. A plan for a GPU stands alone; programs that run it link
# distile::cuda. CMake reads no plan: one command of distile_builder compiles all variants in parallel. All PolyKernels
# of a build share as many compilers as the machine has cores (or $DISTILE_JOBS). The command joins the variants with
# the descriptor and one Halide runtime into one object that exports only the symbol <target>, so an application may
# contain any other Halide runtime. Changing a file rebuilds the library. Intermediate files stay in the folder
# <target>_parts. Used by this project and, once installed, by others; all that it needs are targets in distile::. The
# property distile_polykernels of a folder lists the PolyKernels built there.

# GNU ld, whatever linker the build uses: joining needs --force-group-allocation, which lld 14 lacks.
find_program(DISTILE_LINKER NAMES ld.bfd ld REQUIRED DOC "The linker that joins the variants of a PolyKernel: GNU ld")
mark_as_advanced(DISTILE_LINKER)

function(distile_add_polykernel target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "NO_PORTABLE" "OPERATOR;DTYPE" "PLAN")
    if (NOT arg_OPERATOR OR NOT arg_PLAN OR arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "distile_add_polykernel(<target> OPERATOR <file> PLAN <file>... [DTYPE <type>] [NO_PORTABLE])")
    endif ()
    if (NOT target MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
        message(FATAL_ERROR "distile_add_polykernel: the target '${target}' names a C symbol: letters, digits and _")
    endif ()
    cmake_path(ABSOLUTE_PATH arg_OPERATOR BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    set(plans "")
    foreach (plan IN LISTS arg_PLAN)
        cmake_path(ABSOLUTE_PATH plan BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
        list(APPEND plans "${plan}")
    endforeach ()
    if (COMMAND distile_take_polykernel)
        distile_take_polykernel(${target})
        return()
    endif ()
    set(options "")
    if (arg_NO_PORTABLE)
        set(options --no-portable)
    endif ()
    if (arg_DTYPE)
        list(APPEND options --dtype "${arg_DTYPE}")
    endif ()

    # The builder's tools lie beside it. Once installed, the generators use the Halide that the project found.
    set(tools "$<TARGET_FILE_DIR:distile::builder>")
    set(base "${CMAKE_CURRENT_BINARY_DIR}/${target}")
    set(hooks "${tools}/distile_hooks.o")
    if (TARGET distile::cuda)
        list(APPEND hooks "${tools}/distile_cuda_hooks.o")
    endif ()
    add_custom_command(
        OUTPUT "${base}.o" "${base}.h"
        COMMAND ${CMAKE_COMMAND} -E env "CC=${CMAKE_C_COMPILER}"
                --modify "LD_LIBRARY_PATH=path_list_prepend:$<TARGET_FILE_DIR:Halide::Halide>" --
                $<TARGET_FILE:distile::builder> build
                --operator "${arg_OPERATOR}" --plan ${plans} ${options} --symbol ${target}
                --object "${base}.o" --header "${base}.h" --depfile "${base}.d" --folder "${base}_parts"
                --linker "${DISTILE_LINKER}" --objcopy "${CMAKE_OBJCOPY}" --slots "${CMAKE_BINARY_DIR}/distile_slots"
        DEPENDS "${arg_OPERATOR}" ${plans} distile::builder "$<TARGET_FILE:distile::builder>"
                "${tools}/distile_generators" "$<TARGET_FILE:distile::PolyKernel>" ${hooks}
                "${tools}/distile_halide_runtime.o"
        DEPFILE "${base}.d"
        COMMENT "Building the PolyKernel ${target}" VERBATIM)
    add_library(${target} STATIC "${base}.o")
    set_source_files_properties("${base}.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${CMAKE_CURRENT_BINARY_DIR}" FILES "${base}.h")
    target_link_libraries(${target} PUBLIC distile::runtime)
    set_property(DIRECTORY APPEND PROPERTY distile_polykernels ${target})
endfunction()
