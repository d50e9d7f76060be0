#include "autoscheduler/search/locked_file.h"
#include "plans/operator.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace distile {

LockedFile::LockedFile(const std::string &path, const std::string &what, const std::string &in_use)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (file_ < 0) {
        throw FileError(what + " cannot be opened for writing: " + std::strerror(errno));
    }
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        close(file_);
        throw FileError(what +
                        (error == EWOULDBLOCK ? in_use : std::string(" cannot be locked: ") + std::strerror(error)));
    }
}

LockedFile::~LockedFile() {
    close(file_);
}

}  // namespace distile
