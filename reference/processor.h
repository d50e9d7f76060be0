/** \file
 * The CPU that programs which measure run on, and how much of it they use.
 */
#ifndef DISTILE_REFERENCE_PROCESSOR_H
#define DISTILE_REFERENCE_PROCESSOR_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The CPU's model name. */
std::string cpu_name();

/** The cores that this process may use. Throws std::runtime_error if the system does not say. */
std::vector<int> usable_cores();

/** Restricts the process to as many of its cores as it shall have threads, because no other limit holds for all of
 * the libraries that are measured; call it before they start threads. 0 leaves all cores. Returns the number of
 * cores. Throws std::runtime_error if there are fewer. */
int32_t restrict_to_cores(int32_t threads);

}  // namespace distile

#endif
