# distile_add_polykernel(<target> OPERATOR <operator.json> PLAN <plan.json>... [NO_PORTABLE])
#
# Builds the PolyKernel of an operator: a static library <target> and a header <target>.h that declares
#
#     extern const distile_polykernel <target>;
#
# Several plans are for several kinds of CPU, the most demanding first: the first that a CPU can run is taken when it
# runs. Behind them stands a portable plan that every x86-64 CPU runs (`distile portable`), unless NO_PORTABLE leaves it
# out or the last plan is such a one. A plan for a GPU stands alone.
#
# Every variant is one add_halide_library with the autoscheduler distile::PolyKernel. The variants, the descriptor
# and one Halide runtime are then joined into one object of which only the symbol <target> is visible, so that an
# application may hold any other Halide runtime beside it. Changing a file rebuilds the library.
#
# Used by the project itself and, from where it is installed, by others: what it needs are targets in distile::. The
# property distile_polykernels of a folder lists those that were built there.

# GNU's, whatever linker and compiler the build has: joining needs --force-group-allocation, which lld 14 lacks.
find_program(DISTILE_LINKER NAMES ld.bfd ld REQUIRED DOC "The linker that joins the variants of a PolyKernel: GNU ld")
mark_as_advanced(DISTILE_LINKER)

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

# Adds the Halide library of one variant of the plan of an index, and its archive to the list of the caller's `archives`.
# Installed generators are started by a script that never changes, so that their own file is a dependency, too.
function(_distile_add_variant target index name)
    cmake_parse_arguments(PARSE_ARGV 3 arg "" "GENERATOR;HALIDE_TARGET;PLAN" "PARAMS")
    set(library ${target}_${index}_${name})
    add_halide_library(${library} FROM distile::generators GENERATOR ${arg_GENERATOR}
        USE_RUNTIME Halide::Runtime TARGETS ${arg_HALIDE_TARGET}-user_context
        AUTOSCHEDULER distile::PolyKernel
        PARAMS ${arg_PARAMS} autoscheduler.plan=${arg_PLAN} autoscheduler.variant=${name}
        DEPENDS "${arg_PLAN}" "$<TARGET_FILE_DIR:distile::command>/distile_generators")
    set(archives ${archives} "$<TARGET_FILE:${library}>" PARENT_SCOPE)
endfunction()

function(distile_add_polykernel target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "NO_PORTABLE" "OPERATOR" "PLAN")
    if (NOT arg_OPERATOR OR NOT arg_PLAN OR arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "distile_add_polykernel(<target> OPERATOR <file> PLAN <file>... [NO_PORTABLE])")
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
    foreach (file IN ITEMS "${arg_OPERATOR}" ${plans})
        if (NOT EXISTS "${file}")
            message(FATAL_ERROR "distile_add_polykernel: the file '${file}' does not exist")
        endif ()
    endforeach ()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${arg_OPERATOR}" ${plans})
    if (COMMAND distile_take_polykernel)
        distile_take_polykernel(${target})
        return()
    endif ()

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

    # What every PolyKernel holds beside its variants lies beside the distile command. Code for a GPU has a layout of the
    # weights of its own, and calls back more.
    set(tools "$<TARGET_FILE_DIR:distile::command>")
    set(hooks "${tools}/distile_hooks.o")
    set(halide_runtime "${tools}/distile_halide_runtime.o")
    set(base "${CMAKE_CURRENT_BINARY_DIR}/${target}")
    set(archives "")
    set(index 0)
    set(cuda FALSE)
    foreach (plan_file IN LISTS plans)
        set(_distile_file "${plan_file}")
        file(READ "${plan_file}" plan)
        _distile_json(halide_target "${plan}" target)
        _distile_require(target "${halide_target}" "x86-64-linux[a-z0-9_-]*")
        _distile_json(variants "${plan}" variants)
        string(JSON num_variants LENGTH "${variants}")
        if (NOT num_variants GREATER 0 OR num_variants GREATER 64)
            message(FATAL_ERROR "distile_add_polykernel: '${plan_file}' has ${num_variants} variants, not 1 to 64")
        endif ()
        _distile_json(backend "${plan}" backend)
        if (backend STREQUAL "cuda")
            if (NOT TARGET distile::cuda)
                message(FATAL_ERROR "distile_add_polykernel: '${plan_file}' is for NVIDIA GPUs, and distile was built "
                                    "without a CUDA toolkit")
            endif ()
            set(cuda TRUE)
            list(APPEND hooks "${tools}/distile_cuda_hooks.o")
            # The generators' default is the CPUs' layout.
            _distile_json(layout "${plan}" layout)
            _distile_require(layout "${layout}" "cuda-o[0-9]+")
            string(REPLACE "cuda-o" "channel_block=" channel_block "${layout}")
            list(APPEND generator_params ${channel_block})
        endif ()
        math(EXPR last "${num_variants} - 1")
        foreach (i RANGE ${last})
            _distile_json(name "${plan}" variants ${i} name)
            _distile_json(tile_h "${plan}" variants ${i} theta tile_h)
            _distile_json(tile_w "${plan}" variants ${i} theta tile_w)
            _distile_require("variant's name" "${name}" "[A-Za-z0-9_]+")
            _distile_require("tile" "${tile_h}x${tile_w}" "[0-9]+x[0-9]+")
            _distile_add_variant(${target} ${index} ${name}
                GENERATOR ${generator} HALIDE_TARGET ${halide_target} PLAN "${plan_file}"
                PARAMS ${generator_params} tile_h=${tile_h} tile_w=${tile_w})
        endforeach ()
        math(EXPR index "${index} + 1")
    endforeach ()
    if (cuda AND index GREATER 1)
        message(FATAL_ERROR "distile_add_polykernel: a plan for GPUs stands alone")
    endif ()
    if (NOT cuda AND NOT arg_NO_PORTABLE AND NOT halide_target STREQUAL "x86-64-linux")
        # The plan is written by the build; these are its variants, and the target, as autoscheduler/portable.cpp has them.
        # A variant of another name or with other tiles than the plan's is refused by the plugin.
        set(plan_file "${base}_portable.json")
        add_custom_command(
            OUTPUT "${plan_file}"
            COMMAND distile::command portable "${arg_OPERATOR}" -o "${plan_file}"
            DEPENDS distile::command "${arg_OPERATOR}"
            COMMENT "Writing the portable plan of ${target}" VERBATIM)
        foreach (variant IN ITEMS "fine;1" "coarse;4" "dense;1")
            list(GET variant 0 name)
            list(GET variant 1 tile)
            _distile_add_variant(${target} ${index} ${name}
                GENERATOR ${generator} HALIDE_TARGET x86-64-linux PLAN "${plan_file}"
                PARAMS ${generator_params} virtual_tile=${tile})
        endforeach ()
        list(APPEND plans "${plan_file}")
    endif ()

    add_custom_command(
        OUTPUT "${base}.c" "${base}.h"
        COMMAND distile::command emit --operator "${arg_OPERATOR}" --plan ${plans} --symbol ${target}
                --source "${base}.c" --header "${base}.h"
        DEPENDS distile::command "${arg_OPERATOR}" ${plans}
        COMMENT "Writing the descriptor of ${target}" VERBATIM)
    add_library(${target}_descriptor OBJECT "${base}.c")
    target_link_libraries(${target}_descriptor PRIVATE distile::runtime)

    add_custom_command(
        OUTPUT "${base}.o"
        COMMAND "${DISTILE_LINKER}" -r --force-group-allocation --gc-sections -u ${target} -o "${base}.joined.o"
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
    if (cuda)
        target_link_libraries(${target} PUBLIC distile::cuda)
    endif ()
    set_property(DIRECTORY APPEND PROPERTY distile_polykernels ${target})
endfunction()
