#include "autoscheduler/measure/waiting.h"
#include "autoscheduler/compile/process.h"
#include <filesystem>
#include <fstream>

namespace distile {

Waiting::Waiting(int threads) : is_known_(threads <= cores_of_machine()), begin_(now()) {
}

double Waiting::share() const {
    const Times end = now();
    const auto ran = static_cast<double>(end.ran - begin_.ran),
               waited = static_cast<double>(end.waited - begin_.waited);
    return is_known_ && waited > 0 && ran > 0 ? waited / (ran + waited) : 0;
}

Waiting::Times Waiting::now() {
    Times times;
    std::error_code ignored;
    for (const auto &thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
        Times of_thread;
        if (std::ifstream(thread.path() / "schedstat") >> of_thread.ran >> of_thread.waited) {
            times.ran += of_thread.ran;
            times.waited += of_thread.waited;
        }
    }
    return times;
}

}  // namespace distile
