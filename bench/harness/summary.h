/** \file
 * Results of a CPU as Markdown and as curves.
 */
#ifndef DISTILE_BENCH_SUMMARY_H
#define DISTILE_BENCH_SUMMARY_H

#include "bench/harness/figure.h"
#include "bench/harness/results.h"
#include <string>

namespace distile::bench {

/** The representative rows of a CPU, a line for each operator: one image, blobs and a real mask. */
std::string cpu_goals(const Json &file);
/** Tables of every row, including those that were not measured. */
std::string cpu_rows(const Json &file);
/** Eta by density for each family of operators. */
Panel cpu_panel(const Json &file);

/** What was measured beside PyTorch and ONNX Runtime: machine, versions and date. */
std::string about_python(const Json &file);
/** A sentence, after a space, that says that others disturbed the measurement; "" if nothing says so. */
std::string disturbance(const Json &file);
/** A number, or a dash if there is none. */
std::string cell(double value, int digits = 2);
/** Single steps of a kind. Columns without any cell are left out. */
std::string steps(const Json &rows, const std::string &kind, const char *caption);
/** Types against float32; "" if there are no such rows. */
std::string types(const Json &rows);
/** The rows that were skipped or failed, by reason; "" if there are none. */
std::string not_measured(const Json &rows);

}  // namespace distile::bench

#endif
