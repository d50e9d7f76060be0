/** \file
 * A file that only one process uses at a time.
 */
#ifndef DISTILE_LOCKED_FILE_H
#define DISTILE_LOCKED_FILE_H

#include <string>

namespace distile {

/** Opens a file for reading and appending, makes it if necessary, and locks it for as long as this object lives. If the
 * process is killed, the system unlocks it. */
class LockedFile {
public:
    /** Throws FileError. Messages call the file `what`, and end with `in_use` if another process has locked it. */
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
