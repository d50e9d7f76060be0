/** \file
 * Results as Markdown tables.
 */
#ifndef DISTILE_BENCH_SUMMARY_H
#define DISTILE_BENCH_SUMMARY_H

#include "results.h"
#include <string>

namespace distile::bench {

/** The tables of a file of results: every mask of every operator against oneDNN, the single steps, and what was not
 * measured. No row is left out. */
std::string summarise(const Json &file);

}  // namespace distile::bench

#endif
