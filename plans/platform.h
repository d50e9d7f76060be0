/** \file
 * What programs run on: an architecture of CPUs under an operating system. A further system is a row in each of the two
 * tables in platform.cpp.
 */
#ifndef DISTILE_PLANS_PLATFORM_H
#define DISTILE_PLANS_PLATFORM_H

#include "plans/architecture.h"
#include <string>
#include <vector>

namespace distile {

/** An operating system. */
struct System {
    const char *name;                    /**< The name behind the architecture in targets. */
    std::vector<const char *> libraries; /**< Options for the libraries that a shared object of code links. */
};

struct Platform {
    const Architecture &architecture;
    const System &system;

    /** The beginning of Halide targets: "x86-64-linux". */
    std::string name() const;
    /** The target with such words behind the name; "": none. */
    std::string target(const std::string &words) const;
};

/** All platforms, the usual one of each architecture first. */
const std::vector<Platform> &platforms();
std::vector<std::string> platform_names();
/** Throws FileError if there is none of this name. */
const Platform &get_platform(const std::string &name);
/** The platform with which a Halide target begins; null if there is none. */
const Platform *find_platform(const std::string &target);
/** The platform for which this program was compiled. */
const Platform &host_platform();
/** This program's if its architecture is the one asked for, else the architecture's usual one. */
const Platform &platform_with(const Architecture &architecture);

}  // namespace distile

#endif
