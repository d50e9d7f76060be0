/** \file
 * A disk cache of compiled code, so later processes need not compile the source again.
 */
#ifndef DISTILE_CODE_CACHE_H
#define DISTILE_CODE_CACHE_H

#include <string>

namespace distile {

/** A folder with one file per source, driver and kind of device. Each file stores its whole key, so other code is never
 * mistaken for it. Files are replaced atomically. An unreadable or unwritable folder counts as empty. */
class CodeCache {
public:
    /** `environment` says in one line what the code depends on besides its source, and `ending` ends the names of the
     * files. An empty folder name disables the cache. */
    CodeCache(std::string folder, const std::string &environment, std::string ending);

    bool is_on() const {
        return !folder_.empty();
    }
    /** The code for this source; empty if there is none. */
    std::string find(const std::string &source) const;
    void keep(const std::string &source, const std::string &code) const;

private:
    std::string path_of(const std::string &source) const;

    std::string folder_, environment_, ending_;
};

}  // namespace distile

#endif
