/** \file
 * The file of results. It is replaced as a whole after every row, so that it is complete JSON at any time and a
 * program that is killed loses nothing that it measured.
 */
#ifndef DISTILE_BENCH_RESULTS_H
#define DISTILE_BENCH_RESULTS_H

#include "measure.h"
#include <nlohmann/json.hpp>
#include <string>

namespace distile::bench {

/** Order of keys as written: results are read by people, too. */
using Json = nlohmann::ordered_json;

/** A number as people read it, without digits that mean nothing. */
double rounded(double value);
Json to_json(const Spread &spread);
/** Adds the time of a single step: its median, spread and the number of rounds. */
void add_times(Json &result, const Spread &spread);
/** Adds what a median time is to stay below, and whether it does. */
void add_goal(Json &result, double goal_us);
/** Adds the time of something else, called `of`, and ours by it. */
void add_comparison(Json &result, const char *of, const Spread &ours, const Spread &others);
/** Adds what that ratio is to stay below, and whether it does. */
void add_ratio_goal(Json &result, double goal_ratio);

/** Others take a little of every machine. */
constexpr double fair_share_of_others = 0.1;
/** True if others took more than that of the cores while a row was measured. */
bool is_disturbed(const Json &row);

/** Writes a file as a whole or not at all. Throws std::runtime_error. */
void replace_file(const std::string &path, const std::string &text);

/** Reads a file of results. Throws std::runtime_error that says what is wrong with it. */
Json read_results(const std::string &path);

class Results {
public:
    /** Without a path, nothing is written. With `resume`, the rows of the file are kept if its header says the same
     * but for the date and the load; otherwise this throws std::runtime_error. */
    Results(const std::string &path, bool resume, Json header);

    /** True if a row was measured before; skipped and failed rows are tried again. */
    bool is_measured(const std::string &row) const;
    /** Adds or replaces a row and writes the file. */
    void add(Json row);

private:
    void write() const;

    std::string path_;
    Json file_;
};

}  // namespace distile::bench

#endif
