/** \file
 * Lists of operators, for commands that work on all of them.
 *
 *     {"distile_operator_list": 1, "parts": [
 *         {"table": "operators.csv", "rows": "1-26, 40", "types": ["float32", "uint8"], "also": ["avx2"]},
 *         {"operators": ["my_operator.json"], "backend": "cuda", "math": ["float32", "tf32"]}]}
 *
 * Paths are relative to the list. A table of operators, as data/operators.csv, is a list too: of all its rows.
 */
#ifndef DISTILE_OPERATOR_LIST_H
#define DISTILE_OPERATOR_LIST_H

#include "plans/operator.h"
#include "plans/plan.h"
#include <string>
#include <vector>

namespace distile {

/** An operator in a type, and what to find plans for. */
struct ListedOperator {
    std::string file; /**< Its operator file. */
    Operator op;      /**< In the type. */
    Math math = Math::Float32;
    std::vector<std::string> levels; /**< The levels of CPUs: "" for the device, and lesser ones. */
    int rows = 1;                    /**< Rows of the table that name it. */
};

/** The operators of a list that are for a backend, each once. Throws FileError, also if there is none. */
std::vector<ListedOperator> read_operator_list(const std::string &path, const std::string &backend);

}  // namespace distile

#endif
