# distile_add_polykernel(<target> OPERATOR <operator.json> PLAN <plan.json>)
#
# Builds the PolyKernel of a plan: a static library <target> and a header <target>.h that declares
#
#     extern const distile_polykernel <target>;
#
# Every variant is one add_halide_library with the autoscheduler distile::PolyKernel. The variants, the descriptor
# and one Halide runtime are then joined into one object of which only the symbol <target> is visible, so that an
# application may hold any other Halide runtime beside it. Changing either file rebuilds the library.

function(_distile_json result json)
    string(JSON value ERROR_VARIABLE error GET "${json}" ${ARGN})
    if (error)
        list(JOIN ARGN "." path)
        message(FATAL_ERROR "distile_add_polykernel: '${_distile_file}' has no ${path} (${error})")
    endif ()
    set(${result} "${value}" PARENT_SCOPE)
endfunction()

# What comes from the files becomes words of command lines and names of targets and files. `emit` checks the files as a
# whole, but not before variants were built.
function(_distile_require what value pattern)
    if (NOT value MATCHES "^${pattern}$")
        message(FATAL_ERROR "distile_add_polykernel: '${_distile_file}' has a ${what} that cannot be: '${value}'")
    endif ()
endfunction()

# Halide's own runtime and our hooks, once for all PolyKernels of a build. The runtime is built for the baseline of the
# architecture: it may run before a CPU was checked.
function(_distile_halide_runtime result)
    set(object "${CMAKE_BINARY_DIR}/distile/distile_halide_runtime.o")
    if (NOT TARGET distile_halide_runtime)
        file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/distile")
        add_custom_command(
            OUTPUT "${object}"
            COMMAND distile_generators -r distile_halide_runtime -e object -o "${CMAKE_BINARY_DIR}/distile"
                    target=x86-64-linux
            DEPENDS distile_generators
            COMMENT "Generating the Halide runtime" VERBATIM)
        add_custom_target(distile_halide_runtime DEPENDS "${object}")
    endif ()
    set(${result} "${object}" PARENT_SCOPE)
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
    _distile_require(generator "${generator}" "[a-z0-9_]+")
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
            _distile_require(parameter "${key}=${value}" "[a-z0-9_]+=[A-Za-z0-9_]+")
            list(APPEND generator_params "${key}=${value}")
        endforeach ()
    endif ()

    set(_distile_file "${arg_PLAN}")
    file(READ "${arg_PLAN}" plan)
    _distile_json(halide_target "${plan}" target)
    _distile_require(target "${halide_target}" "x86-64-linux[a-z0-9_-]*")
    _distile_json(variants "${plan}" variants)
    string(JSON num_variants LENGTH "${variants}")
    if (NOT num_variants GREATER 0 OR num_variants GREATER 64)
        message(FATAL_ERROR "distile_add_polykernel: '${arg_PLAN}' has ${num_variants} variants, not 1 to 64")
    endif ()

    # Code for a GPU has a layout of the weights of its own, and calls back more.
    set(hooks distile_hooks)
    _distile_json(backend "${plan}" backend)
    if (backend STREQUAL "cuda")
        if (NOT TARGET distile_cuda)
            message(FATAL_ERROR "distile_add_polykernel: '${arg_PLAN}' is for NVIDIA GPUs, and distile was built "
                                "without a CUDA toolkit")
        endif ()
        list(APPEND hooks distile_cuda_hooks)
        list(APPEND generator_params channel_block=32)
    endif ()
    set(hook_objects "")
    foreach (hook IN LISTS hooks)
        list(APPEND hook_objects "$<TARGET_OBJECTS:${hook}>")
    endforeach ()

    set(archives "")
    math(EXPR last "${num_variants} - 1")
    foreach (i RANGE ${last})
        _distile_json(name "${plan}" variants ${i} name)
        _distile_json(tile_h "${plan}" variants ${i} theta tile_h)
        _distile_json(tile_w "${plan}" variants ${i} theta tile_w)
        _distile_require("variant's name" "${name}" "[A-Za-z0-9_]+")
        _distile_require("tile" "${tile_h}x${tile_w}" "[0-9]+x[0-9]+")
        add_halide_library(${target}_${name} FROM distile_generators GENERATOR ${generator}
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

    _distile_halide_runtime(halide_runtime)
    add_custom_command(
        OUTPUT "${base}.o"
        COMMAND "${CMAKE_LINKER}" -r --force-group-allocation --gc-sections -u ${target} -o "${base}.joined.o"
                "$<TARGET_OBJECTS:${target}_descriptor>" ${hook_objects} ${archives} "${halide_runtime}"
        COMMAND "${CMAKE_OBJCOPY}" --keep-global-symbol=${target} "${base}.joined.o" "${base}.o"
        DEPENDS ${target}_descriptor "$<TARGET_OBJECTS:${target}_descriptor>" ${hooks} ${hook_objects}
                ${archives} "${halide_runtime}" distile_halide_runtime
        COMMAND_EXPAND_LISTS COMMENT "Joining the variants of ${target}" VERBATIM)
    add_library(${target} STATIC "${base}.o")
    set_source_files_properties("${base}.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(${target} INTERFACE "${CMAKE_CURRENT_BINARY_DIR}")
    target_link_libraries(${target} PUBLIC distile::runtime)
    if (backend STREQUAL "cuda")
        target_link_libraries(${target} PUBLIC distile::cuda)
    endif ()
endfunction()
