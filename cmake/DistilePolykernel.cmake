# distile_add_polykernel(<target> OPERATOR <operator.json> [PLAN <plan.json>... | BACKENDS <backend>...] [DTYPE <type>]
#                        [NO_PORTABLE])
#
# Builds the PolyKernel of an operator: a static library <target> and a header <target>.h that declares
#
#     extern const distile_polykernel <target>;
#
# Without a plan, one that ships is taken where there is one for the shape, with any activation. Else the analytical
# bound chooses the schedules: for CPUs with AVX-512 and with AVX2, before them for dot
# products in the operator's type (AMX, AVX512-BF16, VNNI), or where the project is compiled for AArch64 for CPUs of
# Armv8.2; with BACKENDS cuda for NVIDIA GPUs, and with BACKENDS opencl for OpenCL
# devices. For NVIDIA GPUs the plans for tensor cores come first, which multiply float32 in TF32; they need nvcc. The
# library of a backend other than cpu is <target>_<backend>: BACKENDS cpu cuda makes <target> and <target>_cuda.
# `distile plan` measures plans on this machine; `distile tune` finds better ones.
#
# Several plans serve several kinds of CPU, or of GPU; list the most demanding first. At run time the first plan that
# the device can run is taken. A portable plan that every CPU of the architecture runs (`distile portable`) follows,
# unless NO_PORTABLE leaves it out or the last plan is portable itself. DTYPE builds the operator in another type, for
# instance float16, with the schedules of its plans but without their times; plans for that type are taken as they are.
# Programs that run a plan for a GPU link distile::cuda. Variants for tensor cores need nvcc. CMake reads no plan: one
# command of distile_builder compiles all variants in parallel. All PolyKernels of a build share as many compilers as
# the machine has cores (or $DISTILE_JOBS). The command joins the variants with the descriptor and one Halide runtime
# into one object that exports only the symbol <target>, so an application may contain any other Halide runtime.
# Changing a file rebuilds the library. Intermediate files stay in the folder <target>_parts. Used by this project and,
# once installed, by others; all that it needs are targets in distile:: and distile_find_nvcc(). The property
# distile_polykernels of a folder lists the PolyKernels built there.

# GNU ld, whatever linker the build uses: joining needs --force-group-allocation, which lld 14 lacks. It has the prefix
# of objcopy, or else it is Debian's for the processor, which joins objects for any of its systems.
cmake_path(GET CMAKE_OBJCOPY FILENAME _distile_objcopy)
string(REGEX REPLACE "objcopy.*" "" _distile_prefix "${_distile_objcopy}")
set(_distile_linkers ${_distile_prefix}ld.bfd ${_distile_prefix}ld)
if (CMAKE_CROSSCOMPILING)
    list(APPEND _distile_linkers ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu-ld.bfd)
else ()
    list(APPEND _distile_linkers ld.bfd ld)
endif ()
find_program(DISTILE_LINKER NAMES ${_distile_linkers} REQUIRED DOC "The linker that joins the variants of a PolyKernel: GNU ld")
mark_as_advanced(DISTILE_LINKER)

# distile_find_nvcc(): sets DISTILE_NVCC in the cache to the CUDA compiler; empty if there is none.
function(distile_find_nvcc)
    find_package(CUDAToolkit QUIET)
    set(DISTILE_NVCC "${CUDAToolkit_NVCC_EXECUTABLE}"
        CACHE INTERNAL "The CUDA compiler")
endfunction()

# _distile_quote(<variable> <word>...): sets a variable to the words as a shell reads them.
function(_distile_quote variable)
    set(quoted "")
    foreach (word IN LISTS ARGN)
        if (word MATCHES "[^A-Za-z0-9_./+=:,@%-]")
            string(REPLACE "'" "'\\''" word "${word}")
            set(word "'${word}'")
        endif ()
        list(APPEND quoted "${word}")
    endforeach ()
    list(JOIN quoted " " quoted)
    set(${variable} "${quoted}" PARENT_SCOPE)
endfunction()

# distile_c_compiler(<variable>): sets a variable to the project's C compiler with its arguments, as the environment
# variable CC has it.
function(distile_c_compiler variable)
    _distile_quote(command "${CMAKE_C_COMPILER}")
    # CMake keeps what follows a launcher in CC, as in "ccache gcc", in the words of a shell.
    if (CMAKE_C_COMPILER_ARG1)
        string(STRIP "${CMAKE_C_COMPILER_ARG1}" arguments)
        string(APPEND command " ${arguments}")
    endif ()
    # A compiler for many machines, as clang is, is told which.
    set(options "")
    if (CMAKE_C_COMPILER_TARGET)
        list(APPEND options "${CMAKE_C_COMPILE_OPTIONS_TARGET}${CMAKE_C_COMPILER_TARGET}")
    endif ()
    if (CMAKE_SYSROOT)
        list(APPEND options "${CMAKE_C_COMPILE_OPTIONS_SYSROOT}${CMAKE_SYSROOT}")
    endif ()
    _distile_quote(options ${options})
    string(STRIP "${command} ${options}" command)
    set(${variable} "${command}" PARENT_SCOPE)
endfunction()

function(distile_add_polykernel target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "NO_PORTABLE" "OPERATOR;DTYPE" "PLAN;BACKENDS")
    if (NOT arg_OPERATOR OR arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES OR (arg_PLAN AND arg_BACKENDS))
        message(FATAL_ERROR "distile_add_polykernel(<target> OPERATOR <file> [PLAN <file>... | BACKENDS <backend>...] "
                            "[DTYPE <type>] [NO_PORTABLE])")
    endif ()
    if (arg_PLAN)
        _distile_add_polykernel(${target} "" "${arg_OPERATOR}" "${arg_DTYPE}" "${arg_NO_PORTABLE}" ${arg_PLAN})
        return()
    endif ()
    if (NOT arg_BACKENDS)
        set(arg_BACKENDS cpu)
    endif ()
    foreach (backend IN LISTS arg_BACKENDS)
        if (NOT backend MATCHES "^(cpu|cuda|opencl)$")
            message(FATAL_ERROR "distile_add_polykernel: '${backend}' is not a backend; the backends are cpu, cuda and "
                                "opencl")
        endif ()
        set(suffix "_${backend}")
        if (backend STREQUAL "cpu")
            set(suffix "")
        elseif (NOT TARGET distile::${backend})
            message(FATAL_ERROR "distile_add_polykernel: distile was built without support for the backend ${backend}")
        endif ()
        _distile_add_polykernel(${target}${suffix} ${backend} "${arg_OPERATOR}" "${arg_DTYPE}" "${arg_NO_PORTABLE}")
    endforeach ()
endfunction()

# Whether the PolyKernel of an operator may link our own code for CPUs: for types of 8 and 16 bits, or for weights with
# zeros. TRUE if its file cannot tell yet.
function(_distile_links_own_code variable operator dtype)
    set(zeros "")
    if (EXISTS "${operator}")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${operator}")
        file(READ "${operator}" json)
        string(JSON kind ERROR_VARIABLE error TYPE "${json}" params)
        string(JSON of_file ERROR_VARIABLE missing GET "${json}" params dtype)
        # Both say that weights are 0.
        string(JSON zeros ERROR_VARIABLE no_zeros GET "${json}" typical weight_zeros)
        if (no_zeros)
            string(JSON zeros ERROR_VARIABLE no_zeros GET "${json}" typical weight_pattern)
        endif ()
        if (no_zeros)
            set(zeros "")
        endif ()
        if (error)
            set(of_file "") # The builder says what is wrong with the file.
        elseif (missing)
            set(of_file float32)
        endif ()
        if (NOT dtype)
            set(dtype "${of_file}")
        endif ()
    endif ()
    if (dtype STREQUAL "float32" AND zeros STREQUAL "")
        set(${variable} FALSE PARENT_SCOPE)
    else ()
        set(${variable} TRUE PARENT_SCOPE)
    endif ()
endfunction()

# Builds one library, from the plans that follow or, if there are none, from those that ship or that
# the bound makes for a backend.
function(_distile_add_polykernel target backend arg_OPERATOR arg_DTYPE arg_NO_PORTABLE)
    set(arg_PLAN ${ARGN})
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
        list(APPEND options --no-portable)
    endif ()
    if (plans)
        list(APPEND options --plan ${plans})
    else ()
        list(APPEND options --backend ${backend})
        if (backend STREQUAL "cuda" AND DISTILE_NVCC)
            list(APPEND options --tensor-cores)
        elseif (backend STREQUAL "cuda")
            message(STATUS "${target} gets no kernels for tensor cores: there is no CUDA toolkit (nvcc)")
        endif ()
    endif ()
    if (arg_DTYPE)
        list(APPEND options --dtype "${arg_DTYPE}")
    endif ()

    # The builder's tools lie beside it, and beside the command the objects for the machine that the build is for. Once
    # installed, the generators use the Halide that the project found.
    set(tools "$<TARGET_FILE_DIR:distile::builder>")
    set(objects "$<TARGET_FILE_DIR:distile::command>")
    include("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/DistileArchitecture.cmake")
    set(base "${CMAKE_CURRENT_BINARY_DIR}/${target}")
    set(hooks "${objects}/distile_hooks.o" "${objects}/distile_gpu_hooks.o")
    # Our own code takes long to compile.
    _distile_links_own_code(links_own_code "${arg_OPERATOR}" "${arg_DTYPE}")
    if (links_own_code)
        foreach (instructions IN LISTS DISTILE_DOT_PRODUCTS)
            list(APPEND hooks "${objects}/distile_${instructions}.o")
        endforeach ()
    endif ()
    if (TARGET distile::cuda)
        list(APPEND hooks "${objects}/distile_dp4a.o" "${objects}/distile_cuda_bitmap.o"
            "${objects}/distile_cuda_nonzeros.o" "${objects}/distile_cuda_two_four.o" "${objects}/distile_tensor_core.o")
    endif ()
    distile_c_compiler(compiler)
    set(environment "CC=${compiler}" "DISTILE_OBJECTS=${objects}")
    if (DISTILE_NVCC)
        _distile_quote(nvcc "${DISTILE_NVCC}")
        list(APPEND environment "CUDACXX=${nvcc}")
    endif ()
    add_custom_command(
        OUTPUT "${base}.o" "${base}.h"
        COMMAND ${CMAKE_COMMAND} -E env ${environment}
                --modify "LD_LIBRARY_PATH=path_list_prepend:$<TARGET_FILE_DIR:Halide::Halide>" --
                $<TARGET_FILE:distile::builder> build
                --operator "${arg_OPERATOR}" ${options} --symbol ${target}
                --platform ${DISTILE_HALIDE_TARGET}
                --object "${base}.o" --header "${base}.h" --depfile "${base}.d" --folder "${base}_parts"
                --linker "${DISTILE_LINKER}" --objcopy "${CMAKE_OBJCOPY}" --slots "${CMAKE_BINARY_DIR}/distile_slots"
        DEPENDS "${arg_OPERATOR}" ${plans} distile::builder "$<TARGET_FILE:distile::builder>"
                "${tools}/distile_generators" "$<TARGET_FILE:distile::PolyKernel>" ${hooks}
                "${objects}/distile_halide_runtime.o"
        DEPFILE "${base}.d"
        COMMENT "Building the PolyKernel ${target}" VERBATIM)
    add_library(${target} STATIC "${base}.o")
    set_source_files_properties("${base}.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${CMAKE_CURRENT_BINARY_DIR}" FILES "${base}.h")
    target_link_libraries(${target} PUBLIC distile::runtime ${DISTILE_SYSTEM_LIBRARIES})
    set_property(DIRECTORY APPEND PROPERTY distile_polykernels ${target})
endfunction()
