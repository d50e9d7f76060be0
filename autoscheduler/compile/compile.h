/** \file
 * Compiling plans: to objects for a build, and to shared objects for measurements, by the same programs.
 */
#ifndef DISTILE_COMPILE_H
#define DISTILE_COMPILE_H

#include "plans/plan.h"
#include <functional>
#include <string>
#include <vector>

namespace distile {

/** The name of the PolyKernel in a shared object. */
extern const char *const measured_symbol;

/** Compiles the variants of a plan, `jobs` at once, into a shared object. `progress` is called with the number of
 * variants that are done. Throws FileError. */
void compile_plan(const Plan &plan, const std::string &path, int jobs, const std::function<void(int)> &progress);

/** What to build a PolyKernel from, and what with. */
struct BuildOptions {
    std::string op;                 /**< Operator file. */
    std::vector<std::string> plans; /**< The most demanding first; none: those that the bound makes for `backend`. */
    std::string backend = cpu_backend().name, platform = host_platform().name();
    bool tensor_cores = false; /**< Whether the bound makes plans for tensor cores too. */
    /** Replaces the type of the operator and of its plans, for instance "float16". Plans of that type stay as they are.
     * "": replaces nothing. */
    std::string dtype;
    bool portable = true;       /**< Whether a plan for every device of the backend stands behind them, if it can. */
    std::string symbol;         /**< C name of the PolyKernel. */
    std::string object, header; /**< To write. */
    std::string shared;         /**< To write in their place: a shared object; "": none. */
    std::string depfile;        /**< To write: Make's rule for the object; "": none. */
    /** For intermediate files. It is emptied first. */
    std::string folder;
    std::string linker = "ld", objcopy = "objcopy"; /**< GNU's, for objects. */
    std::string slots;                              /**< Folder of the slots that builds share; "": none. */
    int jobs = 1;
};

/** Builds an object that shows only the symbol, and a header that declares it; or a shared object, for which a C
 * compiler is enough. Throws FileError. */
void build_polykernel(const BuildOptions &options);

/** The operator in another type, with the type behind its name. Throws FileError where it has none of that type. */
Operator in_type(const Operator &op, const std::string &type);

/** Writes an output of Halide's generators, for instance "device_code", for every variant from Halide into a folder.
 * The names of the files begin with PLAN.VARIANT. Throws FileError. */
void emit_of_variants(const std::string &plan, const std::string &what, const std::string &folder, int jobs);

}  // namespace distile

#endif
