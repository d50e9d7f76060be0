# For Android on AArch64, with the NDK that the environment variable ANDROID_NDK names.
set(DISTILE_ANDROID_NDK "$ENV{ANDROID_NDK}" CACHE PATH "The NDK")
set(_distile_ndk "${DISTILE_ANDROID_NDK}/build/cmake/android.toolchain.cmake")
if (NOT EXISTS "${_distile_ndk}")
    message(FATAL_ERROR "There is no NDK in '${DISTILE_ANDROID_NDK}': name its folder in the environment variable ANDROID_NDK")
endif ()
set(ANDROID_ABI arm64-v8a)
# The first whose C library has all that the runtime takes of it: the last was aligned_alloc().
set(ANDROID_PLATFORM android-28)
set(ANDROID_STL c++_static)
include("${_distile_ndk}")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DISTILE_ANDROID_NDK)
if (NOT CMAKE_SYSROOT)
    set(CMAKE_SYSROOT "${ANDROID_TOOLCHAIN_ROOT}/sysroot")
endif ()

# Other libraries are needed for their headers only, which are the same for every system. On the machine that builds,
# these lie among the headers of its C library, which must not be found. So they get a folder of links. With a sysroot
# CMake itself leaves /usr/include out.
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
list(APPEND CMAKE_PREFIX_PATH "/usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake")
set(_distile_headers "${CMAKE_BINARY_DIR}/headers")
file(MAKE_DIRECTORY "${_distile_headers}")
foreach (_distile_package IN ITEMS CL CLI fmt nlohmann stb xgboost)
    file(CREATE_LINK "/usr/include/${_distile_package}" "${_distile_headers}/${_distile_package}" SYMBOLIC)
endforeach ()
list(APPEND CMAKE_C_STANDARD_INCLUDE_DIRECTORIES "${_distile_headers}")
list(APPEND CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES "${_distile_headers}")
