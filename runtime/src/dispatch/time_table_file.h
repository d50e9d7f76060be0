/** \file
 * Time tables in files, as `distile profile` writes them.
 */
#ifndef DISTILE_TIME_TABLE_FILE_H
#define DISTILE_TIME_TABLE_FILE_H

#include <distile/polykernel.h>
#include <string>
#include <vector>

namespace distile {

/** The version of the files that hold time tables. */
constexpr int time_table_version = 2;

/** Reads the points of a file for the variants of a kernel. Throws std::bad_alloc only; any other failure
 * is returned, with a sentence about it in `message`, and leaves `points` as they were. */
distile_status read_time_table(const char *path, const distile_kernel &kernel, std::vector<distile_time_point> &points,
                               std::string &message);

}  // namespace distile

#endif
