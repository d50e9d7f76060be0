# Removes the folder of this machine's Halide from what looks for the library, in a tree that leaves this machine.
# CPack sets the folder of the tree; others name it: cmake -DCPACK_TEMPORARY_DIRECTORY=<folder> -P relocate.cmake.
file(GLOB_RECURSE programs "${CPACK_TEMPORARY_DIRECTORY}/*/distile_generators"
    "${CPACK_TEMPORARY_DIRECTORY}/*/libautoschedule_polykernel.so")
foreach (program IN LISTS programs)
    file(RPATH_SET FILE "${program}" NEW_RPATH "$ORIGIN/..")
endforeach ()
