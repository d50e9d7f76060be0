/** \file
 * Results of a GPU as Markdown and as curves.
 */
#ifndef DISTILE_BENCH_CUDA_SUMMARY_H
#define DISTILE_BENCH_CUDA_SUMMARY_H

#include "bench/harness/figure.h"
#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** Geometric means over the operators, beside their goals, in float32 and in other types. */
std::string cuda_goals(const Json &file);
/** Every row, and how well the time tables chose. */
std::string cuda_rows(const Json &file);
/** Eta by density for each batch. */
Panel cuda_panel(const Json &file);

}  // namespace distile::bench

#endif
