# distile_add_polykernel(<target> OPERATOR <operator.json> PLAN <plan.json>)
#
# Builds the PolyKernel of a plan: a static library <target> and a header <target>.h that declares
#
#     extern const distile_polykernel <target>;
#
# Every variant is one add_halide_library with the autoscheduler distile::PolyKernel. The variants, the descriptor
# and one Halide runtime are then joined into one object of which only the symbol <target> is visible, so that an
# application may hold any other Halide runtime beside it. Changing either file rebuilds the library.
#
# Used by the project itself and, from where it is installed, by others: what it needs are targets in distile::. The
# property distile_polykernels of a folder lists those that were built there.

function(_distile_json result json)
    string(JSON value ERROR_VARIABLE error GET "${json}" ${ARGN})
    if (error)
        list(JOIN ARGN "." path)
        message(FATAL_ERROR "distile_add_polykernel: '${_distile_file}' has no ${path} (${error})")
    endif ()
    set(${result} "${value}" PARENT_SCOPE)
endfunction()

function(distile_add_polykernel target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "OPERATOR;PLAN" "")
    if (NOT arg_OPERATOR OR NOT arg_PLAN OR arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "distile_add_polykernel(<target> OPERATOR <file> PLAN <file>)")
    endif ()
    if (NOT target MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
        message(FATAL_ERROR "distile_add_polykernel: the target '${target}' names a C symbol: letters, digits and _")
    endif ()
    cmake_path(ABSOLUTE_PATH arg_OPERATOR BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    cmake_path(ABSOLUTE_PATH arg_PLAN BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    foreach (file IN ITEMS "${arg_OPERATOR}" "${arg_PLAN}")
        if (NOT EXISTS "${file}")
            message(FATAL_ERROR "distile_add_polykernel: the file '${file}' does not exist")
        endif ()
    endforeach ()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${arg_OPERATOR}" "${arg_PLAN}")

    # The operator's parameters are the generator's, by their own names.
    set(_distile_file "${arg_OPERATOR}")
    file(READ "${arg_OPERATOR}" operator)
    _distile_json(generator "${operator}" generator)
    _distile_json(params "${operator}" params)
    set(generator_params "")
    string(JSON num_params LENGTH "${params}")
    if (num_params GREATER 0)
        math(EXPR last "${num_params} - 1")
        foreach (i RANGE ${last})
            string(JSON key MEMBER "${params}" ${i})
            string(JSON type TYPE "${params}" "${key}")
            string(JSON value GET "${params}" "${key}")
            if (type STREQUAL "BOOLEAN")
                string(REPLACE "ON" "true" value "${value}")
                string(REPLACE "OFF" "false" value "${value}")
            endif ()
            list(APPEND generator_params "${key}=${value}")
        endforeach ()
    endif ()

    set(_distile_file "${arg_PLAN}")
    file(READ "${arg_PLAN}" plan)
    _distile_json(halide_target "${plan}" target)
    _distile_json(variants "${plan}" variants)
    string(JSON num_variants LENGTH "${variants}")
    if (NOT num_variants GREATER 0)
        message(FATAL_ERROR "distile_add_polykernel: '${arg_PLAN}' has no variants")
    endif ()

    # What every PolyKernel holds beside its variants lies beside the distile command. Code for a GPU has a layout of the
    # weights of its own, and calls back more.
    set(tools "$<TARGET_FILE_DIR:distile::command>")
    set(hooks "${tools}/distile_hooks.o")
    set(halide_runtime "${tools}/distile_halide_runtime.o")
    _distile_json(backend "${plan}" backend)
    if (backend STREQUAL "cuda")
        if (NOT TARGET distile::cuda)
            message(FATAL_ERROR "distile_add_polykernel: '${arg_PLAN}' is for NVIDIA GPUs, and distile was built "
                                "without a CUDA toolkit")
        endif ()
        list(APPEND hooks "${tools}/distile_cuda_hooks.o")
        list(APPEND generator_params channel_block=32)
    endif ()

    set(archives "")
    math(EXPR last "${num_variants} - 1")
    foreach (i RANGE ${last})
        _distile_json(name "${plan}" variants ${i} name)
        _distile_json(tile_h "${plan}" variants ${i} theta tile_h)
        _distile_json(tile_w "${plan}" variants ${i} theta tile_w)
        add_halide_library(${target}_${name} FROM distile::generators GENERATOR ${generator}
            USE_RUNTIME Halide::Runtime TARGETS ${halide_target}-user_context
            AUTOSCHEDULER distile::PolyKernel
            PARAMS ${generator_params} tile_h=${tile_h} tile_w=${tile_w}
                   autoscheduler.plan=${arg_PLAN} autoscheduler.variant=${name}
            DEPENDS "${arg_PLAN}")
        list(APPEND archives "$<TARGET_FILE:${target}_${name}>")
    endforeach ()

    set(base "${CMAKE_CURRENT_BINARY_DIR}/${target}")
    add_custom_command(
        OUTPUT "${base}.c" "${base}.h"
        COMMAND distile::command emit --operator "${arg_OPERATOR}" --plan "${arg_PLAN}" --symbol ${target}
                --source "${base}.c" --header "${base}.h"
        DEPENDS distile::command "${arg_OPERATOR}" "${arg_PLAN}"
        COMMENT "Writing the descriptor of ${target}" VERBATIM)
    add_library(${target}_descriptor OBJECT "${base}.c")
    target_link_libraries(${target}_descriptor PRIVATE distile::runtime)

    add_custom_command(
        OUTPUT "${base}.o"
        COMMAND "${CMAKE_LINKER}" -r --force-group-allocation --gc-sections -u ${target} -o "${base}.joined.o"
                "$<TARGET_OBJECTS:${target}_descriptor>" ${hooks} ${archives} "${halide_runtime}"
        COMMAND "${CMAKE_OBJCOPY}" --keep-global-symbol=${target} "${base}.joined.o" "${base}.o"
        DEPENDS ${target}_descriptor "$<TARGET_OBJECTS:${target}_descriptor>" ${hooks} ${archives}
                "${halide_runtime}"
        COMMAND_EXPAND_LISTS COMMENT "Joining the variants of ${target}" VERBATIM)
    add_library(${target} STATIC "${base}.o")
    set_source_files_properties("${base}.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${CMAKE_CURRENT_BINARY_DIR}" FILES "${base}.h")
    target_link_libraries(${target} PUBLIC distile::runtime)
    if (backend STREQUAL "cuda")
        target_link_libraries(${target} PUBLIC distile::cuda)
    endif ()
    set_property(DIRECTORY APPEND PROPERTY distile_polykernels ${target})
endfunction()
