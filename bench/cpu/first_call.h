/** \file
 * The first call of an operator, in a process of its own: its time, and the memory that its side takes in addition to
 * the caller's tensors.
 */
#ifndef DISTILE_BENCH_FIRST_CALL_H
#define DISTILE_BENCH_FIRST_CALL_H

#include "bench/cpu/runner.h"

namespace distile::bench {

/** Which side computes. */
enum class Side { Ours, Peer };

/** Measures in this process, in which neither side may have run before. Throws as Runner::run does. */
Json measure_first_call(const ConvolutionRow &row, Side side, const RunnerOptions &options);

/** Measures in a new process of this program. */
Json measure_first_call_apart(const std::string &row, Side side, const RunnerOptions &options);

}  // namespace distile::bench

#endif
