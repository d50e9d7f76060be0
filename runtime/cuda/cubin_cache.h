/** \file
 * A disk cache of compiled PTX.
 */
#ifndef DISTILE_CUDA_CUBIN_CACHE_H
#define DISTILE_CUDA_CUBIN_CACHE_H

#include "runtime/gpu/code_cache.h"
#include <cstdint>
#include <string>

namespace distile {

class CubinCache : public CodeCache {
public:
    CubinCache(std::string folder, int32_t driver_version, int32_t capability)
        : CodeCache(std::move(folder),
                    "driver " + std::to_string(driver_version) + " capability " + std::to_string(capability),
                    ".cubin") {
    }
};

}  // namespace distile

#endif
