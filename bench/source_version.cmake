# Writes the source file that says which state of the repository is built. It is left alone where that is the same as
# before, so that nothing is compiled again.
# Usage: cmake -DGIT=<git> -DSOURCE=<folder> -DOUTPUT=<file> -P source_version.cmake
execute_process(
    COMMAND "${GIT}" --no-optional-locks -C "${SOURCE}" describe --always --dirty
    OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if (NOT version)
    set(version unknown)
endif ()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [=[
#include "source_version.h"

const char *distile::bench::source_version() {
    return "@version@";
}
]=] @ONLY)
