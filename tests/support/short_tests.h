/** \file
 * What tests leave out where programs run many times slower.
 */
#ifndef DISTILE_TESTS_SHORT_TESTS_H
#define DISTILE_TESTS_SHORT_TESTS_H

#include <cstdint>
#include <cstdlib>
#include <string>

namespace distile {

/** Whether the environment has DISTILE_TESTS=short, as continuous integration has it under sanitizers and emulators.
 * Loops over thousands of calls then make some of them. */
inline bool short_tests() {
    const char *tests = std::getenv("DISTILE_TESTS");
    return tests && std::string(tests) == "short";
}

/** Whether a case of many, numbered from 0 on, is left out then: three quarters are, in no order, because cases take
 * their arguments in turns. */
inline bool left_out(int number) {
    return short_tests() && static_cast<uint32_t>(number) * 2654435761U >> 30 != 0;
}

}  // namespace distile

#endif
