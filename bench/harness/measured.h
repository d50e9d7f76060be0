/** \file
 * The rows of a file of results that were measured, by name.
 */
#ifndef DISTILE_BENCH_MEASURED_H
#define DISTILE_BENCH_MEASURED_H

#include "bench/harness/results.h"
#include <map>
#include <string>

namespace distile::bench {

class Measured {
public:
    /** The rows must live as long as this. */
    explicit Measured(const Json &rows) {
        for (const Json &row : rows) {
            if (row.at("status") == "measured") {
                rows_[row.at("row")] = &row;
            }
        }
    }

    /** A row, or null if it was not measured. */
    const Json *find(const std::string &name) const {
        const auto row = rows_.find(name);
        return row == rows_.end() ? nullptr : row->second;
    }
    /** A field of a row, or 0 if it was not measured. */
    double value(const std::string &name, const char *field) const {
        const Json *row = find(name);
        return row ? row->at(field).get<double>() : 0;
    }

private:
    std::map<std::string, const Json *> rows_;
};

}  // namespace distile::bench

#endif
