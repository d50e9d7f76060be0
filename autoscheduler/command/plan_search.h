/** \file
 * The search for one plan, as `distile tune` and `distile plan` run it.
 */
#ifndef DISTILE_PLAN_SEARCH_H
#define DISTILE_PLAN_SEARCH_H

#include "autoscheduler/bound/shipped_plans.h"
#include "autoscheduler/command/operator_list.h"
#include "autoscheduler/command/search_session.h"
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace distile {

/** The help of the option --again. */
constexpr const char *again_option_help =
    "Measure again what was measured while the machine was busy, of which a warning was printed";

struct PlanSearchOptions : SessionOptions {
    std::string plan, log, folder;      /**< Files to write; "" for the log: beside the plan. */
    std::string include;                /**< Plan whose variants are measured first; "": none. */
    bool one_of_several = false;        /**< What it prints begins with the level of the CPUs that it is for. */
    std::function<std::string()> label; /**< What its progress begins with, in place of that. Null: nothing. */
    bool again = false;                 /**< Measures doubtful schedules of the log again. */
    double seconds = 0;                 /**< 0: no limit. */
    bool only_included = false;         /**< Measures nothing but search.include, and says nothing when that is done. */
    bool one_of_list = false;           /**< Says nothing when it is done. */
    bool quiet = false;
};

enum class Ending { TrialsSpent, NothingLeft, SecondsSpent, Interrupted, Waiting };

class PlanSearch {
public:
    /** Throws FileError where its options cannot be used, before anything is written. */
    explicit PlanSearch(PlanSearchOptions options);

    /** Throws std::exception where this machine cannot measure, and no other one will. */
    void check_machine() const;
    void open_log();
    /** Has the model learn first from the logs of other operators, of those whose spaces have the same knobs. */
    void learn_from(const std::vector<std::string> &logs);
    /** Measures these schedules first. */
    void include(const std::vector<Theta> &schedules, bool dense);
    /** Measures first what a plan that ships for the operator has of the code that is searched. */
    void include(const Plan &shipped);

    const PlanSearchOptions &options() const {
        return options_;
    }
    const Session &session() const {
        return session_;
    }
    const SearchLog &log() const {
        return *log_;
    }
    /** For summaries: the costs of the chosen set over the masks and, if there are some, over the held-out ones, and
     * which share of the cost the later half of the trials took away. */
    const nlohmann::json &costs() const {
        return costs_;
    }
    /** "" while the search is not over, or it has what a plan needs; otherwise what is missing and what to do. */
    const std::string &complaint() const {
        return complaint_;
    }
    bool has_plan() const {
        return has_plan_;
    }

    /** Measures until the budget of trials is spent, it is stopped, or the next trials wait to be measured elsewhere.
     * If the search is interrupted, it prints how to continue and throws CLI::RuntimeError. */
    Ending search(double seconds);
    /** Writes the plan, unless something is missing, and warns where its times are doubtful. */
    void finish(Ending ending, double seconds);
    /** Why they are; "" if they are not. */
    const std::string &doubt() const {
        return doubt_;
    }
    nlohmann::json report() const;

private:
    /** The schedules to choose from. */
    Pool pool(bool dense) const;

    PlanSearchOptions options_;
    Session session_;
    std::optional<MaskSet> held_out_;
    std::unique_ptr<SearchLog> log_;
    std::string prefix_;
    std::string complaint_, doubt_;
    nlohmann::json costs_ = nlohmann::json::object();
    bool has_plan_ = false;
};

/** A plan to make. */
struct PlanToMake {
    std::string name;                  /**< As `distile plan` names it. */
    std::optional<ChosenPlan> shipped; /**< What ships for such an operator and such code. */
};

PlanToMake plan_to_make(const Operator &op, const DeviceProfile &device, const CodeChoice &code);

/** How much measuring for a plan may gain, to compare with others of a list: most where none ships, less where one was
 * measured on another device; the more, the more rows of a table the operator serves. */
int expected_gain(const ListedOperator &listed, const std::optional<ChosenPlan> &shipped, const DeviceProfile &device);

/** What PlanSearch::costs() says, as "1/eta 1.02, 1.03 on held-out masks". */
std::string costs_in_words(const nlohmann::json &costs);

/** Adds code that multiplies with all weights to the plan of a search that skipped zeros: the best of a few schedules,
 * which it measures beside it. Does nothing for other searches, and where another machine measures. */
void add_code_for_all_weights(const PlanSearch &search);

}  // namespace distile

#endif
