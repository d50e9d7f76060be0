# The architecture of the CPUs that the build is for: DISTILE_ARCHITECTURE as our files are named, and
# DISTILE_HALIDE_TARGET for code that every such CPU runs.
if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(DISTILE_ARCHITECTURE x86_64)
elseif (CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(DISTILE_ARCHITECTURE arm_64)
else ()
    set(DISTILE_ARCHITECTURE any)
endif ()
string(REPLACE "_" "-" DISTILE_HALIDE_TARGET "${DISTILE_ARCHITECTURE}-linux")
