/** \file
 * What this machine's CPU can run.
 */
#ifndef DISTILE_CPU_FEATURES_H
#define DISTILE_CPU_FEATURES_H

#include <string>

namespace distile {

/** The first of several space-separated features (named as in a plan, for instance "avx2 fma") that the CPU
 * or the operating system lacks; "" if it has them all. A feature that is not known counts as lacking, and so does one
 * that is not among the `allowed`, unless those are null. */
std::string missing_cpu_feature(const char *features, const char *allowed = nullptr);

/** True if every one of several space-separated features is known on some CPU. */
bool are_cpu_features(const char *features);

}  // namespace distile

#endif
