# What CPack makes of an installation, for `make dist`: an archive to unpack anywhere, and a package for Debian.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_VENDOR "The distile maintainers")
set(CPACK_PACKAGE_CONTACT "The distile maintainers <distile@maintainers.invalid>")
set(CPACK_PACKAGE_FILE_NAME "distile-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/relocate_package.cmake")
# Debian has no package of Halide, which only programs that compile load.
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libstdc++6 (>= 12)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, gcc, binutils")
include(CPack)
