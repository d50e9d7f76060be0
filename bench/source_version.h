/** \file
 * Which state of the repository the benchmark was built from.
 */
#ifndef DISTILE_BENCH_SOURCE_VERSION_H
#define DISTILE_BENCH_SOURCE_VERSION_H

namespace distile::bench {

/** What `git describe --always --dirty` said when this program was built; "unknown" where it said nothing. */
const char *source_version();

}  // namespace distile::bench

#endif
