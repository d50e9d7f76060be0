#include "autoscheduler/search/strategy.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <set>

namespace distile {

const std::vector<std::string> &strategy_names() {
    static const std::vector<std::string> names = {"greedy", "bayes", "grid", "random"};
    return names;
}

Strategy find_strategy(const std::string &name) {
    const std::vector<std::string> &names = strategy_names();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
        throw FileError(fmt::format("there is no strategy '{}': they are {}", name, fmt::join(names, ", ")));
    }
    return static_cast<Strategy>(found - names.begin());
}

std::vector<Theta> even_points(const Pool &pool, size_t count) {
    // Multiples of the golden ratio, without their whole part, fill an interval evenly, however many there are.
    const double golden = (std::sqrt(5.) - 1) / 2;
    const size_t wanted = std::min(count, pool.size());
    std::vector<Theta> points;
    std::set<size_t> taken;
    for (size_t i = 0; points.size() < wanted; i++) {
        const double place = std::fmod(static_cast<double>(i) * golden, 1);
        auto at = static_cast<size_t>(place * static_cast<double>(pool.size()));
        while (!taken.insert(at).second) {
            at = (at + 1) % pool.size();
        }
        points.push_back(pool.theta(pool[at]));
    }
    return points;
}

void set_strategy(Strategy strategy, const Pool &sparse, const Pool &dense, SearchOptions &options) {
    if (strategy == Strategy::Random) {
        options.random_part = 1;
    } else if (strategy == Strategy::Bayes) {
        options.random_part = 0;  // The model itself looks where it is not sure.
    } else if (strategy == Strategy::Grid) {
        const auto trials = static_cast<size_t>(options.trials);
        options.sparse_order = even_points(sparse, trials);
        options.dense_order = even_points(dense, trials);
    }
}

}  // namespace distile
