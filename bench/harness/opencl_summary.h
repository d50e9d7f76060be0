/** \file
 * OpenCL against CUDA on one GPU, from results.
 */
#ifndef DISTILE_BENCH_OPENCL_SUMMARY_H
#define DISTILE_BENCH_OPENCL_SUMMARY_H

#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Geometric means over the operators by batch and density; "" if there are no such rows. */
std::string opencl_means(const Json &rows);
/** Every row; "" if there are no such rows. */
std::string opencl_table(const Json &rows);

}  // namespace distile::bench

#endif
