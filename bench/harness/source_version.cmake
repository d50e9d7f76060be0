# Writes the source file that says which state of the repository is built: what `git describe --always --dirty` says,
# but that results, which a run writes into the repository, do not count. It is left alone where that is the same as
# before, so that nothing is compiled again.
# Usage: cmake -DGIT=<git> -DSOURCE=<folder> -DOUTPUT=<file> -P source_version.cmake
set(git "${GIT}" --no-optional-locks -C "${SOURCE}")
execute_process(COMMAND ${git} describe --always OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if (version)
    execute_process(COMMAND ${git} diff --quiet HEAD -- . ":(exclude)bench/results" RESULT_VARIABLE changed ERROR_QUIET)
    if (changed)
        string(APPEND version -dirty)
    endif ()
else ()
    set(version unknown)
endif ()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [=[
#include "bench/harness/source_version.h"

const char *distile::bench::source_version() {
    return "@version@";
}
]=] @ONLY)
