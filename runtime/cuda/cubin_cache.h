/** \file
 * Compiled code on disk, so that a later process need not compile PTX again.
 */
#ifndef DISTILE_CUDA_CUBIN_CACHE_H
#define DISTILE_CUDA_CUBIN_CACHE_H

#include <cstdint>
#include <string>

namespace distile {

/** A folder with a file for each piece of PTX, driver and kind of GPU. Files are read back only if they hold the whole
 * of that, so no other code is ever taken for it, and are replaced as a whole. A folder that cannot be read or written
 * is an empty one. */
class CubinCache {
public:
    /** An empty folder name: nothing is kept. */
    CubinCache(std::string folder, int32_t driver_version, int32_t capability);

    bool is_on() const {
        return !folder_.empty();
    }
    /** The code for some PTX; empty if there is none. */
    std::string find(const std::string &ptx) const;
    void keep(const std::string &ptx, const std::string &cubin) const;

private:
    std::string path_of(const std::string &ptx) const;

    std::string folder_;
    std::string environment_;  ///< What the code depends on beside its PTX.
};

}  // namespace distile

#endif
