#include "autoscheduler/compile/job_slots.h"
#include "plans/json_file.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>

namespace distile {

JobSlots::JobSlots(std::string folder, int count) : folder_(std::move(folder)), count_(count) {
    std::error_code error;
    if (!folder_.empty() && (std::filesystem::create_directories(folder_, error), error)) {
        throw FileError("the folder '" + folder_ + "' cannot be made: " + error.message());
    }
}

JobSlot JobSlots::try_take() const {
    if (folder_.empty()) {
        return std::make_shared<int>(0);
    }
    for (int i = 0; i < count_; i++) {
        const std::string path = folder_ + "/" + std::to_string(i);
        const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0) {
            throw FileError("the file '" + path + "' cannot be opened: " + std::strerror(errno));
        }
        // Whatever ends the program gives the slot back.
        if (flock(file, LOCK_EX | LOCK_NB) == 0) {
            return {this, [file](const void *) { close(file); }};
        }
        close(file);
    }
    return nullptr;
}

}  // namespace distile
