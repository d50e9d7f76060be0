/** \file
 * How a search picks what it measures next.
 */
#ifndef DISTILE_STRATEGY_H
#define DISTILE_STRATEGY_H

#include "autoscheduler/search/search.h"
#include <string>
#include <vector>

namespace distile {

enum class Strategy {
    Greedy, /**< Algorithm 1 with a learned model. */
    Bayes,  /**< Algorithm 1 with a Gaussian process: Bayesian optimisation. */
    Grid,   /**< Points at even distances in the space, which depend on nothing that was measured. */
    Random  /**< Points drawn from the space. */
};

/** The strategies' names, and by a name its strategy. Throws FileError for another name. */
const std::vector<std::string> &strategy_names();
Strategy find_strategy(const std::string &name);

/** Points of a pool at even distances, as they are sorted. Each beginning of them, too, is nearly even. */
std::vector<Theta> even_points(const Pool &pool, size_t count);

/** Makes a search pick by a strategy. */
void set_strategy(Strategy strategy, const Pool &sparse, const Pool &dense, SearchOptions &options);

}  // namespace distile

#endif
