/** \file
 * The state of the repository from which the benchmark was built.
 */
#ifndef DISTILE_BENCH_SOURCE_VERSION_H
#define DISTILE_BENCH_SOURCE_VERSION_H

namespace distile::bench {

/** The commit from which this program was built, as git describes it, with "-dirty" if files differed from it;
 * "unknown" without git. */
const char *source_version();

}  // namespace distile::bench

#endif
