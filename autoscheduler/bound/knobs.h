/** \file
 * The knobs whose values a bound takes, by name.
 */
#ifndef DISTILE_BOUND_KNOBS_H
#define DISTILE_BOUND_KNOBS_H

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace distile {

/** The parts of "a, b, c". */
inline std::vector<std::string> listed_names(const std::string &list) {
    std::vector<std::string> names;
    for (size_t first = 0, comma = 0; comma != std::string::npos; first = comma + 2) {
        comma = list.find(", ", first);
        names.push_back(list.substr(first, comma - first));
    }
    return names;
}

}  // namespace distile

/** Defines a struct with an int for each of the named knobs. names() tells a bound which values to read, and of() takes
 * these values in the order of the names. */
#define DISTILE_BOUND_KNOBS(Knobs, ...)                                                                                \
    struct Knobs {                                                                                                     \
        int __VA_ARGS__;                                                                                               \
                                                                                                                       \
        static const std::vector<std::string> &names() {                                                               \
            static const std::vector<std::string> all = listed_names(#__VA_ARGS__);                                    \
            return all;                                                                                                \
        }                                                                                                              \
        static Knobs of(const std::array<int, 16> &values) {                                                           \
            static_assert(sizeof(Knobs) <= sizeof(values));                                                            \
            Knobs knobs;                                                                                               \
            std::memcpy(&knobs, values.data(), sizeof(knobs));                                                         \
            return knobs;                                                                                              \
        }                                                                                                              \
    }

#endif
