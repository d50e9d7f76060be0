/** \file
 * A disk cache of compiled code, so later processes need not compile the PTX again.
 */
#ifndef DISTILE_CUDA_CUBIN_CACHE_H
#define DISTILE_CUDA_CUBIN_CACHE_H

#include <cstdint>
#include <string>

namespace distile {

/** A folder with one file per PTX, driver and kind of GPU. Each file stores its whole key, so other code is never
 * mistaken for it. Files are replaced atomically. An unreadable or unwritable folder counts as empty. */
class CubinCache {
public:
    /** An empty folder name disables the cache. */
    CubinCache(std::string folder, int32_t driver_version, int32_t capability);

    bool is_on() const {
        return !folder_.empty();
    }
    /** The code for this PTX; empty if there is none. */
    std::string find(const std::string &ptx) const;
    void keep(const std::string &ptx, const std::string &cubin) const;

private:
    std::string path_of(const std::string &ptx) const;

    std::string folder_;
    std::string environment_;  ///< What the code depends on besides its PTX.
};

}  // namespace distile

#endif
