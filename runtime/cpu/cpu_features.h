/** \file
 * The features of this machine's CPU.
 */
#ifndef DISTILE_CPU_FEATURES_H
#define DISTILE_CPU_FEATURES_H

#include <string>

namespace distile {

/** The first of several space-separated features (named as in plans, for instance "avx2 fma") that the CPU or the
 * operating system lacks; "" if none. Unknown features count as lacking, as do features not in `allowed`, unless that
 * is null or every CPU of the architecture has them. */
std::string missing_cpu_feature(const char *features, const char *allowed = nullptr);

/** All that this library knows and the CPU and the operating system have, separated by spaces. */
std::string present_cpu_features();

/** True if all of several space-separated features are known. */
bool are_cpu_features(const char *features);

}  // namespace distile

#endif
