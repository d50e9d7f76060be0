/** \file
 * Which state of the repository the benchmark was built from.
 */
#ifndef DISTILE_BENCH_SOURCE_VERSION_H
#define DISTILE_BENCH_SOURCE_VERSION_H

namespace distile::bench {

/** What git called the commit when this program was built, with "-dirty" if the files differed from it; "unknown" where
 * there is no git. */
const char *source_version();

}  // namespace distile::bench

#endif
