/** \file
 * A file that one process has at a time.
 */
#ifndef DISTILE_LOCKED_FILE_H
#define DISTILE_LOCKED_FILE_H

#include <string>

namespace distile {

/** Opens a file to read and to append to, or makes it, and locks it as long as it lives. The system unlocks it where
 * the process is killed. */
class LockedFile {
public:
    /** Throws FileError, with `what` for the file, and `in_use` as the rest of the sentence where another process has
     * it. */
    LockedFile(const std::string &path, const std::string &what, const std::string &in_use);
    ~LockedFile();
    LockedFile(const LockedFile &) = delete;
    LockedFile &operator=(const LockedFile &) = delete;

    int descriptor() const {
        return file_;
    }

private:
    int file_ = -1;
};

}  // namespace distile

#endif
