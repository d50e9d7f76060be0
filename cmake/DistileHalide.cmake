# distile_find_halide()
#
# Sets Halide_DIR and HalideHelpers_DIR for find_package(Halide) if CMAKE_PREFIX_PATH names a prefix of Halide: where it
# is installed, a Python environment where pip put it (.venv), or the package there (.venv/lib/python3.11/site-packages/
# halide). In an environment CMake alone finds .venv/share/cmake, which asks for the headers of a Python and then looks
# for Halide in that Python, often the system's.
function(distile_find_halide)
    if (Halide_DIR)
        return()
    endif ()
    string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
    foreach (prefix IN LISTS CMAKE_PREFIX_PATH prefixes)
        set(config "lib*/cmake/Halide/HalideConfig.cmake")
        file(GLOB found "${prefix}/${config}" "${prefix}/lib/python*/site-packages/halide/${config}")
        if (found)
            list(GET found 0 config)
            cmake_path(GET config PARENT_PATH folder)
            cmake_path(GET folder PARENT_PATH packages)
            set(Halide_DIR "${folder}" CACHE PATH "Folder of HalideConfig.cmake" FORCE)
            set(HalideHelpers_DIR "${packages}/HalideHelpers" CACHE PATH "Folder of HalideHelpersConfig.cmake" FORCE)
            return()
        endif ()
    endforeach ()
endfunction()
