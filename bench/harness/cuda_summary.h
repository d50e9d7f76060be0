/** \file
 * Results of a GPU as Markdown and as a figure.
 */
#ifndef DISTILE_BENCH_CUDA_SUMMARY_H
#define DISTILE_BENCH_CUDA_SUMMARY_H

#include "results.h"
#include <string>
#include <vector>

namespace distile::bench {

/** Geometric means over the operators beside what was asked of them. */
std::string cuda_goals(const Json &file);
/** Every row, and how well the time tables chose. */
std::string cuda_rows(const Json &file);
/** Eta by density for each batch, one panel for each file, as SVG. */
std::string cuda_figure(const std::vector<Json> &files);

}  // namespace distile::bench

#endif
