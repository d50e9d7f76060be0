/** \file
 * Whether a message says something.
 */
#ifndef DISTILE_TEST_CONTAINS_H
#define DISTILE_TEST_CONTAINS_H

#include <string>

namespace distile {

inline bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

}  // namespace distile

#endif
