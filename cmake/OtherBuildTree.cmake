# distile_check_build_tree(<variable>): that the cache variable names another build tree of the same source, which takes
# nothing from a third one.
function(distile_check_build_tree variable)
    set(tree "${${variable}}")
    if (NOT EXISTS "${tree}/CMakeCache.txt")
        message(FATAL_ERROR "${variable}: '${tree}' is not a build tree. The presets name that of 'release': run 'cmake "
                            "--preset release' first.")
    endif ()
    load_cache("${tree}" READ_WITH_PREFIX other_ CMAKE_HOME_DIRECTORY ${variable})
    if (NOT other_CMAKE_HOME_DIRECTORY STREQUAL PROJECT_SOURCE_DIR)
        message(FATAL_ERROR "${variable}: '${tree}' is a build tree of '${other_CMAKE_HOME_DIRECTORY}', not of "
                            "'${PROJECT_SOURCE_DIR}'.")
    endif ()
    if (other_${variable})
        message(FATAL_ERROR "${variable}: '${tree}' takes from '${other_${variable}}' what this build is to take from it. "
                            "Name a tree that builds it.")
    endif ()
endfunction()
