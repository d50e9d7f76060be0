# For AArch64 Linux, with Debian's cross compiler (g++-aarch64-linux-gnu). Tests run in qemu (qemu-user).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu")
# Other libraries are needed for their headers only, which are the same for every architecture. Debian's cross compilers
# look for them in /usr/include, and their packages for CMake lie beside those of the machine that builds.
list(APPEND CMAKE_PREFIX_PATH "/usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake")
