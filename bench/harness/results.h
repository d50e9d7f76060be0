/** \file
 * The file of results. It is replaced as a whole after every row, so it is always complete JSON, and a killed program
 * loses no measured row.
 */
#ifndef DISTILE_BENCH_RESULTS_H
#define DISTILE_BENCH_RESULTS_H

#include "bench/harness/measure.h"
#include <nlohmann/json.hpp>
#include <string>

namespace distile::bench {

/** Keeps the order of keys, because people read results too. */
using Json = nlohmann::ordered_json;

/** A number without meaningless digits, for people. */
double rounded(double value);
Json to_json(const Spread &spread);
/** Adds the time of a single step: its median, spread and the number of rounds. */
void add_times(Json &result, const Spread &spread);
/** Adds the goal for the median time, and whether it is met. */
void add_goal(Json &result, double goal_us);
/** Adds the time of something else, called `of`, and the ratio of ours to it. */
void add_comparison(Json &result, const char *of, const Spread &ours, const Spread &others);
/** Adds the goal for that ratio, and whether it is met. */
void add_ratio_goal(Json &result, double goal_ratio);

/** On every machine, others take a little. */
constexpr double fair_share_of_others = 0.1;
/** True if others took a larger share of the cores while a row was measured. */
bool is_disturbed(const Json &row);

/** Writes a file as a whole or not at all. Throws std::runtime_error. */
void replace_file(const std::string &path, const std::string &text);

/** Reads a file of results. Throws std::runtime_error that says what is wrong with it. */
Json read_results(const std::string &path);

class Results {
public:
    /** Without a path, nothing is written. With `resume`, the rows of the file are kept if its header differs in
     * nothing but the date and the load; otherwise this throws std::runtime_error. */
    Results(const std::string &path, bool resume, Json header);

    /** True if a row was measured before; skipped and failed rows are tried again. */
    bool is_measured(const std::string &row, const std::string &version = "") const;
    /** Adds or replaces a row and writes the file. */
    void add(Json row);

private:
    void write() const;

    std::string path_;
    Json file_;
};

}  // namespace distile::bench

#endif
