/** \file
 * What plans know of each architecture of CPUs. A further one is one file in architectures/ that defines its
 * Architecture, one row in architecture.cpp and in platform.cpp, and a device profile for each of its levels.
 */
#ifndef DISTILE_PLANS_ARCHITECTURE_H
#define DISTILE_PLANS_ARCHITECTURE_H

#include <string>
#include <utility>
#include <vector>

namespace distile {

/** A CPU's vectors: float32 lanes, and registers. */
struct Vectors {
    int lanes, registers;
};

/** CPUs that run the same plans. */
struct CpuLevel {
    const char *feature; /**< CPUs of this level have it, and those of lower levels lack it. */
    const char *word;    /**< The feature's name in targets. */
    const char *words;   /**< The features of targets for these CPUs, behind the platform. */
    const char *profile; /**< The built-in device profile that stands for them. */
};

struct Architecture {
    const char *name;         /**< The word with which targets begin. */
    const char *display_name; /**< In messages, for instance "x86-64 CPU". */
    const char *everywhere;   /**< The features that all of its CPUs have and that code for them needs. */
    /** What each of Halide's features, and of our own code's, lets the compiler use, as the runtime checks it. */
    std::vector<std::pair<const char *, const char *>> halide_features;
    std::vector<CpuLevel> levels; /**< The most demanding first; the last is every CPU. */
    /** The vectors of code for a target with these words behind the operating system. */
    Vectors (*vectors_of)(const std::vector<std::string> &words);
};

const Architecture &x86_64_architecture();
const Architecture &arm_64_architecture();

const std::vector<const Architecture *> &architectures();
/** The architecture of CPUs with such features. */
const Architecture &architecture_of_features(const std::string &features);

}  // namespace distile

#endif
