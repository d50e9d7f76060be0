/** \file
 * The CPU that measuring programs run on, and its usable cores.
 */
#ifndef DISTILE_REFERENCE_PROCESSOR_H
#define DISTILE_REFERENCE_PROCESSOR_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The CPU's model name. */
std::string cpu_name();

/** The cores that this process may use. Throws std::runtime_error if the system does not report them. */
std::vector<int> usable_cores();

/** Restricts the process to as many cores as it should use threads, because no other limit binds all measured
 * libraries. Call it before they start threads. 0 keeps all cores. Returns the number of cores. Throws
 * std::runtime_error if there are too few. */
int32_t restrict_to_cores(int32_t threads);

}  // namespace distile

#endif
