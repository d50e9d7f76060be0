/** \file
 * The table of the operators that benchmarks and searches are about, data/operators.csv: a row an operator and size.
 */
#ifndef DISTILE_OPERATOR_TABLE_H
#define DISTILE_OPERATOR_TABLE_H

#include <string>
#include <vector>

namespace distile {

/** A row. Numbers that its category lacks are 0. */
struct OperatorRow {
    int id = 0;
    std::string category;
    int height = 0, width = 0, in_channels = 0, out_channels = 0, kernel = 0, stride = 0, heads = 0;
    std::string operator_name; /**< The operator file in operators/ beside the table, without its ending. */
};

/** The rows of a file of comma-separated values. Its first line that is no comment names the columns, in any order;
 * lines that begin with # are comments. Throws FileError. */
std::vector<OperatorRow> read_operator_table(const std::string &path);

/** The path of a row's operator file. */
std::string operator_file(const std::string &table, const OperatorRow &row);

}  // namespace distile

#endif
