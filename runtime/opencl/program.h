/** \file
 * OpenCL programs and their kernels.
 */
#ifndef DISTILE_OPENCL_PROGRAM_H
#define DISTILE_OPENCL_PROGRAM_H

#include "runtime/opencl/library.h"
#include <string>
#include <utility>
#include <vector>

namespace distile {

class OpenClDevice;

/** A program built for a device, from source or from the device's cache. Owns its kernels. */
class Program {
public:
    /** Throws Failure, with the compiler's log in the message. */
    Program(const OpenClDevice &device, const std::string &source);
    ~Program();
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    struct Kernel {
        cl_kernel handle;
        size_t most_items;  ///< The most items of a work-group.
    };
    /** A kernel of the program, made on first use. `name` must stay valid. Throws Failure. */
    const Kernel &kernel(const char *name);

private:
    bool build_from_cache(const std::string &source);
    cl_int build();
    std::string log() const;
    std::string binary() const;

    const OpenClDevice &device_;
    cl_program program_ = nullptr;
    std::vector<std::pair<const char *, Kernel>> kernels_;
};

}  // namespace distile

#endif
