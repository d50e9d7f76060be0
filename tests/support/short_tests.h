/** \file
 * What tests leave out where programs run many times slower.
 */
#ifndef DISTILE_TESTS_SHORT_TESTS_H
#define DISTILE_TESTS_SHORT_TESTS_H

#include <cstdint>
#include <cstdlib>
#include <string>

namespace distile {

/** Whether DISTILE_TESTS=short is set, as continuous integration sets it, and as the Makefile does for some sanitizers
 * and emulators. Tests that make thousands of calls then make a quarter of them. */
inline bool short_tests() {
    const char *tests = std::getenv("DISTILE_TESTS");
    return tests && std::string(tests) == "short";
}

/** Whether short tests leave out this case of many, as they do with three quarters. Which ones is pseudo-random,
 * because arguments cycle with the number. */
inline bool left_out(int number) {
    return short_tests() && static_cast<uint32_t>(number) * 2654435761U >> 30 != 0;
}

}  // namespace distile

#endif
