/** \file
 * Turns code into GPU modules: cubins as they are, PTX compiled by the driver or found in a cache.
 */
#ifndef DISTILE_CUDA_MODULE_LOADER_H
#define DISTILE_CUDA_MODULE_LOADER_H

#include "runtime/cuda/cubin_cache.h"
#include <cuda.h>
#include <string>

namespace distile {

class CudaDevice;

/** Its functions throw Failure. */
class ModuleLoader {
public:
    ModuleLoader(const CudaDevice &device, CubinCache cache);

    /** Loads a cubin, or PTX that ends with a 0 byte. */
    CUmodule load(const char *code) const;
    /** Finds and loads a kernel of a module. */
    CUfunction find(CUmodule module, const char *name) const;

private:
    std::string compile(const char *ptx) const;
    /** Throws unless the driver accepted the code; `log` adds details. */
    void check_code(CUresult result, const char *log) const;

    const CudaDevice &device_;
    CubinCache cache_;
};

}  // namespace distile

#endif
