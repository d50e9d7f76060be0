/** \file
 * Runs a part of a test in a child of this process.
 */
#pragma once

#include <exception>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#endif

namespace distile {

#if defined(__SANITIZE_ADDRESS__)
/** Waits up to 20 seconds until each other thread of this process has begun its work; the runtime's threads then name
 * themselves. AddressSanitizer allocates in a thread that starts, and GCC 12's leaves its lock held in a child forked
 * meanwhile. */
inline void wait_for_started_threads() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto have_started = [] {
        for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
            std::string name;
            std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
            if (task.path().filename() != std::to_string(getpid()) && name != "distile") {
                return false;
            }
        }
        return true;
    };
    while (!have_started() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}
#endif

/** Runs a body in a child of this process, and returns true if it returned true there. A child that hangs is ended.
 * Only the process's first thread may call it. */
template<typename Body> bool in_child(const Body &body) {
#if defined(__SANITIZE_ADDRESS__)
    wait_for_started_threads();
#endif
    const pid_t child = fork();
    if (child == 0) {
        alarm(120);
        bool good = false;
        try {
            good = body();
        } catch (const std::exception &) {}
        _exit(good ? 0 : 1);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace distile
