# CPack runs this on the tree that it packs, below CPACK_TEMPORARY_DIRECTORY.
file(GLOB_RECURSE generators "${CPACK_TEMPORARY_DIRECTORY}/*/distile_generators")
foreach (generator IN LISTS generators)
    cmake_path(GET generator PARENT_PATH folder)
    cmake_path(GET folder PARENT_PATH folder)
    include("${CMAKE_CURRENT_LIST_DIR}/relocate.cmake")
endforeach ()
