/** \file
 * Time-table files, as `distile profile` writes them.
 */
#ifndef DISTILE_TIME_TABLE_FILE_H
#define DISTILE_TIME_TABLE_FILE_H

#include <distile/polykernel.h>
#include <string>
#include <vector>

namespace distile {

/** The file version of time tables. */
constexpr int time_table_version = 2;

/** Reads the points for a kernel's variants from a file. Throws only std::bad_alloc; returns any other failure, with a
 * sentence about it in `message`, and then leaves `points` unchanged. */
distile_status read_time_table(const char *path, const distile_kernel &kernel, std::vector<distile_time_point> &points,
                               std::string &message);

}  // namespace distile

#endif
