/** \file
 * Combinations of parameters for tests that cannot try them all.
 */
#ifndef DISTILE_TESTS_PAIRWISE_H
#define DISTILE_TESTS_PAIRWISE_H

#include "tests/support/short_tests.h"
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

namespace distile {

/** Few combinations of parameters, where parameter p takes the values [0, num_values[p]), such that any two values
 * of any two parameters meet in at least one of them; with short tests, three quarters of such pairs do. */
inline std::vector<std::vector<int>> combine_pairwise(const std::vector<int> &num_values, std::mt19937 &random) {
    const size_t num_parameters = num_values.size();
    std::vector<size_t> first(num_parameters);
    size_t total = 0;
    for (size_t p = 0; p < num_parameters; p++) {
        first[p] = total;
        total += num_values[p];
    }
    // Whether two values met, by their places in the sequence of all values of all parameters.
    std::vector<char> met(total * total, 0);
    std::vector<std::pair<size_t, size_t>> missing;
    for (size_t p = 0; p < num_parameters; p++) {
        for (size_t q = p + 1; q < num_parameters; q++) {
            for (int a = 0; a < num_values[p]; a++) {
                for (int b = 0; b < num_values[q]; b++) {
                    missing.emplace_back(first[p] + a, first[q] + b);
                }
            }
        }
    }

    const size_t most_missing = short_tests() ? missing.size() / 4 : 0;
    std::vector<std::vector<int>> combinations;
    while (missing.size() > most_missing) {
        std::vector<int> best;
        int best_new = -1;
        for (int attempt = 0; attempt < 8; attempt++) {
            // One pair that is missing, then for the other parameters in any order the value that adds most pairs.
            std::vector<int> values(num_parameters, -1);
            const auto seed = missing[random() % missing.size()];
            std::vector<size_t> order;
            for (size_t p = 0; p < num_parameters; p++) {
                for (size_t place : {seed.first, seed.second}) {
                    if (place >= first[p] && place < first[p] + num_values[p]) {
                        values[p] = static_cast<int>(place - first[p]);
                    }
                }
                if (values[p] < 0) {
                    order.insert(order.begin() + static_cast<std::ptrdiff_t>(random() % (order.size() + 1)), p);
                }
            }
            int num_new = 1;
            for (size_t p : order) {
                int most = -1;
                const int start = static_cast<int>(random() % num_values[p]);
                for (int i = 0; i < num_values[p]; i++) {
                    const int value = (start + i) % num_values[p];
                    int pairs = 0;
                    for (size_t q = 0; q < num_parameters; q++) {
                        const size_t one = first[p] + value, other = first[q] + values[q];
                        pairs += q != p && values[q] >= 0 && !met[one * total + other] ? 1 : 0;
                    }
                    if (pairs > most) {
                        most = pairs;
                        values[p] = value;
                    }
                }
                num_new += most;
            }
            if (num_new > best_new) {
                best_new = num_new;
                best = values;
            }
        }
        for (size_t p = 0; p < num_parameters; p++) {
            for (size_t q = 0; q < num_parameters; q++) {
                met[(first[p] + best[p]) * total + first[q] + best[q]] = 1;
            }
        }
        std::vector<std::pair<size_t, size_t>> left;
        for (const auto &pair : missing) {
            if (!met[pair.first * total + pair.second]) {
                left.push_back(pair);
            }
        }
        missing.swap(left);
        combinations.push_back(best);
    }
    return combinations;
}

}  // namespace distile

#endif
